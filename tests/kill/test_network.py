"""Connections that break, or fall silent, while a claim or a settlement is on its way (L1, K2)."""

from __future__ import annotations

import socket
import time

import pytest
import sqlalchemy as sa

from support.databases import Database
from support.proxy import Proxy
from support.story import Table, complaints, logged, wait_logged

pytestmark = pytest.mark.databases("postgresql", "mariadb", reason="K2: SQLite is a file: there is no network")
LOST = ["reset", pytest.param("blackhole", marks=pytest.mark.slow)]  # whose answer is waited for: 10 s


# contract: L1, L6
@pytest.mark.parametrize("then", LOST)
def test_a_settlement_whose_answer_is_lost_recognises_its_own_effect(
    kill_kit, database: Database, engine: sa.Engine, then: str
) -> None:
    kit = kill_kit(
        """
    async def work(ctx: Context) -> None:
        note("start", ctx)
        await ahold("middle", ctx)
        if ctx.job == "retries":
            raise Retry(after=3600)
        if ctx.job == "gives up":
            raise Dead("enough")

    for name in ("succeeds", "retries", "gives up"):
        jobs.job(name=name, max_attempts=3, timeout=60, lease=60)(work)
    """,
        after="app.on('settled')(lambda event: note('settled', event))",
        job={"workers": 3, "poll_ms": 50},
    )
    for job in kit.module.jobs.jobs:
        job.enqueue()
    table = Table(engine)
    with Proxy(database.parsed) as proxy:
        worker = kit.start(url=proxy.url)
        kit.wait_for("middle", 3)
        # The next statement that says this token settles: it is not renewed for a third of its lease.
        proxy.after(table.one("succeeds").token.encode(), then)
        kit.release("middle")
        proxy.cut.wait()
        kit.wait_for("settled", 3)
        assert table.ends() == {
            "succeeds": ("succeeded", 1, None),
            "retries": ("pending", 1, table.one("retries").error_category),
            "gives up": ("dead", 1, "rejected"),
        }
        assert len(kit.effects("start")) == len(kit.effects("settled")) == 3
        assert not logged([worker], "WARNING", "lost its hold")
        worker.term()
        assert worker.wait() == 0
    assert not complaints([worker])


# contract: C4, L7, K2
@pytest.mark.parametrize("then", LOST)
def test_a_claim_whose_answer_is_lost_costs_an_attempt_and_no_record(
    kill_kit, database: Database, engine: sa.Engine, then: str
) -> None:
    kit = kill_kit(
        """
    @jobs.job(name="work", max_attempts=3, timeout=60, lease=2)
    def work(ctx: Context) -> None:
        note("start", ctx)
    """,
        job={"poll_ms": 50},
    )
    work, table = kit.module.work, Table(engine)
    with Proxy(database.parsed) as proxy:
        worker = kit.start(url=proxy.url).ready()
        proxy.after(f"{socket.gethostname()}:{worker.pid}".encode(), then)  # what a claim says
        work.enqueue_many([None] * 3)
        proxy.cut.wait()
        assert table.states() == {"running": 3}  # by a claim that nobody knows of
        table.wait(lambda rows: all(row.state == "succeeded" for row in rows), 60, kit.story)
        assert {row.attempt for row in table.rows()} == {2}
        assert [one.attempt for one in kit.effects("start")] == [2, 2, 2]
        worker.term()
        assert worker.wait() == 0
    assert not complaints([worker])


# contract: L3, L7, K2
def test_a_worker_that_is_cut_off_is_told_and_another_goes_on(kill_kit, database: Database, engine: sa.Engine) -> None:
    """The network swallows everything: no error, no answer. The lease ends on the worker's own clock."""
    kit = kill_kit(
        """
    @jobs.job(name="work", max_attempts=3, timeout=60, lease=1.5)
    async def work(ctx: Context) -> None:
        note("start", ctx)
        if ctx.attempt > 1:
            return
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            note(f"told {ctx.stop_reason}", ctx)
    """,
        job={"poll_ms": 50},
    )
    kit.module.work.enqueue()
    table = Table(engine)
    with Proxy(database.parsed) as proxy:
        worker = kit.start(url=proxy.url)
        kit.wait_for("start")
        other = kit.start().ready()
        proxy.mode("blackhole")
        dark = time.time()
        told = kit.wait_for("told lost")[0]
        assert told.at - dark < 1.5 + 0.75 + 2  # the lease, L3's bound, and the rest for a busy machine
        table.wait(lambda rows: rows[0].state == "succeeded", story=kit.story)
        assert [one.pid for one in kit.effects("start")] == [worker.pid, other.pid]
        assert table.one("work").attempt == 2
    assert not complaints(kit.workers)


# contract: K2; case: C21
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_worker_recovers_from_silent_refused_and_slow_networks(
    kill_kit, database: Database, engine: sa.Engine
) -> None:
    kit = kill_kit(
        """
    @jobs.job(name="work", max_attempts=3, timeout=60, lease=60)
    def work(ctx: Context) -> None:
        note("start", ctx)
    """,
        job={"poll_ms": 50},
    )
    work, table = kit.module.work, Table(engine)
    with Proxy(database.parsed) as proxy:
        worker = kit.start(url=proxy.url).ready()
        for number, mode in enumerate(("blackhole", "refuse", "reset", "delay"), start=1):
            proxy.mode(mode, 0.3)
            time.sleep(0 if mode == "delay" else 15)
            if mode != "delay":
                proxy.mode("pass")
            work.enqueue_many([None] * 20)
            table.wait(lambda rows, n=number: sum(row.state == "succeeded" for row in rows) == 20 * n, 60, kit.story)
            if mode != "delay":
                wait_logged(worker, "WARNING", "works again")
                assert len(logged([worker], "WARNING", "'default' fails")) <= number
        assert {row.attempt for row in table.rows()} == {1}
        assert len(kit.effects("start")) == 80
        proxy.mode("blackhole")  # a drain in the dark ends too; 1 if the answer to the last settlement fell into it
        worker.term()
        assert worker.wait(60) in (0, 1)
    assert not complaints([worker])
