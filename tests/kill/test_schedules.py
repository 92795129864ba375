"""Each minute of a schedule is made exactly once, by processes that are killed all the time (T5)."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from rowlock import Cron
from rowlock.store import cursors, schema
from rowlock.store.clock import Clock
from rowlock.store.database import Database as Store
from rowlock.store.migrations import migrate
from support.databases import Database
from support.schedulers import BEGIN, CRONS, fast, scheduled
from support.story import mostly_slow
from support.waiting import wait_until
from support.zygote import Forked

SCHEDULERS = 4


class Crew:
    """Scheduler processes on one fast clock, which begins to run when all of them look at it."""

    def __init__(self, database: Database, folder: Path, speed: float, minutes: int) -> None:
        self.began = folder / "began"
        self._folder = folder
        self._arguments = ["-m", "support.schedulers", database.url, str(self.began), str(speed), str(minutes)]
        self.alive: list[tuple[Forked, Path]] = []
        self.killed = 0

    def start(self) -> None:
        log = self._folder / f"{self.killed}-{len(self.alive)}.log"
        log.touch()
        path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]))
        env = {**os.environ, "PYTHONPATH": path}
        self.alive.append((Forked(self._arguments, self._folder, env, log), log))

    def begin(self) -> None:
        for _ in range(SCHEDULERS):
            self.start()
        wait_until(lambda: all("ready" in log.read_text() for _, log in self.alive), 60, "schedulers")
        temporary = self.began.with_suffix(".new")
        temporary.write_text(str(time.time()))
        temporary.rename(self.began)

    def kill(self, rng: random.Random) -> None:
        victim = self.alive.pop(rng.randrange(len(self.alive)))[0]
        victim.send_signal(signal.SIGKILL)
        victim.wait(20)
        self.killed += 1

    def end(self, seconds: float) -> None:
        """Waits until each has made what was left, and looks how it ended."""
        for process, log in self.alive:
            assert process.wait(seconds) == 0, log.read_text()

    def close(self) -> None:
        for process, _ in self.alive:
            process.send_signal(signal.SIGKILL)
            process.wait(20)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("minutes", "speed"),
    [(500, 6_000), pytest.param(5_000, 7_200, marks=pytest.mark.slow)],
)
@mostly_slow("postgresql")
def test_each_minute_is_made_once_by_schedulers_that_are_killed(
    database: Database, engine: sa.Engine, tmp_path: Path, request: pytest.FixtureRequest, minutes: int, speed: float
) -> None:
    # contract: T5, C3; case: C07, C22, C41, C42
    rng = random.Random(minutes)
    store = Store("default", database.url)
    store.run(migrate)
    store.clock = Clock(lambda: BEGIN)
    store.run(cursors.begin, scheduled(), store.run(cursors.read))
    request.addfinalizer(store.close)
    crew = Crew(database, tmp_path, speed, minutes)
    now, end = fast(crew.began, speed, minutes), BEGIN + timedelta(minutes=minutes)
    swept: Counter[tuple[str, datetime]] = Counter()
    try:
        crew.begin()
        while now() < end:
            time.sleep(rng.uniform(0.02, 0.3))
            crew.kill(rng)
            crew.start()
            swept += _sweep(engine, rng)
        crew.end(120)
    finally:
        crew.close()
    made = swept + Counter((row.job, row.run_at) for row in _rows(engine))
    expected = {(name, minute) for name, cron in CRONS.items() for minute in Cron(cron).between(BEGIN, end)}
    assert {slot: number for slot, number in made.items() if number != 1} == {}
    assert set(made) == expected
    assert crew.killed > 3
    assert sum(swept.values()) > 0
    assert {cursor.last_minute for cursor in store.run(cursors.read).cursors.values()} <= {
        end, *(end - timedelta(minutes=n) for n in range(1, 120))
    }  # fmt: skip


def _rows(engine: sa.Engine) -> list[sa.Row]:
    with engine.connect() as connection:
        return list(connection.execute(sa.select(schema.job.c.id, schema.job.c.job, schema.job.c.run_at)))


def _sweep(engine: sa.Engine, rng: random.Random) -> Counter[tuple[str, datetime]]:
    """Deletes some, as retention does; they are not made again."""
    rows = [row for row in _rows(engine) if rng.random() < 0.3]
    ids = [row.id for row in rows]
    with engine.begin() as connection:
        for start in range(0, len(ids), 200):
            connection.execute(schema.job.delete().where(schema.job.c.id.in_(ids[start : start + 200])))
    return Counter((row.job, row.run_at) for row in rows)
