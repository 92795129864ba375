"""Attempts of a live worker: time, exceptions that are none, and what a handler is told (R1, R3, R4, R7, H2)."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rowlock import Ack, App, Backoff, Context, Snooze, StopReason
from rowlock.runtime.worker import Worker
from support.databases import Database
from support.live import Live
from support.waiting import Signals, wait_until_async


@dataclass(frozen=True)
class Letter:
    to: str


@pytest.fixture
def make(app_factory: Callable[..., App], database: Database) -> Callable[..., Live]:
    return lambda **job: Live(app_factory, database, **job)


# --- R1: jitter -------------------------------------------------------------------------------------------------------


async def test_jitter_shortens_the_wait_by_at_most_a_tenth(make: Callable[..., Live]) -> None:
    # contract: R1
    live = make()

    @live.jobs.job(max_attempts=5, timeout=30, backoff=Backoff(base=1_000, cap=1_000))
    async def fail() -> None:
        raise ValueError

    dice = random.Random(7)
    samples = [0.0, 1.0, *(dice.random() for _ in range(10))]
    ids = [done.id for done in fail.enqueue_many([None] * len(samples))]
    given = iter(samples)
    before = live.store.clock.host_now()
    assert await Worker(live.app, jitter=lambda: next(given)).drain(100) == len(samples)
    after = live.store.clock.host_now()
    for id_, sample in zip(ids, samples, strict=True):
        wait = timedelta(seconds=1_000 * (1 - 0.1 * sample))
        slack = timedelta(seconds=1)  # two clocks, of this host
        assert before + wait - slack <= live.row(id_).run_at <= after + wait + slack
    await live.app.aclose()


async def test_two_workers_of_one_kind_do_not_retry_in_step(make: Callable[..., Live]) -> None:
    # contract: R1
    live = make()

    @live.jobs.job(max_attempts=5, timeout=30, backoff=Backoff(base=10_000, cap=10_000))
    async def fail() -> None:
        raise ValueError

    fail.enqueue_many([None] * 30)
    async with live.worker():
        await wait_until_async(lambda: len(live.told("settled")) == 30)
    waits = [(row.run_at - row.claimed_at).total_seconds() for row in live.rows()]
    assert min(waits) >= 8_999
    assert max(waits) <= 10_010
    assert max(waits) - min(waits) > 300


# --- R3: time ---------------------------------------------------------------------------------------------------------


async def test_at_the_deadline_an_async_handler_is_told_why_and_cancelled(make: Callable[..., Live]) -> None:
    # contract: R3
    live, seen = make(), list[Any]()

    @live.jobs.job(max_attempts=2, timeout=0.1)
    async def slow(ctx: Context) -> None:
        seen.append((ctx.attempt, "start"))
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append((ctx.stopping, ctx.stop_reason))
            raise
        finally:
            await asyncio.sleep(0)  # cleaning up may await
            seen.append((ctx.attempt, "end"))

    async with live.worker():
        record = await live.ended(slow.enqueue())
    told = (True, StopReason.DEADLINE)
    assert seen == [(1, "start"), told, (1, "end"), (2, "start"), told, (2, "end")]
    assert (record.state, record.attempt, record.error_category) == ("dead", 2, "timed_out")
    assert [event.outcome for event in live.told("settled")] == ["timed_out", "timed_out"]


async def test_a_late_success_is_a_timeout_whatever_the_handler_says(make: Callable[..., Live]) -> None:
    # contract: R3
    live, waits = make(), Signals()

    @live.jobs.job(max_attempts=1, timeout=0.1, name="swallows")
    async def swallows() -> Ack:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return Ack()

    @live.jobs.job(max_attempts=1, timeout=0.1, name="snoozes")
    async def snoozes() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise Snooze(1)

    @live.jobs.job(max_attempts=1, timeout=0.1, name="thread")
    def thread(ctx: Context) -> Ack:
        while not ctx.stopping:
            waits["never"]._event.wait(0.01)
        assert ctx.stop_reason is StopReason.DEADLINE
        return Ack()

    async with live.worker():
        for job in (swallows, snoozes, thread):
            record = await live.ended(job.enqueue())
            assert (record.state, record.error_category, record.attempt) == ("dead", "timed_out", 1), job.name
    assert [event.outcome for event in live.told("settled")] == ["timed_out"] * 3


@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_past_the_overrun_it_is_settled_while_the_lease_is_held_and_its_slot_taken(
    make: Callable[..., Live], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    # contract: R3
    live, signals, starts = make(workers=2), Signals(), list[int]()
    options: dict[str, Any] = {"max_attempts": 2, "timeout": 0.1, "overrun": 0.1, "backoff": Backoff(1_000, 1_000)}

    def thread(ctx: Context) -> None:
        starts.append(ctx.attempt)
        signals["let go"].wait()
        raise Snooze(1)  # dropped

    async def task(ctx: Context) -> None:
        starts.append(ctx.attempt)
        while not signals["let go"].is_set:
            try:
                await signals["let go"].wait_async()
            except asyncio.CancelledError:
                continue

    job = live.jobs.job(name="stubborn", **options)(task if kind == "async" else thread)  # type: ignore[arg-type]

    @live.jobs.job(max_attempts=1, timeout=30, name="other")
    async def other() -> None:
        signals["other ran"].set()
        await signals["let go"].wait_async()

    async with live.worker():
        first = job.enqueue()
        record = await live.until(first, lambda record: record.error_category)
        assert (record.state, record.error_category, record.attempt) == ("pending", "timed_out", 1)
        assert not live.told("lost")
        assert not signals["let go"].is_set
        await wait_until_async(lambda: live.app.health()["counters"]["settled"] == {"timed_out": 1})
        # One slot is still taken: of two more records only one starts.
        second, third = other.enqueue(), other.enqueue()
        await signals["other ran"].wait_async()
        await wait_until_async(lambda: len(live.told("claimed")) == 2)
        assert {live.row(second).state, live.row(third).state} == {"running", "pending"}
        with caplog.at_level(logging.WARNING, "rowlock"):
            signals["let go"].set()
            await wait_until_async(lambda: len(live.told("claimed")) == 3)
            await live.ended(third)
        dropped = [line.getMessage() for line in caplog.records if "result is dropped" in line.getMessage()]
        assert len(dropped) == 1
        assert live.row(first).state == "pending"
    assert starts == [1]


# --- R4: what would end a loop or a process ---------------------------------------------------------------------------

EXITS = (SystemExit(3), KeyboardInterrupt(), GeneratorExit(), BaseException("S3CR3T"), asyncio.CancelledError())


def handlers_that_raise(error: BaseException) -> list[Any]:
    def sync() -> None:
        raise error

    async def plain() -> None:
        raise error

    async def later() -> None:
        await asyncio.sleep(0)
        raise error

    async def awaited_child() -> None:
        await asyncio.create_task(later())

    async def forgotten_child() -> None:
        task = asyncio.create_task(later())
        while not task.done():
            await asyncio.sleep(0)

    async def group() -> None:
        async with asyncio.TaskGroup() as children:
            children.create_task(later())

    handlers = [sync, plain, later]
    if not isinstance(error, asyncio.CancelledError):  # a child may well be cancelled
        handlers += [awaited_child, group]
        if isinstance(error, SystemExit | KeyboardInterrupt | GeneratorExit):
            handlers.append(forgotten_child)
    return handlers


async def test_nothing_that_a_handler_raises_ends_the_worker(make: Callable[..., Live]) -> None:
    # contract: R4
    live = make()
    expected: dict[int, str] = {}

    @live.jobs.job(max_attempts=1, timeout=30, name="behind")
    async def behind() -> None:
        await asyncio.sleep(0)

    jobs = [
        (live.jobs.job(max_attempts=1, timeout=30, name=f"{handler.__name__} {error!r}")(handler), error)
        for error in EXITS
        for handler in handlers_that_raise(error)
    ]
    async with live.worker():
        for job, error in jobs:
            expected[job.enqueue().id] = f"{job.name}: {error!r}"
        for id_, what in expected.items():
            record = await live.ended(id_)
            assert (record.state, record.error_category) == ("dead", "failed"), what
            assert record.error_summary is None
        assert (await live.ended(behind.enqueue())).state == "succeeded"
        assert live.app.health()["status"] == "ok"
    assert {event.outcome for event in live.told("settled")} == {"failed", "ack"}


async def test_a_cancellation_that_the_library_did_not_send_is_a_failure_of_the_job(make: Callable[..., Live]) -> None:
    # contract: R4
    live = make()

    async def cancels_itself() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    async def awaits_a_cancelled_one() -> None:
        task = asyncio.ensure_future(asyncio.Event().wait())
        asyncio.get_running_loop().call_soon(task.cancel)
        await task

    async def its_own_timeout() -> None:
        async with asyncio.timeout(0.001):
            await asyncio.Event().wait()

    async def caught_timeout() -> None:
        try:
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        except TimeoutError:
            await asyncio.sleep(0)

    failing = [
        live.jobs.job(max_attempts=1, timeout=30, name=handler.__name__)(handler)
        for handler in (cancels_itself, awaits_a_cancelled_one, its_own_timeout)
    ]
    fine = live.jobs.job(max_attempts=1, timeout=30, name="caught")(caught_timeout)
    async with live.worker():
        for job in failing:
            record = await live.ended(job.enqueue())
            assert (record.state, record.error_category) == ("dead", "failed"), job.name
        assert record.error_class == "TimeoutError"
        assert (await live.ended(fine.enqueue())).state == "succeeded"


async def test_hooks_that_fail_fail_no_record_and_end_nothing(
    make: Callable[..., Live], caplog: pytest.LogCaptureFixture
) -> None:
    # contract: H2, R4
    live, raised = make(), list[str]()
    wanted: dict[str, BaseException] = {}

    def trap(name: str) -> Callable[..., None]:
        def hook(*_: object) -> None:
            if (error := wanted.get(name)) is not None:
                raised.append(name)
                raise error

        return hook

    live.app.before_attempt(trap("before"))
    live.app.after_attempt(trap("after"))
    live.app.on_failure(trap("failure"))
    for event in ("claimed", "settled"):
        live.app.on(event)(trap(event))

    @live.jobs.job(max_attempts=1, timeout=30, name="fine")
    async def fine() -> None:
        pass

    @live.jobs.job(max_attempts=1, timeout=30, name="thread")
    def thread() -> None:
        pass

    @live.jobs.job(max_attempts=1, timeout=30, name="fails")
    async def fails() -> None:
        raise ValueError

    async with live.worker():
        for place in ("before", "after", "failure", "claimed", "settled"):
            wanted.clear()
            wanted[place] = ValueError("S3CR3T")
            for job in (fine, thread):
                assert (await live.ended(job.enqueue())).state == "succeeded", (place, job.name)
            assert (await live.ended(fails.enqueue())).error_class == "ValueError"
            wanted[place] = SystemExit(4)
            for job in (fine, thread):
                record = await live.ended(job.enqueue())
                # A hook around the attempt that wants the process to end is a failed attempt; a listener's is not.
                ends = place in {"before", "after"}
                assert (record.state, record.error_class) == (("dead", "SystemExit") if ends else ("succeeded", None))
        assert live.app.health()["status"] == "ok"
    assert set(raised) == {"before", "after", "failure", "claimed", "settled"}
    assert "S3CR3T" not in caplog.text


# --- R7: what a handler is told ---------------------------------------------------------------------------------------


async def test_the_context_says_what_the_record_is(make: Callable[..., Live]) -> None:
    # contract: R7
    live, seen = make(), list[Context]()

    async def task(input: Letter, ctx: Context) -> None:
        seen.append(ctx)
        if ctx.attempt == 1:
            raise ValueError

    def thread(ctx: Context, input: Letter) -> None:
        seen.append(ctx)
        if ctx.attempt == 1:
            raise ValueError

    for kind, handler in (("task", task), ("thread", thread)):
        seen.clear()
        job: Any = live.jobs.job(max_attempts=3, timeout=30, name=kind, aliases=(f"old {kind}",), queue="post")(handler)
        due = datetime(2026, 1, 1, 12, tzinfo=UTC)
        done = job.enqueue(Letter("a"), key="k", headers={"trace": "é"}, run_at=due)
        live.change(done, job=f"old {kind}", run_at=due)
        before = datetime.now(UTC)
        async with live.worker():
            await live.ended(done)
        first, second = seen
        assert (first.id, first.job, first.key, first.queue) == (done.id, kind, "k", "post")
        assert (first.attempt, second.attempt, first.max_attempts) == (1, 2, 3)
        assert dict(first.headers) == {"trace": "é"}
        assert first.run_at == due
        assert second.run_at > due
        assert before + timedelta(seconds=30) <= first.deadline <= datetime.now(UTC) + timedelta(seconds=30)
        assert (first.stopping, first.stop_reason) == (False, None)


async def test_hooks_and_handler_share_a_thread_or_a_task_and_a_context(make: Callable[..., Live]) -> None:
    # contract: H2; case: C23
    live, seen = make(), list[tuple[str, Any, Any, Any]]()

    def here() -> Any:
        try:
            return asyncio.current_task()
        except RuntimeError:
            return None

    def note(what: str, ctx: Context) -> None:
        seen.append((what, threading.get_ident(), here(), ctx))

    live.app.before_attempt(lambda ctx: note("before", ctx))
    live.app.after_attempt(lambda ctx: note("after", ctx))

    @live.app.on_failure
    def failed(exc: BaseException, ctx: Context) -> None:
        assert isinstance(exc, ZeroDivisionError)
        note("failure", ctx)

    @live.jobs.job(max_attempts=1, timeout=30, name="task")
    async def task(ctx: Context) -> None:
        note("handler", ctx)
        raise ZeroDivisionError

    @live.jobs.job(max_attempts=1, timeout=30, name="thread")
    def thread(ctx: Context) -> None:
        note("handler", ctx)
        raise ZeroDivisionError

    async with live.worker():
        for job in (task, thread):
            seen.clear()
            await live.ended(job.enqueue())
            assert [what for what, *_ in seen] == ["before", "handler", "after", "failure"], job.name
            assert len({(ident, current) for _, ident, current, _ in seen}) == 1
            assert len({id(ctx) for *_, ctx in seen}) == 1
            assert (seen[0][1] == threading.get_ident()) is (job is task)
            assert (seen[0][2] is None) is (job is thread)
