"""Everything of a worker that belongs to one database: claimers, settler, rescuer, and the holds they share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING

from rowlock.runtime.announcer import Announcer
from rowlock.runtime.bounds import end_all
from rowlock.runtime.canceller import Canceller
from rowlock.runtime.claimer import Claimer
from rowlock.runtime.handling import Handling
from rowlock.runtime.health import Beat
from rowlock.runtime.outage import Guard, Outage
from rowlock.runtime.rescuer import Rescuer
from rowlock.runtime.scheduler import Scheduler
from rowlock.runtime.settler import Settler
from rowlock.runtime.supervise import supervised

if TYPE_CHECKING:
    from rowlock.runtime.attempt import Attempt
    from rowlock.runtime.floor import Floor
    from rowlock.runtime.keeper import Kept
    from rowlock.runtime.metrics import Meter
    from rowlock.runtime.roster import Roster


class Pipeline:
    """claim -> run -> settle for the queues of one database. `slots` are the queues with their numbers of slots."""

    def __init__(
        self, floor: Floor, roster: Roster, *, slots: Mapping[str, int], poll_s: float, unknown_ms: int,
        suffix: str, on_stuck: Callable[[str], None], meter: Meter, transactions: int = 0,
    ) -> None:  # fmt: skip
        self.db = roster.db
        self.roster = roster
        self.held: dict[str, Attempt] = {}
        self._floor = floor
        self._suffix = suffix
        self._on_stuck = on_stuck
        self.outage = Outage(self.db, floor.events, meter)
        # Not a loop: handlers beat for it when they come, and fail for it.
        beat = floor.health.beat(f"handlers{suffix}", float("inf")) if roster.transactional else Beat("handlers")
        self._handling = Handling(self.db, Guard(beat.name, self.outage, beat), transactions)
        self.settler = Settler(floor, self.db, self._guard("settler"), self.held)
        self.rescuer = Rescuer(
            self.db, self._guard("rescuer"), floor, shortest_lease_s=roster.shortest_lease_s, on_found=self._wake
        )
        self.canceller = Canceller(self.db, self._guard("canceller"), self.held, poll_s=poll_s)
        self.announcer = Announcer(roster, self._guard("announcer"), floor, unknown_ms=unknown_ms, poll_s=poll_s)
        scheduled = [job for job in roster.jobs if job.schedule is not None]
        self.scheduler = None if not scheduled else Scheduler(
            self.db, self._guard("scheduler"), floor.events, meter, scheduled,
            on_made=self._wake, is_draining=lambda: floor.draining,
        )  # fmt: skip
        self.claimers = [
            Claimer(
                floor, roster, self.settler, self._guard(f"claim:{queue}"), self.held, self._handling,
                queue=queue, slots=number, poll_s=poll_s, on_stuck=on_stuck,
            )
            for queue, number in slots.items()
        ]  # fmt: skip
        self.settler.on_room = self._room
        self.outage.writes_wait = self._handling.writes_wait
        self.outage.on_sign = lambda: floor.threads.call(lambda: self.wake(None))
        self._serving: list[asyncio.Task[None]] = []
        """What attempts need for as long as one of them runs."""
        self._looking: list[asyncio.Task[None]] = []
        """What looks for more to do: ended when the drain begins."""
        self.claiming: list[asyncio.Task[None]] = []

    def kept(self) -> Kept:
        """What the keeper has to know: the holds, and connections of its own."""
        from rowlock.runtime.keeper import Kept

        return Kept(self.db, self._guard("keeper"), self.held, self.roster.shortest_lease_s)

    def start(self) -> None:
        """Sets all loops going."""
        self.start_settling()
        self._serving.append(self._task(self.canceller.run, "canceller"))
        self._looking.append(self._task(self.announcer.run, "announcer"))
        self._looking.append(self._task(self.rescuer.run, "rescuer"))
        if self.scheduler is not None:
            self._looking.append(self._task(self.scheduler.run, "scheduler"))
        self.claiming = [self._task(claimer.run, f"claim:{claimer.queue}") for claimer in self.claimers]

    def start_settling(self) -> None:
        """The settler's loop alone, for a drain by hand."""
        self._serving.append(self._task(self.settler.run, "settler"))

    async def stop(self) -> None:
        """Ends the loops; what is not settled by now keeps its lease."""
        singles = self.settler.stop()
        self.rescuer.stop()
        self.announcer.stop()
        self.canceller.stop()
        for claimer in self.claimers:
            claimer.alarm.stop()
        if self.scheduler is not None:
            self.scheduler.stop()
        await end_all([*self._serving, *self._looking, *self.claiming, *singles])
        await self._handling.aclose()

    def drain(self) -> None:
        """`floor.draining` is set: nothing is scheduled, claimed, rescued or blocked any more."""
        for task in self._looking:
            task.cancel()
        for claimer in self.claimers:
            claimer.drain()

    def wake(self, queue: str | None) -> None:
        """Something may be due in `queue` (None: in any)."""
        for claimer in self.claimers:
            if queue is None or claimer.queue == queue:
                claimer.wake()

    @property
    def running(self) -> int:
        """Attempts whose handler has not ended."""
        return sum(len(claimer.running) for claimer in self.claimers)

    def _task(self, body: Callable[[], Awaitable[None]], name: str) -> asyncio.Task[None]:
        beat = self._floor.health.beat(name + self._suffix)
        coro = supervised(body, beat, self._on_stuck)
        return asyncio.Task(coro, loop=self._floor.loop, name=f"rowlock {name}{self._suffix}")

    def _guard(self, service: str) -> Guard:
        name = service + self._suffix
        return Guard(name, self.outage, self._floor.health.beat(name))

    def _wake(self, queues: Collection[str]) -> None:
        for queue in queues:
            self.wake(queue)

    def _room(self) -> None:
        for claimer in self.claimers:
            claimer.room()
