"""Reports from the field, on each database: a record lost in its own worker, deadlocks, secrets (L3, K2, S6)."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

import pytest
import sqlalchemy as sa

from rowlock import App, Context, StopReason
from support.databases import Database
from support.failures import database_error
from support.jobtable import failing
from support.live import Live
from support.waiting import wait_until_async

S = r"[`\"]?"
STATEMENTS = {
    "claim": rf"SET {S}state{S} = 'running'",
    "settle": rf"SET {S}state{S} = 'succeeded'",
    "renew": rf"UPDATE.*SET {S}lease{S} =",
    "rescue": rf"{S}lease{S} <= .*ORDER BY {S}lease",
    "announce": r"INSERT INTO rowlock_program",
}
SECRET = "S3CR3T"


@pytest.fixture
def make(app_factory: Callable[..., App], database: Database) -> Callable[..., Live]:
    return lambda **job: Live(app_factory, database, **job)


@dataclass(frozen=True)
class Login:
    how: str
    token: str = SECRET


async def test_a_worker_does_not_start_what_still_runs_in_it(make: Callable[..., Live]) -> None:
    # contract: L3; case: C10
    """Its hold was lost, its sync handler goes on: this process leaves the record to others until that has ended."""
    live, go, starts = make(workers=3), threading.Event(), list[int]()

    @live.jobs.job(max_attempts=9, timeout=60, name="deaf")
    def deaf(ctx: Context) -> None:
        starts.append(ctx.attempt)
        if len(starts) == 1:
            go.wait(20)

    async with live.worker():
        done = deaf.enqueue()
        await wait_until_async(lambda: starts)
        live.change(done, state="pending", token=None, lease=None)  # what a rescue does
        await wait_until_async(lambda: live.told("lost"))
        await wait_until_async(lambda: [event.outcome for event in live.told("settled")][:1] == ["returned"])
        assert starts == [1]  # taken, and given back unspent
        assert live.row(done).attempt == 1
        go.set()
        await wait_until_async(lambda: len(starts) == 2)
        record = await live.ended(done)
    assert starts == [1, 2]
    assert record.state == "succeeded"


@pytest.mark.parametrize("what", ["deadlock", "lock wait"])
async def test_a_deadlock_at_each_statement_under_load_costs_no_record_and_no_loop(
    make: Callable[..., Live], what: str, dialect: str, caplog: pytest.LogCaptureFixture
) -> None:
    # contract: K2, C4, L1; case: C33
    """Two workers, two callers that enqueue with keys in opposite orders, and each statement fails once."""
    first, second = make(workers=8, lease_ms=3_000), make(workers=8, lease_ms=1_500)
    runs, lock = Counter[int](), threading.Lock()
    failed: dict[str, list[str]] = {}

    async def count(ctx: Context) -> None:
        with lock:
            runs[ctx.id] += 1
            is_first = len(runs) == 1
        if is_first and dialect != "sqlite":  # in work until its renewal failed; there a lease is long (L5)
            await wait_until_async(lambda: failed["renew"])

    for live in (first, second):
        job = live.jobs.job(max_attempts=1, timeout=20, name="count")(count)
    made = list[int]()

    def enqueue(step: int) -> None:
        for n in range(4):
            keys = [f"{n}-{k}" for k in range(15)][::step]
            made.extend(each.id for each in job.enqueue_many([(None, {"key": key}) for key in keys]) if each.created)
            made.extend(each.id for each in job.enqueue_many([None] * 15))

    with ExitStack() as failures, caplog.at_level(logging.INFO, "rowlock"):
        for name, pattern in STATEMENTS.items():
            failed[name] = failures.enter_context(
                failing(sa.Engine, re.compile(pattern, re.DOTALL).search, lambda: database_error(what), times=1)
            )
        async with first.worker(), second.worker():
            await asyncio.gather(asyncio.to_thread(enqueue, 1), asyncio.to_thread(enqueue, -1))
            await wait_until_async(lambda: {row.state for row in first.rows()} == {"succeeded"})
            counted = sum(
                live.app.metrics()["rowlock_loop_failures"].value() for live in (first, second)
            )  # retries can be counted
    assert counted >= 2
    assert [name for name, statements in failed.items() if not statements] == (["renew"] if dialect == "sqlite" else [])
    assert runs == dict.fromkeys(made, 1)
    assert {row.attempt for row in first.rows()} == {1}
    assert "ended by a defect" not in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_a_secret_argument_shows_nowhere_on_any_way_of_a_record(
    make: Callable[..., Live], caplog: pytest.LogCaptureFixture
) -> None:
    # contract: S6; case: C64
    """What is stored, logged at any level, told in events, and answered to operators: cancelled, released, rescued."""
    live, started = make(workers=8, runtime={"shutdown_ms": 100}), Counter[str]()
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "sqlalchemy.engine")

    @live.jobs.job(max_attempts=2, timeout=30, name="task")
    async def task(input: Login, ctx: Context) -> None:
        started[input.how] += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            assert ctx.stop_reason in {StopReason.SHUTDOWN, StopReason.CANCELLED, StopReason.LOST}
            raise ValueError(input.token) from None

    made = {how: task.enqueue(Login(how), key=how, headers={"trace": "1"}) for how in ("shutdown", "cancel", "lost")}
    waiting = task.enqueue(Login("waits"), delay=3_600)
    dead = task.enqueue(Login("dead"))
    past = live.store.clock.host_now()
    live.change(dead, state="running", token="t", lease=past, claimed_at=past, attempt=2)
    async with live.worker():
        await wait_until_async(lambda: started.keys() == made.keys())
        live.app.records.cancel(made["cancel"].id)
        live.app.records.cancel(waiting.id)
        live.change(made["lost"], token="another's")
        await live.ended(made["cancel"])
        await live.ended(dead)
        await wait_until_async(lambda: live.told("lost"))
    ends = {row.id: row.state for row in live.rows()}
    assert ends[made["shutdown"].id] == "pending"
    assert ends[made["cancel"].id] == ends[waiting.id] == "cancelled"
    assert ends[dead.id] == "dead"
    records = live.app.records
    seen = [live.events, live.app.health(), live.app.metrics(), records.counts(), live.jobs.jobs, made]
    seen += [records.get(each) for each in ends] + [records.explain(each) for each in ends]
    seen += [records.list(), live.app.audit.list() if hasattr(live.app.audit, "list") else None]
    assert SECRET not in f"{seen}{[str(each) for each in seen]}"
    for row in live.rows():
        assert SECRET not in repr({name: value for name, value in row._asdict().items() if name != "payload"})
    for record in caplog.records:
        assert SECRET not in f"{record.getMessage()}{record.args!r}{record.exc_text}{record.__dict__!r}", record.name
    await live.app.aclose()
