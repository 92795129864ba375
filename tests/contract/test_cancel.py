"""Cancelling what a live worker has in work: what the handler is told, and what the record ends as (O4, R7)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from rowlock import Ack, App, Context, Dead, Drop, Retry, Snooze, State, StopReason
from support.databases import Database
from support.jobtable import failing
from support.live import Live
from support.story import all_on_sqlite
from support.waiting import Signals, wait_until, wait_until_async

CANCELLED = ("cancelled", "cancelled", None, None)


@pytest.fixture
def make(app_factory: Callable[..., App], database: Database) -> Callable[..., Live]:
    return lambda **job: Live(app_factory, database, **job)


def end(live: Live, which: Any) -> tuple[Any, ...]:
    row = live.row(which)
    return row.state, row.error_category, row.error_class, row.error_summary


def answer(way: str) -> Any:
    match way:
        case "raises":
            raise ValueError
        case "retries":
            raise Retry
        case "snoozes":
            raise Snooze(1)
        case "returns a retry":
            return Retry(after=1)
        case "returns nonsense":
            return 7
        case "returns" | "ignores it":
            return None
        case "acks":
            return Ack()
        case "drops":
            raise Drop
        case _:
            return Dead("no good")


# --- what is in work --------------------------------------------------------------------------------------------------


@all_on_sqlite("way", ["raises", "retries", "snoozes", "returns a retry", "returns nonsense", "says nothing"])
async def test_an_async_handler_is_cancelled_at_its_next_await_and_knows_why(
    make: Callable[..., Live], way: str, caplog: pytest.LogCaptureFixture
) -> None:
    # contract: O4, R7; case: C71
    live, signals = make(), Signals()

    @live.jobs.job(max_attempts=3, timeout=60, name="job")
    async def job(ctx: Context) -> Ack | Dead | Retry | None:
        signals["runs"].set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            signals["told"].set((ctx.stopping, ctx.stop_reason))
            if way == "says nothing":
                raise
        await asyncio.sleep(0)  # it is cancelled once: it may clean up
        signals["cleaned"].set()
        return answer(way)

    failures: list[BaseException] = []
    live.app.on_failure(lambda error, _ctx: failures.append(error))
    async with live.worker():
        done = job.enqueue(key="k")
        await signals["runs"].wait_async()
        assert await live.app.records.acancel(done.id) is State.RUNNING
        assert await signals["told"].wait_async() == (True, StopReason.CANCELLED)
        await live.ended(done)
        other = job.enqueue(key="k")  # the key is free, and the worker serves on
        assert other.created
        await live.app.records.acancel(other.id)
        await live.ended(other)
    assert end(live, done) == CANCELLED
    assert live.row(done).attempt == 1
    assert signals["cleaned"].is_set == (way != "says nothing")
    assert [(event.id, event.outcome) for event in live.told("settled")][:1] == [(done.id, "cancelled")]
    assert failures == []
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("kind", ["async", "sync"])
@all_on_sqlite("way", ["returns", "acks", "drops", "is dead"])
async def test_work_that_completed_all_the_same_is_what_it_says(
    make: Callable[..., Live], kind: str, way: str, caplog: pytest.LogCaptureFixture
) -> None:
    # contract: O4; case: C71
    live, signals = make(), Signals()

    async def task(ctx: Context) -> Ack | Dead | Retry | None:
        signals["runs"].set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return answer(way)

    def thread(ctx: Context) -> Ack | Dead | Retry | None:
        signals["runs"].set()
        wait_until(lambda: ctx.stopping)
        return answer(way)

    job: Any = live.jobs.job(max_attempts=3, timeout=60, name="job")(task if kind == "async" else thread)
    async with live.worker():
        done = job.enqueue()
        await signals["runs"].wait_async()
        await live.app.records.acancel(done.id)
        await live.ended(done)
    state, category, _, summary = end(live, done)
    assert (state, category, summary) == (
        ("dead", "rejected", "no good") if way == "is dead" else ("succeeded", None, None)
    )
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@all_on_sqlite("way", ["raises", "retries", "ignores it"])
async def test_a_sync_handler_sees_it_on_its_context(make: Callable[..., Live], way: str) -> None:
    # contract: O4, R7
    live, signals = make(), Signals()

    @live.jobs.job(max_attempts=3, timeout=60, name="job")
    def job(ctx: Context) -> Ack | Dead | Retry | None:
        signals["runs"].set()
        wait_until(lambda: ctx.stopping)
        signals["told"].set(ctx.stop_reason)
        return answer(way)

    async with live.worker():
        done = job.enqueue()
        await signals["runs"].wait_async()
        await live.app.records.acancel(done.id)
        await live.ended(done)
    assert signals["told"].value is StopReason.CANCELLED
    assert live.row(done).state == ("succeeded" if way == "ignores it" else "cancelled")


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_a_handler_that_goes_on_past_its_time_is_cancelled_not_timed_out(
    make: Callable[..., Live], kind: str
) -> None:
    # contract: O4, R3; case: C68
    live, signals = make(lease_ms=60_000), Signals()

    async def task() -> None:
        signals["runs"].set()
        while not signals["end"].is_set:
            try:
                await wait_until_async(lambda: signals["end"].is_set)
            except asyncio.CancelledError:
                signals["told"].set()

    def thread() -> None:
        signals["runs"].set()
        signals["end"].wait()

    job: Any = live.jobs.job(max_attempts=3, timeout=1, overrun=0.05, name="job")(task if kind == "async" else thread)
    async with live.worker():
        done = job.enqueue()
        await signals["runs"].wait_async()
        await live.app.records.acancel(done.id)
        await live.ended(done)
        assert end(live, done) == CANCELLED
        signals["end"].set()
    assert end(live, done) == CANCELLED


async def test_a_cancelled_record_is_not_handed_back_at_a_shutdown(make: Callable[..., Live]) -> None:
    # contract: O4, M6
    live, signals = make(runtime={"shutdown_ms": 50}), Signals()

    @live.jobs.job(max_attempts=3, timeout=60, name="job")
    async def job(ctx: Context) -> None:
        signals["runs"].set()
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                signals["told"].set(ctx.stop_reason)
                if signals["again"].is_set:
                    raise
                signals["again"].set()

    async with live.worker():
        done = job.enqueue()
        await signals["runs"].wait_async()
        await live.app.records.acancel(done.id)
        await signals["again"].wait_async()
    assert signals["told"].value is StopReason.CANCELLED  # the first reason stays
    assert end(live, done) == CANCELLED


async def test_it_can_be_cancelled_during_a_drain_too(make: Callable[..., Live]) -> None:
    # contract: O4, M6
    live, signals = make(), Signals()

    @live.jobs.job(max_attempts=3, timeout=60, name="job")
    async def job(ctx: Context) -> None:
        signals["runs"].set()
        await wait_until_async(lambda: ctx.stopping)
        signals["drains"].set()
        await asyncio.Event().wait()

    async def cancels() -> None:
        await signals["drains"].wait_async()
        await live.app.records.acancel(done.id)

    async with live.worker():
        done = job.enqueue()
        await signals["runs"].wait_async()
        cancelling = asyncio.create_task(cancels())
    await cancelling
    assert end(live, done) == CANCELLED


# --- between attempts -------------------------------------------------------------------------------------------------


async def test_a_cancel_between_the_handlers_end_and_its_settlement(make: Callable[..., Live]) -> None:
    # contract: O4; case: C71
    live = make()

    @live.jobs.job(max_attempts=3, timeout=60, name="job")
    async def job(ctx: Context) -> None:
        raise ValueError

    @live.app.after_attempt
    def cancel(ctx: Context) -> None:
        live.app.records.cancel(ctx.id)

    async with live.worker():
        done = job.enqueue()
        await live.ended(done)
    assert end(live, done) == CANCELLED
    assert [(event.id, event.outcome) for event in live.told("settled")] == [(done.id, "cancelled")]


@pytest.fixture
def retried(make: Callable[..., Live]) -> tuple[Live, list[int]]:
    """Two records as they are when they were settled as retries just before their cancels: one due, one not yet."""
    live = make()

    @live.jobs.job(max_attempts=3, timeout=60, name="job")
    async def job(ctx: Context) -> None:
        runs.append(ctx.id)

    runs: list[int] = []
    live.app.migrate()
    due, later = job.enqueue(), job.enqueue(delay=3_600)
    with live.store.engine().connect() as connection:
        for done in (due, later):
            live.store.dialect.note_cancels(connection, live.store, [done.id], "ada")
    return live, runs


async def test_what_came_back_to_the_queue_before_its_cancel_is_never_run(
    retried: tuple[Live, list[int]], make: Callable[..., Live]
) -> None:
    # contract: O4
    live, runs = retried
    due, later = (row.id for row in live.rows())
    async with live.worker():
        await live.ended(due)
        await live.ended(later)
    assert runs == []
    assert [end(live, id_) for id_ in (due, later)] == [CANCELLED] * 2
    assert {(event.id, event.outcome) for event in live.told("settled")} == {(due, "cancelled"), (later, "cancelled")}
    assert [live.row(id_).attempt for id_ in (due, later)] == [0, 0]
    assert not live.told("claimed")


async def test_a_claim_settles_it_where_no_other_step_came_first(
    retried: tuple[Live, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # contract: O4, C4
    live, runs = retried
    due, later = (row.id for row in live.rows())

    async def nothing(*_: Any) -> int:
        return 0

    monkeypatch.setattr("rowlock.runtime.rescuer.Rescuer.run_once", nothing)
    async with live.worker():
        await live.ended(due)
    assert runs == []
    assert [(*end(live, id_), live.row(id_).attempt) for id_ in (due, later)] == [
        (*CANCELLED, 0),
        ("pending", None, None, None, 0),
    ]
    assert not live.told("claimed")


async def test_a_cancel_of_an_earlier_life_does_not_hit_the_next(make: Callable[..., Live]) -> None:
    # contract: O4, O2
    live, signals = make(), Signals()
    fails = True

    @live.jobs.job(max_attempts=1, timeout=60, name="job")
    async def job(ctx: Context) -> Dead | None:
        signals["runs"].set()
        if fails:
            await asyncio.Event().wait()
        return None

    async with live.worker():
        done = job.enqueue()
        await signals["runs"].wait_async()
        live.change(done, state="dead", lease=None, error_category="rejected")
        with live.store.engine().connect() as connection:  # it came too late
            live.store.dialect.note_cancels(connection, live.store, [done.id], None)
        fails = False
        live.app.records.replay(done.id)
        assert (await live.ended(done)).state is State.SUCCEEDED


async def test_nothing_is_read_while_nothing_is_in_work(make: Callable[..., Live], database: Database) -> None:
    # contract: K3, O4
    live, signals, sent = make(), Signals(), list[str]()

    @live.jobs.job(max_attempts=1, timeout=60, name="job")
    async def job() -> None:
        await signals["end"].wait_async()

    def note(_connection: sa.Connection, _cursor: Any, statement: str, *_: Any) -> None:
        if "rowlock_cancel WHERE id" in statement and "ORDER" not in statement:
            sent.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        async with live.worker():
            beat = live.app.health()["loops"]["canceller"]["beat"]
            await wait_until_async(lambda: live.app.health()["loops"]["canceller"]["beat"] not in {beat, None})
            assert sent == []
            job.enqueue()
            await wait_until_async(lambda: len(sent) > 2)
            signals["end"].set()
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)


async def test_a_failing_look_is_tried_again(make: Callable[..., Live]) -> None:
    # contract: O4, K2, H1
    live, signals = make(), Signals()

    @live.jobs.job(max_attempts=1, timeout=60, name="job")
    async def job() -> None:
        signals["runs"].set()
        await asyncio.Event().wait()

    def is_look(statement: str) -> bool:
        return "rowlock_cancel WHERE id" in statement and "ORDER" not in statement

    async with live.worker():
        with failing(sa.Engine, is_look, lambda: sa.exc.OperationalError("", {}, OSError("gone")), 2) as failed:
            done = job.enqueue()
            await signals["runs"].wait_async()
            await live.app.records.acancel(done.id)
            await live.ended(done)
    assert len(failed) == 2
    assert end(live, done) == CANCELLED
