"""Signals: a worker stops claiming at once, finishes what it can, and gives the rest back (M6)."""

from __future__ import annotations

import signal
import time

import pytest
import sqlalchemy as sa

from support.story import Table, complaints, lease_of, limits, logged, mostly_slow
from support.waiting import wait_until


# contract: M6, L4, C3; case: C12
@mostly_slow("mariadb")
def test_a_signal_lets_running_attempts_finish_and_starts_nothing_more(
    kill_kit, engine: sa.Engine, dialect: str
) -> None:
    kit = kill_kit(
        f"""
    @jobs.job(name="work", max_attempts=1, {limits(dialect, lease=3)})
    def work(ctx: Context) -> None:
        note("start", ctx)
        while not ctx.stopping:
            time.sleep(0.01)
        assert ctx.stop_reason is None    # it may finish
        hold("stopping", ctx)
        note("end", ctx)
    """,
        job={"workers": 2, "poll_ms": 50},
    )
    kit.module.work.enqueue_many([None] * 22)
    table, worker = Table(engine), kit.start()
    kit.wait_for("start", 2)
    worker.term()
    worker.term()  # at once: a wrapper passed on what the whole group got
    kit.wait_for("stopping", 2)
    # Still renewed while it drains.
    leases = [row.lease for row in table.rows() if row.state == "running"]
    table.wait(lambda rows: [row.lease for row in rows if row.state == "running"] > leases)
    kit.release("stopping")
    assert worker.wait() == 0
    assert table.states() == {"succeeded": 2, "pending": 20}
    assert {(row.attempt, row.claimed_by) for row in table.rows() if row.state == "pending"} == {(0, None)}
    assert len(kit.effects("start")) == len(kit.effects("end")) == 2
    assert not complaints(kit.workers)


# contract: M6, C3; case: C16
@mostly_slow("postgresql")
@pytest.mark.parametrize("point", ["claimed", "ended", "settling"])
def test_a_signal_between_claim_and_settlement(kill_kit, engine: sa.Engine, point: str, dialect: str) -> None:
    """While a claim is handed over all of it goes back, unspent. After the handler and in mid-settle it is settled."""
    kit = kill_kit(
        """
    import re

    @jobs.job(name="work", max_attempts=1, timeout=30)
    async def work(ctx: Context) -> None:
        note("start", ctx)

    def term(_about) -> None:
        os.kill(os.getpid(), 15)

    def settling(_connection, _cursor, statement, *_) -> None:
        if re.search(r"SET [`\\"]?state[`\\"]? = 'succeeded'", statement):
            term(None)
    """,
        after={
            "claimed": "app.on('claimed')(term)",
            "ended": "app.after_attempt(term)",
            "settling": "listen('before_cursor_execute', settling)",
        }[point],
        job={"workers": 20, "poll_ms": 50},
    )
    kit.module.work.enqueue_many([None] * (20 if point == "claimed" else 1))
    table, worker = Table(engine), kit.start()
    assert worker.wait() == 0
    if point == "claimed":
        assert table.states() == {"pending": 20}
        assert {row.attempt for row in table.rows()} == {0}
        assert not kit.effects()
    else:
        assert table.states() == {"succeeded": 1}
    assert not complaints(kit.workers)


# contract: M6, R4, R7; case: C13, C15
@mostly_slow("postgresql")
def test_what_does_not_finish_in_time_is_handed_back_with_its_attempt(
    kill_kit, engine: sa.Engine, dialect: str
) -> None:
    kit = kill_kit(
        f"""
    async def work(ctx: Context) -> None:
        note("start", ctx)
        if ctx.attempt > 1 or effects("cut", ctx.id):
            return note("again", ctx)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            note("cut", ctx)
            assert ctx.stop_reason == "shutdown"
            if ctx.job == "fails":
                raise ValueError from None
            if ctx.job == "exits":
                raise SystemExit(3) from None
            if ctx.job == "snoozes":
                raise Snooze(3600) from None
            if ctx.job == "completes":
                return
            raise

    from support.effects import effects

    for name in ("sleeps", "worn", "fails", "exits", "snoozes", "completes"):
        jobs.job(name=name, max_attempts=2, {limits(dialect, lease=4)})(work)

    @jobs.job(name="sync", max_attempts=2, {limits(dialect, lease=4)})
    def sync(ctx: Context) -> None:
        note("start", ctx)
        while ctx.stop_reason is None:
            time.sleep(0.01)
        raise RuntimeError("whatever it raises now, it was asked to stop")
    """,
        job={"workers": 8, "poll_ms": 50},
        runtime={"mode": "worker", "shutdown_ms": 300},
    )
    for job in kit.module.jobs.jobs:
        job.enqueue()
    table = Table(engine)
    table.write("UPDATE rowlock_job SET handed_back = 9 WHERE job = 'worn'")
    worker = kit.start()
    kit.wait_for("start", 7)
    worker.term()
    assert worker.wait() == 0
    assert table.ends() == {
        "sleeps": ("pending", 0, None),
        "worn": ("pending", 1, None),  # the tenth hand-back counts
        "fails": ("pending", 0, None),
        "exits": ("pending", 0, None),
        "snoozes": ("pending", 0, None),
        "completes": ("succeeded", 1, None),
        "sync": ("pending", 0, None),
    }
    assert {row.job for row in table.rows() if row.handed_back != (row.job not in ("completes", "snoozes"))} == {"worn"}
    assert not complaints(kit.workers)

    second = kit.start()  # nothing waits for a lease
    again = kit.wait_for("again", 4)
    assert {(one.job, one.attempt) for one in again} == {("sleeps", 1), ("worn", 2), ("fails", 1), ("exits", 1)}
    assert all(one.pid == second.pid for one in again)


