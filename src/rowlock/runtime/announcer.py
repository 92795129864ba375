"""Says what this program knows, and sets aside what no running program does (S7, S4).

At its start it points at what came back (O3), and at paused queues (O5).
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import TYPE_CHECKING

from rowlock.runtime import faults
from rowlock.runtime.bounds import bounded
from rowlock.runtime.describe import log
from rowlock.runtime.outage import DATABASE_FAILURES, Guard
from rowlock.store.claim import Rescued
from rowlock.store.pause import paused
from rowlock.store.programs import announce, block_unknown, runnable_blocked, strangers

if TYPE_CHECKING:
    from rowlock.runtime.floor import Floor
    from rowlock.runtime.roster import Roster
    from rowlock.store.database import Database

ANNOUNCE_S = 60.0
# Names of jobs that nobody knows and that were warned of: each once, and not more than these.
MOST_WARNED = 1_000
MOST_LISTED = 1_000
MOST_NAMED = 10


class Announcer:
    """One for each database of a worker: at start, then each minute; more often where `unknown_ms` is shorter.

    A program that lives must not look gone to another one's `unknown_ms`, so that three announcements fall in it.
    """

    def __init__(self, roster: Roster, guard: Guard, floor: Floor, *, unknown_ms: int, poll_s: float) -> None:
        self._roster = roster
        self._db: Database = roster.db
        self._guard = guard
        self._floor = floor
        self._unknown_ms = unknown_ms
        third_s = unknown_ms / 3_000
        self._pace_s = max(poll_s, min(ANNOUNCE_S, third_s))
        self._announce_s = self._pace_s if unknown_ms else ANNOUNCE_S
        self._announced = float("-inf")
        self._greeted = False
        self._warned: set[str] = set()

    async def run(self) -> None:
        """For ever; the first announcement at once."""
        while True:
            try:
                await self.run_once()
            except DATABASE_FAILURES as error:
                await asyncio.sleep(self._guard.failed(error))
                continue
            self._guard.worked(self._pace_s)
            await asyncio.sleep(self._pace_s)

    async def run_once(self) -> list[Rescued]:
        """Announces if it is time, then blocks what nobody knows; answers what was blocked."""
        faults.hit("announcer")
        db, known, patience_s = self._db, self._roster.pairs, self._guard.patience_s
        if monotonic() - self._announced >= self._announce_s:
            await bounded(db, db.arun(announce, known), patience_s)
            self._announced = monotonic() - 0.001  # the timer of the loop may be early by its resolution
        if not self._greeted:
            listed = await bounded(db, db.aread(runnable_blocked, known, MOST_LISTED), patience_s)
            resting = await bounded(db, db.aread(paused), patience_s)
            self._greeted = True
            self._point_at(listed)
            self._say_paused(sorted(resting))
        unknown = await bounded(db, db.aread(strangers, known, self._unknown_ms), patience_s)
        if not unknown:
            return []
        self._warn({pair.job for pair in unknown})
        blocked = await bounded(db, db.arun(block_unknown, known, self._unknown_ms), patience_s)
        if blocked:
            log.warning(
                "database %r: %d records were blocked, since no program has known their job and input for %g s "
                "(S4, S7); deploy one that does, then `rowlock records release`",
                db.name, len(blocked), self._unknown_ms / 1000,
            )  # fmt: skip
            self._floor.events.tell_moved(blocked, db.name, self._floor.tally)
        return blocked

    def stop(self) -> None:
        """The loop has been ended."""
        self._guard.ended()

    def _point_at(self, ids: list[int]) -> None:
        if ids:
            log.warning(
                "database %r: %s%d blocked records can be run again, this program knows them (O3); "
                "`rowlock records release` gives them back",
                self._db.name, "at least " if len(ids) == MOST_LISTED else "", len(ids),
            )  # fmt: skip

    def _say_paused(self, queues: list[str]) -> None:
        if queues:
            log.warning(
                "database %r: %d queues are paused, and nobody claims from them (O5): %s; `rowlock queues resume`",
                self._db.name, len(queues), ", ".join(map(repr, queues[:MOST_NAMED])),
            )  # fmt: skip

    def _warn(self, jobs: set[str]) -> None:
        """Once for each name, that records of it wait and nobody says that it can run them."""
        for job in sorted(jobs - self._warned, key=repr)[: MOST_WARNED - len(self._warned)]:
            self._warned.add(job)
            log.warning(
                "database %r: records of job %r wait, and no running program knows it with their input (S7); "
                "they are left alone, and blocked when nobody has known them for %g s",
                self._db.name, job, self._unknown_ms / 1000,
            )  # fmt: skip
