"""Moves on records whose lease expired, whose attempts are used up, or that somebody cancelled (L7, C5, O4, K3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from rowlock.model.table import JOBS
from rowlock.runtime import faults
from rowlock.runtime.bounds import bounded
from rowlock.runtime.describe import log
from rowlock.runtime.outage import DATABASE_FAILURES, Guard
from rowlock.store.asked import carry_out
from rowlock.store.claim import bury, rescue

if TYPE_CHECKING:
    from rowlock.runtime.floor import Floor
    from rowlock.store.database import Database

MOST = 200
LONGEST_PAUSE_S = 5.0


class Rescuer:
    """One for each database of a worker: every quarter of the shortest lease, at most 5 s apart."""

    def __init__(
        self, db: Database, guard: Guard, floor: Floor, *, shortest_lease_s: float,
        on_found: Callable[[Collection[str]], None],
    ) -> None:  # fmt: skip
        self._db = db
        self._guard = guard
        self._floor = floor
        self._pace_s = min(LONGEST_PAUSE_S, shortest_lease_s / 4)
        self._on_found = on_found
        self._after = 0

    async def run(self) -> None:
        """Looks for ever; the first time at once, since a crash may be why this worker was started."""
        while True:
            try:
                found = await self.run_once()
            except DATABASE_FAILURES as error:
                await asyncio.sleep(self._guard.failed(error))
                continue
            self._guard.worked(self._pace_s)
            if found < MOST:
                await asyncio.sleep(self._pace_s)

    async def run_once(self) -> int:
        """One bounded batch of each step; answers the larger count, which is `MOST` while there may be more."""
        floor, patience_s = self._floor, self._guard.patience_s
        faults.hit("rescuer")
        cancelled = await self._carry_out(patience_s)
        rescued = await bounded(self._db, self._db.arun(rescue, JOBS, MOST), patience_s)
        buried = await bounded(self._db, self._db.arun(bury, JOBS, MOST), patience_s)
        if rescued:
            log.warning(
                "database %r: found %d %s of workers that are gone, by leases that had expired (L7)",
                self._db.name, len(rescued), "record" if len(rescued) == 1 else "records",
            )  # fmt: skip
            floor.events.tell_moved(rescued, self._db.name, floor.tally, rescued=True)
            self._on_found({record.queue for record in rescued})
        if buried:
            log.warning(
                "database %r: %d records were set aside, without attempts left or out of bounds (C5, S4)",
                self._db.name, len(buried),
            )  # fmt: skip
            floor.events.tell_moved(buried, self._db.name, floor.tally)
        return max(cancelled, len(rescued), len(buried))

    async def _carry_out(self, patience_s: float) -> int:
        """A page of cancels, in turn. Before the others, which would first make something else of these records."""
        carried = await bounded(self._db, self._db.arun(carry_out, self._after), patience_s)
        self._after = carried.next or 0
        if carried.records:
            log.info(
                "database %r: %d records were cancelled that nobody held (O4)", self._db.name, len(carried.records)
            )
            self._floor.events.tell_moved(carried.records, self._db.name, self._floor.tally)
        return MOST if carried.next else 0

    def stop(self) -> None:
        """The loop has been ended."""
        self._guard.ended()