# contract: M6, R3, L7
@mostly_slow("sqlite")
def test_a_handler_that_can_not_be_stopped_keeps_its_lease_and_not_the_process(
    kill_kit, engine: sa.Engine, dialect: str
) -> None:
    kit = kill_kit(
        f"""
    @jobs.job(name="stuck", max_attempts=2, {limits(dialect, lease=1)})
    def stuck(ctx: Context) -> None:
        note("start", ctx)
        if ctx.attempt == 1:
            threading.Event().wait()

    @jobs.job(name="stubborn", max_attempts=2, {limits(dialect, lease=1)})
    async def stubborn(ctx: Context) -> None:
        note("start", ctx)
        while ctx.attempt == 1:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                note("swallowed", ctx)
    """,
        job={"poll_ms": 50},
        runtime={"mode": "worker", "shutdown_ms": 300},
    )
    for job in kit.module.jobs.jobs:
        job.enqueue()
    table, worker = Table(engine), kit.start()
    kit.wait_for("start", 2)
    asked = time.time()
    worker.term()
    assert worker.wait() == 1
    assert time.time() - asked < 3 + 5  # shutdown_ms, and what closing takes; the rest is for a busy machine
    assert {(row.state, row.attempt) for row in table.rows()} == {("running", 1)}
    assert all(row.lease is not None for row in table.rows())
    assert len(kit.effects("swallowed")) == 1
    kit.start()
    table.wait(lambda rows: all(row.state == "succeeded" for row in rows), story=kit.story)
    assert {row.attempt for row in table.rows()} == {2}
    assert all(one.at - asked > 0.5 * lease_of(dialect, lease=1) for one in kit.effects("start")[2:])
    assert not complaints(kit.workers)


# contract: M6; case: C14
@mostly_slow("mariadb")
def test_a_second_signal_ends_the_process_at_once(kill_kit, engine: sa.Engine, dialect: str) -> None:
    kit = kill_kit(
        f"""
    @jobs.job(name="work", max_attempts=3, {limits(dialect, lease=1)})
    async def work(ctx: Context) -> None:
        note("start", ctx)
        if ctx.attempt > 1:
            return
        while not ctx.stopping:
            await asyncio.sleep(0.01)
        note("stopping", ctx)
        time.sleep(60)    # not even a blocked loop keeps it
    """,
        job={"workers": 1, "poll_ms": 50},
    )
    kit.module.work.enqueue_many([None, None])
    table, workers = Table(engine), [kit.start(), kit.start()]
    kit.wait_for("start", 2)
    for worker, first in zip(workers, (signal.SIGTERM, signal.SIGINT), strict=True):
        worker.signal(first)
    kit.wait_for("stopping", 2)
    time.sleep(0.25)  # sooner it would be taken for an echo of the first
    asked = time.time()
    for worker in workers:
        worker.term()
    assert [worker.wait() for worker in workers] == [1, 1]
    assert time.time() - asked < 2
    assert all("second signal" in worker.stderr for worker in workers)
    assert table.states() == {"running": 2}
    kit.start()
    table.wait(lambda rows: all(row.state == "succeeded" for row in rows), story=kit.story)  # when their leases ended
    assert {row.attempt for row in table.rows()} == {2}
    assert len(kit.effects("start")) == 4


# contract: M6, K3; case: C14
@mostly_slow("sqlite")
def test_signals_while_idle_and_before_the_first_claim(
    kill_kit, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch, dialect: str
) -> None:
    kit = kill_kit(
        """
    if os.environ.get("HOLD_THE_IMPORT"):
        hold("importing")

    @jobs.job(name="work", max_attempts=3, timeout=30)
    async def work() -> None: ...
    """
    )
    _ = kit.module  # migrates, and must not be held
    command = ("run", f"{kit.name}:app")
    idle = [kit.run(*command), kit.run(*command)]
    monkeypatch.setenv("HOLD_THE_IMPORT", "1")
    starting = [kit.run(*command), kit.run(*command)]
    kit.wait_for("importing", 2)
    for worker in idle:
        worker.ready()
    for workers in (idle, starting):
        asked = time.time()
        workers[0].term()
        workers[1].interrupt()
        assert [worker.wait() for worker in workers] == [0, 0]
        assert time.time() - asked < 1 + 2  # what is more than 1 s is for a machine with other things to do
    assert all("ready:" not in worker.stderr for worker in starting)
    assert not complaints(kit.workers)


# contract: M5, M6, K2
@pytest.mark.databases("postgresql", "mariadb", reason="M6: a file is not waited for")
def test_a_signal_while_the_worker_waits_for_its_database(kill_kit, database) -> None:
    from support.proxy import Proxy

    kit = kill_kit(
        """
    @jobs.job(name="work", max_attempts=3, timeout=30)
    async def work() -> None: ...
    """
    )
    with Proxy(database.parsed) as refusing, Proxy(database.parsed) as silent:
        refusing.mode("refuse")
        silent.mode("blackhole")
        workers = [kit.start(url=refusing.url), kit.start(url=silent.url)]
        wait_until(lambda: logged([workers[0]], "WARNING", "waiting until it can"), what=kit.story)
        asked = time.time()
        for worker in workers:
            worker.term()
        assert [worker.wait() for worker in workers] == [0, 0]
        assert time.time() - asked < 2
    assert not complaints(workers)
