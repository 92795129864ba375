"""A scheduler in a process of its own, on a clock that runs fast.

`python -m support.schedulers URL BEGAN SPEED MINUTES`

It stands at `BEGIN` until the file `BEGAN` has the host's time at which it begins to run, `SPEED` times as fast as
that one, and stands still `MINUTES` later. So schedulers of any number of processes see one clock. The process ends
when that is reached and nothing is left to make.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rowlock import App, Jobs
from rowlock.runtime.events import Events
from rowlock.runtime.health import Beat
from rowlock.runtime.outage import DATABASE_FAILURES, Guard, Outage
from rowlock.runtime.scheduler import Scheduler
from rowlock.store.clock import Clock
from rowlock.store.database import Database

BEGIN = datetime(2027, 3, 1, 12, tzinfo=UTC)
CRONS = {"minutely": "* * * * *", "seventh": "*/7 * * * *", "odd-hours": "1-59/2 1-23/2 * * *"}


def scheduled() -> list[Any]:
    jobs = Jobs()
    for name, cron in CRONS.items():

        @jobs.job(max_attempts=1, timeout=1, name=name, schedule=cron)
        def tick() -> None: ...

    return jobs.jobs


def scheduler(db: Database, jobs: Sequence[Any]) -> Scheduler:
    app = App("sqlite:////nowhere/at/all.db")
    events = Events(app.hooks)
    guard = Guard("scheduler", Outage(db, events), Beat("scheduler"))
    return Scheduler(db, guard, events, app.meter, jobs, on_made=lambda _queues: None, is_draining=lambda: False)


def fast(began: Path, speed: float, minutes: int) -> Callable[[], datetime]:
    end = BEGIN + timedelta(minutes=minutes)

    def now() -> datetime:
        text = began.read_text() if began.exists() else ""
        return min(BEGIN + timedelta(seconds=max(0.0, time.time() - float(text)) * speed), end) if text else BEGIN

    return now


async def main(url: str, began: Path, speed: float, minutes: int) -> None:
    now = fast(began, speed, minutes)
    db = Database("default", url, clock=Clock(now))
    passes = scheduler(db, scheduled())
    print("ready", flush=True)
    while True:
        last = now() == BEGIN + timedelta(minutes=minutes)
        try:
            wait = await passes.run_once()
        except DATABASE_FAILURES as error:  # as the loop does: a lock that was waited for too long, say
            print(f"{type(error).__name__}", flush=True)
            await asyncio.sleep(0.01)
            continue
        if last and wait > 1.0:
            break
        await asyncio.sleep(min(wait, 0.01))
    await db.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])))
