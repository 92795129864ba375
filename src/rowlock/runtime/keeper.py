"""Keeps the leases of records in work, and tells who lost theirs (L3, L4).

On a thread, a loop and connections of its own: a handler that blocks the worker's loop, fills its threads or burns
the CPU does not keep it from renewing.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from rowlock.model.table import JOBS
from rowlock.model.texts import error_class
from rowlock.runtime import faults
from rowlock.runtime.bounds import bounded, end_all
from rowlock.runtime.describe import log, trace
from rowlock.runtime.held import snapshot
from rowlock.runtime.loopwatch import LoopWatch
from rowlock.runtime.outage import DATABASE_FAILURES, Guard
from rowlock.runtime.supervise import supervised
from rowlock.store.dialects.base import Hold
from rowlock.store.renew import renew, renew_one, verify_holds

if TYPE_CHECKING:
    from rowlock.runtime.attempt import Attempt
    from rowlock.runtime.floor import Floor
    from rowlock.store.database import Database

T = TypeVar("T")

SINGLES = 2
# A statement gets a third of the lease, so that a connection that swallows it leaves time for another one.
SHARE = 3


class Kept:
    """The holds of one database, and connections of the keeper's own."""

    def __init__(self, db: Database, guard: Guard, held: dict[str, Attempt], shortest_lease_s: float) -> None:
        self.name = db.name
        self.db = db.twin()
        self.guard = guard
        self.held = held
        self.pace_s = min(1.0, shortest_lease_s / 6)
        self.singles: dict[str, asyncio.Task[None]] = {}
        self._most_singles = SINGLES if db.pool is None else max(0, min(SINGLES, db.pool - 1))

    # --- one round ----------------------------------------------------------------------------------------

    async def tick(self) -> bool:
        """Renews what is due, verifies the rest, and tells whose lease ended. False if there was nothing to ask."""
        faults.hit("keeper")
        now = monotonic()
        due: list[Attempt] = []
        rest: list[Attempt] = []
        seen: set[int] = set()
        for hold in snapshot(self.held):
            age = now - hold.renewed_at
            if age >= hold.lease_s:
                self._lost(hold)  # stopped, or cut off from the database, for longer than the lease
            elif hold.id in seen or hold.token in self.singles:
                continue
            elif age >= hold.lease_s / SHARE and now < hold.limit:
                due.append(hold)
                seen.add(hold.id)
            elif age >= self.pace_s:
                rest.append(hold)
                seen.add(hold.id)
        for batch in self._batches(due):
            await self._renew(batch)
        for batch in self._batches(rest):
            pairs = [(hold.id, hold.token) for hold in batch]
            gone = await self._bounded(batch, self.db.aread(verify_holds, JOBS, pairs))
            self._lost_of(batch, gone)
        return bool(due or rest)

    def _batches(self, holds: Sequence[Attempt]) -> Iterable[Sequence[Attempt]]:
        most = self.db.dialect.max_batch
        return (holds[start : start + most] for start in range(0, len(holds), most))

    async def _renew(self, batch: Sequence[Attempt]) -> None:
        sent = monotonic()
        holds = [Hold(hold.id, hold.token, hold.lease_ms) for hold in batch]
        answer = await self._bounded(batch, self.db.arun(renew, JOBS, holds))
        for hold in batch:
            if hold.id in answer.renewed:
                hold.renewed_at = sent
            elif hold.id in answer.busy and len(self.singles) < self._most_singles:
                self._renew_singly(hold)
        self._lost_of(batch, answer.lost)

    async def _bounded(self, batch: Sequence[Attempt], statement: Coroutine[Any, Any, T]) -> T:
        shortest = min(hold.lease_s for hold in batch)
        return await bounded(self.db, statement, max(0.2, shortest / SHARE))

    # --- a row that somebody else has locked delays only its own renewal (L4) -----------------------------

    def _renew_singly(self, hold: Attempt) -> None:
        """Waits in line for the row; those that find no place here are tried again with the others."""
        task = asyncio.create_task(self._single(hold), name="rowlock renew one")
        self.singles[hold.token] = task
        task.add_done_callback(lambda _: self.singles.pop(hold.token, None))

    async def _single(self, hold: Attempt) -> None:
        sent = monotonic()
        try:
            async with asyncio.timeout(max(0.2, hold.lease_s)):
                renewed = await self.db.arun(renew_one, JOBS, Hold(hold.id, hold.token, hold.lease_ms))
        except DATABASE_FAILURES:
            return  # its lock wait ended at its bound, or the database fails: the next round tries again, and says so
        if renewed:
            hold.renewed_at = max(hold.renewed_at, sent)
        else:
            self._lost(hold)

    # --- losing -------------------------------------------------------------------------------------------

    def _lost_of(self, batch: Sequence[Attempt], ids: set[int]) -> None:
        if ids:
            for hold in batch:
                if hold.id in ids:
                    self._lost(hold)

    def _lost(self, hold: Attempt) -> None:
        # What was settled meanwhile has left the dict, and is not lost.
        if self.held.pop(hold.token, None) is None:
            return
        hold.say_lost_early()
        hold.lane.floor.threads.call(hold.lose)


class Keeper:
    """The thread. `start` once, `stop` once; `ended` tells when its connections are closed."""

    def __init__(self, floor: Floor, kept: Sequence[Kept], *, on_stuck: Callable[[str], None]) -> None:
        self._floor = floor
        self._kept = kept
        self._on_stuck = on_stuck
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._serve, name="rowlock-keeper", daemon=True)
        self.ended: asyncio.Future[None] = floor.loop.create_future()

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Asks the thread to end; never waits."""
        self._stopping = True
        loop, stopped = self._loop, self._stopped
        if loop is not None and stopped is not None:
            try:
                loop.call_soon_threadsafe(stopped.set)
            except RuntimeError:
                return  # it has ended already

    def _serve(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:  # noqa: BLE001 - without renewal the worker must not go on (H1)
            log.error("the renewal thread ended by a defect: %s", trace(error))
            self._stuck(f"the renewal thread ended by {error_class(error)} (H1)")
        finally:
            self._floor.threads.call(lambda: self.ended.done() or self.ended.set_result(None))

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        if self._stopping:
            return
        watch = LoopWatch(self._floor, self._kept)
        bodies = [
            *(supervised(lambda kept=kept: self._keep(kept), kept.guard.beat, self._stuck) for kept in self._kept),
            supervised(lambda: self._watch(watch), self._floor.health.beat("watch"), self._stuck),
        ]
        tasks = [asyncio.create_task(body) for body in bodies]
        await self._stopped.wait()
        # Those that wait for a row too: each has a connection, which must be closed before its pool is.
        tasks += [single for kept in self._kept for single in kept.singles.values()]
        await end_all(tasks)
        for kept in self._kept:
            kept.guard.ended()
            await kept.db.aclose()

    def _stuck(self, why: str) -> None:
        self._floor.threads.call(lambda: self._on_stuck(why))

    async def _keep(self, kept: Kept) -> None:
        while True:
            pause = kept.pace_s
            try:
                asked = await kept.tick()
            except DATABASE_FAILURES as error:
                # Tried again as long as leases last, so never much later than the next round would be.
                pause = min(kept.guard.failed(error), max(pause, 0.1))
            else:
                (kept.guard.worked if asked else kept.guard.rests)(pause)
            await asyncio.sleep(pause)

    async def _watch(self, watch: LoopWatch) -> None:
        while True:
            watch.look()
            await asyncio.sleep(watch.pace_s)
