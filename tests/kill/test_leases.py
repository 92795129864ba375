"""Healthy work is never started twice, however long it takes and whatever it does to its process (L4, L5)."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from support.story import Table, complaints, logged, mostly_slow, wait_logged

SERVERS = pytest.mark.databases("postgresql", "mariadb", reason="L5: on SQLite the lease covers the timeout instead")


# contract: L4, L7, K3; case: C02, C09
@mostly_slow("postgresql", ("postgresql", "mariadb"))  # L5: on SQLite the lease covers the timeout instead
def test_long_blocking_and_burning_handlers_keep_their_leases(kill_kit, engine: sa.Engine, dialect: str) -> None:
    kit = kill_kit(
        """
    options = {"max_attempts": 3, "timeout": 60, "lease": 1.5}

    def burn(seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            sum(range(1000))

    def sync(ctx: Context) -> None:
        note("start", ctx)
        time.sleep(5.2) if ctx.job == "sleeps" else burn(4.6)
        note("end", ctx)

    async def asynchronous(ctx: Context) -> None:
        note("start", ctx)
        if ctx.job == "waits":
            await asyncio.sleep(5.2)
        elif ctx.job == "fills":
            # The loop's default executor, with many times as much as it has threads for.
            loop = asyncio.get_running_loop()
            await asyncio.gather(*(loop.run_in_executor(None, time.sleep, 0.4) for _ in range(40)))
        else:
            await asyncio.to_thread(threading.Event().wait, 0.3)    # all have started
            burn(4.6)
        note("end", ctx)

    for name in ("sleeps", "burns"):
        jobs.job(name=name, **options)(sync)
    for name in ("waits", "fills", "blocks"):
        jobs.job(name=name, **options)(asynchronous)
    """,
        job={"workers": 8, "poll_ms": 50},
    )
    for job in kit.module.jobs.jobs:
        job.enqueue()
    table, worker = Table(engine), kit.start()
    kit.wait_for("start", 5)
    idle = kit.start().ready()
    kit.wait_for("end", 5, timeout=60)
    table.wait(lambda rows: all(row.state == "succeeded" for row in rows), story=kit.story)
    assert {row.attempt for row in table.rows()} == {1}
    assert {one.pid for one in kit.effects("start")} == {worker.pid}
    assert len(kit.effects("start")) == 5
    assert "job 'blocks'" in wait_logged(worker, "WARNING", "event loop blocked")
    assert len(logged([worker], "WARNING")) == 1
    assert not logged([idle], "WARNING")
    assert not complaints(kit.workers)


# contract: L5, L1; case: C02
@pytest.mark.databases("sqlite", reason="L5: only there does a handler's write transaction block renewal")
def test_a_handler_may_hold_sqlites_write_lock_for_nine_tenths_of_its_lease(kill_kit, engine: sa.Engine) -> None:
    kit = kill_kit(
        """
    import sqlite3

    @jobs.job(name="writes", max_attempts=3, timeout=4.9, lease=5)
    def writes(ctx: Context) -> None:
        begun = time.monotonic()
        note("start", ctx)
        connection = sqlite3.connect(os.environ["ROWLOCK_TEST_URL"].removeprefix("sqlite:///"), isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        time.sleep(4.5 - (time.monotonic() - begun))
        connection.execute("COMMIT")
        connection.close()
        note("end", ctx)
    """,
        job={"poll_ms": 50},
    )
    kit.module.writes.enqueue()
    table = Table(engine)
    kit.start()
    kit.wait_for("start")
    kit.start()
    table.wait(lambda rows: rows[0].state == "succeeded", story=kit.story)
    assert table.one("writes").attempt == len(kit.effects("start")) == 1
    assert not complaints(kit.workers)


# contract: L4, L1
@SERVERS
@pytest.mark.slow
def test_a_call_that_keeps_the_interpreter_past_its_lease_is_refused_not_doubled(kill_kit, engine: sa.Engine) -> None:
    kit = kill_kit(
        """
    import ctypes

    @jobs.job(name="work", max_attempts=3, timeout=60, lease=1)
    def work(ctx: Context) -> None:
        note("start", ctx)
        if ctx.attempt == 1:
            ctypes.PyDLL(None).usleep(3_000_000)    # does not let go of the interpreter's lock
            note("late", ctx)
            return
        hold("second", ctx)
    """,
        job={"poll_ms": 50},
    )
    kit.module.work.enqueue()
    table, worker = Table(engine), kit.start()
    kit.wait_for("start")
    kit.start()
    kit.wait_for("second")
    kit.wait_for("late")
    wait_logged(worker, "WARNING", "attempt 1 lost its hold")
    assert (table.one("work").state, table.one("work").attempt) == ("running", 2)
    kit.release("second")
    table.wait(lambda rows: rows[0].state == "succeeded", story=kit.story)
    assert len(kit.effects("start")) == 2


# contract: L4, L7; case: C02
@SERVERS
@pytest.mark.slow
def test_twenty_long_jobs_of_ten_leases(kill_kit, engine: sa.Engine) -> None:
    kit = kill_kit(
        """
    @jobs.job(name="work", max_attempts=3, timeout=60, lease=2)
    def work(ctx: Context) -> None:
        note("start", ctx)
        time.sleep(20)
    """,
        job={"workers": 20, "poll_ms": 50},
    )
    kit.module.work.enqueue_many([None] * 20)
    table, worker = Table(engine), kit.start()
    kit.wait_for("start", 20)
    kit.start()
    table.wait(lambda rows: all(row.state == "succeeded" for row in rows), 60, kit.story)
    assert {one.pid for one in kit.effects("start")} == {worker.pid}
    assert len(kit.effects("start")) == 20
    assert not complaints(kit.workers)
