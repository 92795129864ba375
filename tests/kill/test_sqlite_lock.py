"""A SQLite file that another process keeps locked for seconds: everything waits, and goes on (K2)."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from support.databases import SQLite
from support.story import Table, complaints, logged

pytestmark = pytest.mark.databases("sqlite", reason="K2: only there has one process the whole file to itself")


@contextmanager
def locked(database: SQLite, how: str = "IMMEDIATE") -> Iterator[None]:
    connection = sqlite3.connect(database.path, timeout=10, isolation_level=None)
    connection.execute(f"BEGIN {how}")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")
        connection.close()


SOURCE = """
@jobs.job(name="work", max_attempts=3, timeout=9, lease=10)
async def work(ctx: Context) -> None:
    note("start", ctx)
    await ahold(f"middle {ctx.id}", ctx)
    note("end", ctx)

@jobs.job(name="quick", max_attempts=1, timeout=9, lease=10)
def quick(ctx: Context) -> None:
    note("start", ctx)
"""


# contract: K2, C7, L4; case: C21, C32
def test_the_file_is_locked_at_the_start_at_a_claim_and_at_a_settlement(
    kill_kit, database: SQLite, engine: sa.Engine, dialect: str
) -> None:
    kit = kill_kit(SOURCE, job={"poll_ms": 50})
    table = Table(engine)
    held = kit.module.work.enqueue().id
    with locked(database):
        worker = kit.start()
        time.sleep(2.6)  # longer than a statement waits for the lock
        assert worker.running, worker.stderr
    kit.wait_for(f"middle {held}")
    kit.module.quick.enqueue_many([None] * 10)
    with locked(database):
        kit.release(f"middle {held}")
        kit.wait_for("end")
        time.sleep(2.6)
        assert table.one("work").state == "running"
    unlocked = time.time()
    table.wait(lambda rows: all(row.state == "succeeded" for row in rows), story=kit.story)
    assert time.time() - unlocked < 5 + 2
    assert {row.attempt for row in table.rows()} == {1}
    assert len(kit.effects("start")) == 11
    assert not complaints([worker])
    worker.term()
    assert worker.wait() == 0


# contract: K2, L5; case: C30
@pytest.mark.slow
def test_renewals_that_meet_a_locked_file_are_tried_again(
    kill_kit, database: SQLite, engine: sa.Engine, dialect: str
) -> None:
    """C30: a write transaction of a second, and one of three."""
    kit = kill_kit(
        """
    @jobs.job(name="work", max_attempts=3, timeout=5.5, lease=6)
    async def work(ctx: Context) -> None:
        note("start", ctx)
        await asyncio.sleep(4.6)
    """,
        job={"poll_ms": 50},
    )
    kit.module.work.enqueue()
    table, worker = Table(engine), kit.start()
    kit.wait_for("start")
    idle = kit.start().ready()
    for seconds in (1, 3):
        with locked(database):
            time.sleep(seconds)
    table.wait(lambda rows: rows[0].state == "succeeded", story=kit.story)
    assert table.one("work").attempt == len(kit.effects("start")) == 1
    assert not complaints([worker, idle])


# contract: C7; case: C31
def test_an_application_keeps_writing_beside_its_workers(
    kill_kit, database: SQLite, engine: sa.Engine, dialect: str
) -> None:
    """C31: a small write every 20 ms; idle workers do not take the lock, busy ones only for moments."""
    kit = kill_kit("@jobs.job(name='none', max_attempts=3, timeout=9)\ndef none() -> None: ...", job={"poll_ms": 50})
    _ = kit.module
    table = Table(engine)
    for worker in [kit.start() for _ in range(2)]:
        worker.ready()
    connection = sqlite3.connect(database.path, timeout=5, isolation_level=None)
    connection.execute("CREATE TABLE app (n INTEGER)")

    def slowest(writes: int) -> float:
        worst = []
        for n in range(writes):
            begun = time.monotonic()
            connection.execute("INSERT INTO app VALUES (?)", (n,))
            worst.append(time.monotonic() - begun)
            time.sleep(0.02)
        return sorted(worst)[int(len(worst) * 0.95)]

    assert slowest(30) < 0.1
    kit.module.none.enqueue_many([None] * 1000)
    assert slowest(50) < 0.5
    table.wait(lambda rows: all(row.state == "succeeded" for row in rows), 40, kit.story)
    connection.close()
    assert not complaints(kit.workers)
    assert not logged(kit.workers, "WARNING")
