"""A worker: a pipeline for each database, one keeper, one set of threads; started, stopped and drained as one (K1)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection
from time import monotonic
from typing import Any

from rowlock.runtime import isolate
from rowlock.runtime.describe import log
from rowlock.runtime.events import Events
from rowlock.runtime.floor import FailureListener, Floor
from rowlock.runtime.health import Health
from rowlock.runtime.keeper import Keeper
from rowlock.runtime.pipeline import Pipeline
from rowlock.runtime.pool import Threads
from rowlock.runtime.program import Program
from rowlock.runtime.roster import Roster, queues_of, slots_of, transactions_of
from rowlock.runtime.sweepers import Sweepers
from rowlock.store.programs import block_unknown

# After the time for finishing: so long cancelled handlers have for their own cleaning up (M6),
CUT_OFF_S = 1.0
# and so long the last settlements may take.
FLUSH_S = 5.0
# A drain by hand gives up when the database has not taken its settlements for so long.
DRAIN_FLUSH_S = 60.0


class Worker:
    """Serves the jobs of `app` on the running loop.

    Arguments: `queues` narrows what is served (None: all); `jitter` a source of samples in 0..1 for retries;
    `on_failure` is called like the application's own failure hooks; `largest_lease` gives every record a lease of two
    hours. Raises `StartRefused` for what the program can not do (J5).
    """

    def __init__(
        self, app: Program, *, queues: Collection[str] | None = None, jitter: Callable[[], float] = random.random,
        on_failure: FailureListener | None = None, largest_lease: bool = False,
    ) -> None:  # fmt: skip
        self._app = app
        self._jitter = jitter
        self._on_failure = on_failure
        self.rosters = {name: Roster(app, db, largest_lease=largest_lease) for name, db in app.databases.items()}
        self.served = queues_of(app, self.rosters, queues)
        for name, roster in self.rosters.items():
            roster.db.for_handlers = transactions_of(app, roster, self.served.get(name, ()))
        self.health = Health()
        self.failed_by: str | None = None
        """Why the worker can not go on (H1); it wants to be stopped then, and the process to exit 1."""
        self.on_stuck: Callable[[], None] = lambda: None
        self._floor: Floor | None = None
        self.pipelines: list[Pipeline] = []
        """One for each database that is served; read also by who reports on it."""
        self._keeper: Keeper | None = None
        self._sweepers: Sweepers | None = None
        self._stopping: asyncio.Task[bool] | None = None

    @property
    def queues(self) -> list[str]:
        """The names of the queues that are served, each once."""
        return sorted({queue for queues in self.served.values() for queue in queues})

    @property
    def running(self) -> int:
        """Attempts whose handler has not ended."""
        return sum(pipeline.running for pipeline in self.pipelines)

    async def start(self) -> None:
        """Begins to claim. The tables must be there already (M5)."""
        self._build(slots_of)
        assert self._floor is not None
        self._keeper = Keeper(self._floor, [pipeline.kept() for pipeline in self.pipelines], on_stuck=self._stuck)
        self._keeper.start()
        for pipeline in self.pipelines:
            pipeline.start()
        self._sweepers = Sweepers(self._floor, self._app, self.pipelines, on_stuck=self._stuck)
        self._sweepers.start()
        self.health.status = "ok"

    def close_gate(self) -> None:
        """Nothing is claimed or started from here on. Safe in a signal handler: it sets one flag."""
        if self._floor is not None:
            self._floor.draining = True

    async def stop(self, grace: float) -> bool:
        """Drains: running attempts have `grace` seconds, still renewed, then they are cancelled and handed back (M6).

        True if nothing is left running and everything is settled. A second call waits for the first. A handler may
        call it, though it waits for that handler, so it is cancelled in the end.
        """
        if self._floor is None:
            return True
        if self._stopping is None:
            self._stopping = asyncio.Task(self._stop(grace), loop=self._floor.loop, name="rowlock stop")
        return await asyncio.shield(self._stopping)

    def wake(self, queue: str | None = None) -> None:
        """Something may be due: look now. From the loop."""
        for pipeline in self.pipelines:
            pipeline.wake(queue)

    async def drain(self, limit: int) -> int:
        """Runs due records one after the other until none is due, through the same code; answers how many (X1, X2).

        On the running loop, without keeper and polling: for the test kit. At most `limit` records.
        """
        self._build(lambda _app, _queue: 1)
        claimed = 0
        try:
            for pipeline in self.pipelines:
                pipeline.start_settling()
            while claimed < limit and (more := await self._drain_round(limit - claimed)):
                claimed += more
        finally:
            await self._close(join_s=1.0)
        return claimed

    # --- inside -------------------------------------------------------------------------------------------

    def _build(self, slots: Callable[[Program, str], int]) -> None:
        loop = asyncio.get_running_loop()
        served = [(self.rosters[name], queues) for name, queues in self.served.items() if queues]
        numbers = [{queue: slots(self._app, queue) for queue in queues} for _, queues in served]
        threads = Threads(loop, sum(sum(each.values()) for each in numbers))
        events = Events(self._app.hooks)
        self._floor = Floor(loop, threads, events, self.health, jitter=self._jitter, on_failure=self._on_failure,
                            tally=self._app.meter.begin())  # fmt: skip
        isolate.install(loop)
        settings = self._app.settings.job
        self.pipelines = [
            Pipeline(
                self._floor, roster, slots=each, poll_s=settings.poll_ms / 1000, unknown_ms=settings.unknown_ms,
                on_stuck=self._stuck, meter=self._app.meter,
                suffix="" if len(served) == 1 else f"@{roster.db.name}", transactions=roster.db.for_handlers,
            )
            for (roster, _), each in zip(served, numbers, strict=True)
        ]  # fmt: skip

    def _stuck(self, why: str) -> None:
        if self.failed_by is None:
            self.failed_by = why
            log.error("the worker can not go on: %s; it drains, and ends", why)
            self.on_stuck()

    async def _stop(self, grace: float) -> bool:
        floor = self._floor
        assert floor is not None
        until = monotonic() + grace
        floor.draining = True
        self.health.status = "draining"
        try:
            for pipeline in self.pipelines:
                pipeline.drain()
            if self._sweepers is not None:
                self._sweepers.drain()
            # A claim that is under way is waited for: what it takes goes back at once.
            claiming = [task for pipeline in self.pipelines for task in pipeline.claiming]
            if claiming:
                await asyncio.wait(claiming, timeout=grace)
            if not await self._within(until - monotonic(), self._all_left()):
                for pipeline in self.pipelines:
                    for claimer in pipeline.claimers:
                        claimer.cut_off()
                await self._within(CUT_OFF_S, self._all_left())
            flushed = await self._within(FLUSH_S, self._flushed())
            left = self.running
            drained = flushed and not left
            if not drained:
                log.warning(
                    "stopped with %d handlers that did not end and %d settlements not written; their records come "
                    "back when their leases end", left, sum(p.settler.backlog for p in self.pipelines),
                )  # fmt: skip
        finally:
            await self._close(join_s=0.0 if self.running else 1.0)
            self.health.status = "stopped"
        return drained

    async def _close(self, join_s: float) -> None:
        floor = self._floor
        assert floor is not None
        if self._keeper is not None:
            self._keeper.stop()
        if self._sweepers is not None:
            await self._sweepers.stop()
        for pipeline in self.pipelines:
            await pipeline.stop()
        if self._keeper is not None:
            await self._within(FLUSH_S, asyncio.shield(self._keeper.ended))
        floor.threads.close(join_s)
        self._app.meter.end(floor.tally)
        isolate.uninstall(floor.loop)

    @staticmethod
    async def _within(seconds: float, what: Any) -> bool:
        """Whether it was done in time; it is cancelled if not."""
        try:
            await asyncio.wait_for(what, max(seconds, 0.0))
        except TimeoutError:
            return False
        return True

    async def _all_left(self) -> None:
        for pipeline in self.pipelines:
            for claimer in pipeline.claimers:
                await claimer.until(lambda claimer=claimer: not claimer.running)

    async def _flushed(self) -> None:
        for pipeline in self.pipelines:
            await pipeline.settler.flush()

    async def _drain_round(self, limit: int) -> int:
        """At most one record of each queue."""
        floor = self._floor
        assert floor is not None
        claimed = 0
        for pipeline in self.pipelines:
            if pipeline.scheduler is not None:
                await pipeline.scheduler.catch_up()
            await pipeline.rescuer.run_once()
            unknown_ms = self._app.settings.job.unknown_ms
            blocked = await pipeline.db.arun(block_unknown, pipeline.roster.pairs, unknown_ms)
            floor.events.tell_moved(blocked, pipeline.db.name, floor.tally)
            for claimer in pipeline.claimers:
                if claimed >= limit:
                    break
                more, _ = await claimer.run_once(1)
                await claimer.until(lambda claimer=claimer: claimer.open <= 0)
                await asyncio.wait_for(pipeline.settler.flush(), DRAIN_FLUSH_S)
                claimed += more
        return claimed
