"""What a scheduler's pass costs in which nothing is due, and how many statements it is."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

import sqlalchemy as sa

from bench.places import Place
from rowlock import App, Jobs
from rowlock.runtime.events import Events
from rowlock.runtime.health import Beat
from rowlock.runtime.outage import Guard, Outage
from rowlock.runtime.scheduler import Scheduler


def measure(place: Place, schedules: int, passes: int = 50) -> dict[str, float]:
    """`ms`, the median of an idle pass over so many schedules, and `statements`, what it sends."""
    jobs = Jobs()
    for n in range(schedules):

        @jobs.job(name=f"job-{n}", max_attempts=1, timeout=1, schedule=f"{n % 60} {n % 24} 29 2 *")
        def tick() -> None: ...

    app = App(place.url, include=[jobs])
    app.migrate()
    return asyncio.run(_measured(app, jobs, passes))


async def _measured(app: App, jobs: Jobs, passes: int) -> dict[str, float]:
    db = app.databases["default"]
    events = Events(app.hooks)
    guard = Guard("scheduler", Outage(db, events), Beat("scheduler"))
    scheduler = Scheduler(
        db, guard, events, app.meter, jobs.jobs, on_made=lambda _queues: None, is_draining=lambda: False
    )
    await scheduler.run_once()
    sent: list[str] = []

    def note(_conn: Any, _cursor: Any, sql: str, *_: Any) -> None:
        sent.append(sql)

    engine = db.engine() if db.dialect.one_writer else db.async_engine().sync_engine
    sa.event.listen(engine, "before_cursor_execute", note)
    taken: list[float] = []
    for _ in range(passes):
        begun = time.perf_counter()
        await scheduler.run_once()
        taken.append(time.perf_counter() - begun)
    await app.aclose()
    return {"ms": statistics.median(taken) * 1_000, "statements": len(sent) / passes}
