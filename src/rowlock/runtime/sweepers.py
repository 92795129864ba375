"""The sweepers of a worker: one for each database of its program, served or not (N3)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rowlock.runtime.bounds import end_all
from rowlock.runtime.outage import Guard, Outage
from rowlock.runtime.supervise import supervised
from rowlock.runtime.sweeper import Sweeper

if TYPE_CHECKING:
    from rowlock.runtime.floor import Floor
    from rowlock.runtime.pipeline import Pipeline
    from rowlock.runtime.program import Program


class Sweepers:
    """Started and ended together. A database that has a pipeline shares its word in an outage."""

    def __init__(
        self, floor: Floor, program: Program, pipelines: Sequence[Pipeline], *, on_stuck: Callable[[str], None]
    ) -> None:
        self._floor = floor
        self._on_stuck = on_stuck
        outages = {pipeline.db.name: pipeline.outage for pipeline in pipelines}
        self._sweepers: dict[str, Sweeper] = {}
        for name, db in program.databases.items():
            service = "sweeper" if len(program.databases) == 1 else f"sweeper@{name}"
            outage = outages.get(name) or Outage(db, floor.events, program.meter)
            guard = Guard(service, outage, floor.health.beat(service))
            self._sweepers[service] = Sweeper(program, db, guard, floor.events)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Sets them going; each waits for its first sweep."""
        for service, sweeper in self._sweepers.items():
            coro = supervised(sweeper.run, self._floor.health.beat(service), self._on_stuck)
            self._tasks.append(asyncio.Task(coro, loop=self._floor.loop, name=f"rowlock {service}"))

    def drain(self) -> None:
        """A sweep under way ends at its next step; what it did is done."""
        for task in self._tasks:
            task.cancel()

    async def stop(self) -> None:
        """Ends them."""
        for sweeper in self._sweepers.values():
            sweeper.stop()
        await end_all(self._tasks)
