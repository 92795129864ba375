"""One attempt, with a settler that only keeps what it is given. contract: R1, R3, R4, R6, S4, S6, H2"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from rowlock import Ack, Context, Dead, Drop, Jobs, Retry, SafeError, Snooze
from rowlock.model.context import StopReason
from rowlock.model.outcome import Category, State
from rowlock.runtime import faults, isolate
from support.scripted import Lane
from support.waiting import wait_until_async


@dataclass(frozen=True)
class Input:
    n: int


@contextmanager
def contained() -> Iterator[None]:
    loop = asyncio.get_running_loop()
    isolate.install(loop)
    try:
        yield
    finally:
        isolate.uninstall(loop)


async def test_a_sync_and_an_async_handler_succeed_and_free_their_slots() -> None:
    jobs, threads = Jobs(), []

    @jobs.job(max_attempts=1, timeout=5)
    async def in_loop(input: Input) -> None:
        threads.append(threading.current_thread())

    @jobs.job(max_attempts=1, timeout=5)
    def in_thread(ctx: Context, input: Input) -> None:
        threads.append(threading.current_thread())

    lane = Lane(jobs)
    for job in (in_loop, in_thread):
        assert (await lane.run(job, '{"n":1}')).state is State.SUCCEEDED
    assert threads[0] is threading.current_thread()
    assert threads[1].name.startswith("rowlock-job")
    assert not lane.claimer.running
    lane.close()


@pytest.mark.parametrize("way", ["returned", "raised"])
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_outcomes_mean_the_same_returned_or_raised(way: str, kind: str) -> None:
    """contract: R6"""
    jobs, say = Jobs(), list[Any]()

    def answer() -> Any:
        if way == "raised":
            raise say[0]
        return say[0]

    @jobs.job(max_attempts=2, timeout=5)
    async def in_loop() -> Retry | Snooze | Dead | Drop | Ack | None:
        return answer()

    @jobs.job(max_attempts=2, timeout=5)
    def in_thread() -> Retry | Snooze | Dead | Drop | Ack | None:
        return answer()

    lane = Lane(jobs)
    got = []
    for said in (Ack(), Drop(), Retry(after=3), Snooze(60), Dead("no")):
        say[:] = [said]
        settlement = await lane.run(in_loop if kind == "async" else in_thread)
        got.append((settlement.outcome, settlement.state, settlement.delay_ms, settlement.refund))
    assert got == [
        ("ack", State.SUCCEEDED, None, False),
        ("drop", State.SUCCEEDED, None, False),
        ("retry", State.PENDING, 3_000, False),
        ("snooze", State.PENDING, 60_000, True),
        ("dead", State.DEAD, None, False),
    ]
    lane.close()


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
@pytest.mark.parametrize("kind", ["async", "sync"])
async def test_whatever_a_handler_raises_is_a_failed_attempt(error: type[BaseException], kind: str) -> None:
    """contract: R4"""
    jobs = Jobs()

    @jobs.job(max_attempts=2, timeout=5)
    async def in_loop() -> None:
        raise error

    @jobs.job(max_attempts=2, timeout=5)
    def in_thread() -> None:
        raise error

    lane = Lane(jobs)
    settlement = await lane.run(in_loop if kind == "async" else in_thread)
    assert (settlement.state, settlement.category, settlement.delay_ms) == (State.PENDING, Category.FAILED, 1_000)
    assert settlement.error_class is not None
    assert settlement.error_class.endswith(error.__name__)
    lane.close()


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit])
async def test_a_task_that_a_handler_started_can_not_end_the_loop(error: type[BaseException]) -> None:
    """contract: R4"""
    jobs, told = Jobs(), list[Any]()

    async def stray() -> None:
        raise error

    @jobs.job(max_attempts=1, timeout=5)
    async def starts_a_task() -> None:
        task = asyncio.create_task(stray())
        await asyncio.wait({task})

    lane = Lane(jobs)
    lane.loop.set_exception_handler(lambda _loop, context: told.append(context))
    with contained():
        settlement = await lane.run(starts_a_task)
    assert (settlement.state, settlement.error_class) == (State.DEAD, error.__name__)


async def test_a_cancel_that_the_library_did_not_send_is_a_failure() -> None:
    """contract: R4"""
    jobs = Jobs()

    @jobs.job(max_attempts=2, timeout=5)
    async def awaits_a_cancelled_task() -> None:
        task = asyncio.create_task(asyncio.Event().wait())
        task.cancel()
        await task

    lane = Lane(jobs)
    assert (await lane.run(awaits_a_cancelled_task)).category is Category.FAILED


async def test_the_deadline_cancels_and_says_why_before() -> None:
    """contract: R3, R7"""
    jobs, reasons = Jobs(), list[Any]()

    @jobs.job(max_attempts=1, timeout=0.02)
    async def slow(ctx: Context) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            reasons.append((ctx.stopping, ctx.stop_reason))

    lane = Lane(jobs)
    settlement = await lane.run(slow)
    assert (settlement.state, settlement.category) == (State.DEAD, Category.TIMED_OUT)
    assert reasons == [(True, StopReason.DEADLINE)]


async def test_what_a_late_handler_returns_does_not_count() -> None:
    """contract: R3"""
    jobs = Jobs()

    @jobs.job(max_attempts=1, timeout=0.02)
    async def swallows() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    lane = Lane(jobs)
    assert (await lane.run(swallows)).category is Category.TIMED_OUT


async def test_a_handler_that_blocks_the_loop_past_its_deadline_is_timed_out() -> None:
    """contract: R3"""
    jobs, blocked = Jobs(), threading.Event()

    @jobs.job(max_attempts=1, timeout=0.02)
    async def blocks() -> None:
        blocked.wait(0.05)

    lane = Lane(jobs)
    assert (await lane.run(blocks)).category is Category.TIMED_OUT


async def test_after_the_overrun_it_is_settled_while_its_slot_stays_taken(caplog: pytest.LogCaptureFixture) -> None:
    """contract: R3, H1"""
    jobs, go_on = Jobs(), threading.Event()

    @jobs.job(max_attempts=2, timeout=0.02, overrun=0.02)
    def hangs() -> None:
        go_on.wait(20)

    lane = Lane(jobs, slots=1)
    lane.start(lane.record(hangs))
    await wait_until_async(lambda: lane.settler.given)
    assert lane.settler.given[0].category is Category.TIMED_OUT
    assert len(lane.claimer.running) == 1
    assert len(lane.stuck) == 1, "every slot of the queue is held by a handler past its overrun"
    with caplog.at_level(logging.WARNING, "rowlock"):
        go_on.set()
        await lane.ended()
    assert len(lane.settler.given) == 1, "what it returned is dropped"
    assert sum("is dropped" in line.getMessage() for line in caplog.records) == 1
    lane.close()


async def test_a_lost_hold_cancels_and_drops_what_is_done_afterwards() -> None:
    """contract: L3"""
    jobs, started, reasons = Jobs(), asyncio.Event(), list[Any]()

    @jobs.job(max_attempts=2, timeout=5)
    async def works(ctx: Context) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            reasons.append(ctx.stop_reason)

    lane = Lane(jobs)
    [attempt] = lane.start(lane.record(works))
    await started.wait()
    attempt.say_lost_early()
    attempt.lose()
    await lane.ended()
    assert reasons == [StopReason.LOST]
    assert lane.settler.given == []
    assert lane.lost == 1


async def test_a_lost_record_is_not_started_beside_its_first_attempt_in_this_process() -> None:
    """contract: L3"""
    jobs, go_on = Jobs(), threading.Event()

    @jobs.job(max_attempts=5, timeout=5)
    def works() -> None:
        go_on.wait(20)

    lane = Lane(jobs)
    record = lane.record(works)
    [attempt] = lane.start(record)
    attempt.lose()
    lane.start(record._replace(token="another", attempt=2))
    [given] = lane.settler.given
    assert (given.outcome, given.refund, given.token) == ("returned", True, "another")
    assert given.delay_ms, "not at once, or it would come straight back"
    go_on.set()
    await lane.ended()
    lane.start(record._replace(token="third", attempt=2))
    await lane.ended()
    assert lane.settler.outcomes() == ["returned", "ack"]
    lane.close()


async def test_a_record_that_can_not_be_run_is_blocked_and_keeps_its_attempt() -> None:
    """contract: S4, W5"""
    jobs = Jobs()

    @jobs.job(max_attempts=2, timeout=5)
    async def takes(input: Input) -> None: ...

    lane = Lane(jobs)
    cases = {
        Category.UNKNOWN_JOB: await lane.run(takes, job="another"),
        Category.SCHEMA_MISMATCH: await lane.run(takes, fingerprint="f" * 64),
        Category.CORRUPT_PAYLOAD: await lane.run(takes, '{"n":"one"}'),
        Category.INVALID_POLICY: await lane.run(takes, '{"n":1}', timeout_ms=4_000_000),
    }
    for category, settlement in cases.items():
        assert (settlement.state, settlement.category, settlement.refund) == (State.BLOCKED, category, True)
    assert (await lane.run(takes, "[" * 100_000)).category is Category.CORRUPT_PAYLOAD


async def test_what_an_upgrade_function_raises_is_a_failed_attempt() -> None:
    """contract: R4, J10"""
    jobs = Jobs()

    @dataclass(frozen=True)
    class Old:
        text: str

    def upgrade(old: Old) -> Input:
        raise SystemExit(old.text)

    @jobs.job(max_attempts=2, timeout=5, accepts=((Old, upgrade),))
    async def takes(input: Input) -> None: ...

    lane = Lane(jobs)
    settlement = await lane.run(takes, '{"text":"x"}', fingerprint=takes.fingerprints[1])
    assert (settlement.category, settlement.error_class) == (Category.FAILED, "SystemExit")


async def test_the_log_has_class_and_frames_and_never_the_text(caplog: pytest.LogCaptureFixture) -> None:
    """contract: S6"""
    jobs, live = Jobs(), list[Any]()

    @jobs.job(max_attempts=1, timeout=5)
    async def fails(input: Input) -> None:
        raise ValueError(f"secret {input.n}")

    @jobs.job(max_attempts=1, timeout=5)
    async def fails_safely() -> None:
        raise SafeError("the upstream said no\0")

    lane = Lane(jobs)
    lane.floor.failure = (lambda error, ctx: live.append((error, ctx.id)),)
    with caplog.at_level(logging.DEBUG):
        settlement = await lane.run(fails, '{"n":4711}')
        safe = await lane.run(fails_safely)
    assert (settlement.error_class, settlement.summary) == ("ValueError", None)
    assert safe.summary == "the upstream said no\\x00"
    [line] = [each.getMessage() for each in caplog.records if "ValueError" in each.getMessage()]
    assert f"{__file__}:" in line
    assert ":fails" in line
    assert "4711" not in caplog.text
    assert str(live[0][0]) == "secret 4711", "the hook gets the live exception"


async def test_hooks_run_on_the_handlers_thread_and_never_fail_the_record() -> None:
    """contract: H2"""
    jobs, seen = Jobs(), list[Any]()

    @jobs.job(max_attempts=2, timeout=5)
    def works() -> None:
        seen.append(threading.get_ident())

    def note(ctx: Context) -> None:
        seen.append(threading.get_ident())
        raise ValueError(ctx.id)

    def leaves(ctx: Context) -> None:
        raise SystemExit(ctx.id)

    lane = Lane(jobs)
    lane.floor.before = lane.floor.after = (note,)
    assert (await lane.run(works)).outcome == "ack"
    assert len(seen) == 3
    assert len(set(seen)) == 1
    lane.floor.before = (leaves,)
    assert (await lane.run(works)).category is Category.FAILED, "R4 counts what would have ended the process"
    lane.close()


async def test_a_handover_that_fails_gives_every_record_back_unspent() -> None:
    """contract: C3"""
    jobs = Jobs()

    @jobs.job(max_attempts=2, timeout=5)
    async def works() -> None: ...

    lane = Lane(jobs)
    faults.arm("claimed", RuntimeError("armed"))
    assert not lane.claimer.hand_over([lane.record(works) for _ in range(3)], lane.loop.time())
    assert lane.settler.outcomes() == ["returned"] * 3
    assert all(each.refund and each.delay_ms is None for each in lane.settler.given)
    assert not lane.claimer.running


async def test_what_has_not_started_when_the_worker_drains_goes_back_unspent() -> None:
    """contract: M6"""
    jobs, ran = Jobs(), list[Any]()

    @jobs.job(max_attempts=2, timeout=5)
    async def in_loop() -> None:
        ran.append(1)

    lane = Lane(jobs)
    lane.start(lane.record(in_loop))  # its task has not taken its first step
    lane.floor.draining = True
    lane.start(lane.record(in_loop))
    await lane.ended()
    assert ran == []
    assert lane.settler.outcomes() == ["returned", "returned"]
    assert not any(each.handed_back for each in lane.settler.given), "they were not running"


async def test_at_the_end_of_the_shutdown_running_attempts_are_handed_back() -> None:
    """contract: M6"""
    jobs, reasons, release = Jobs(), list[Any](), threading.Event()

    @jobs.job(max_attempts=2, timeout=5)
    async def ends_when_cancelled(ctx: Context) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            reasons.append(ctx.stop_reason)

    @jobs.job(max_attempts=2, timeout=5)
    async def raises_when_cancelled() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError from None

    @jobs.job(max_attempts=2, timeout=5)
    async def completes_when_cancelled() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    @jobs.job(max_attempts=2, timeout=5)
    def looks_at_the_context(ctx: Context) -> None:
        while ctx.stop_reason is None:
            release.wait(0.001)
        raise ValueError

    lane = Lane(jobs)
    every = (ends_when_cancelled, raises_when_cancelled, completes_when_cancelled, looks_at_the_context)
    attempts = lane.start(*(lane.record(job) for job in every))
    await wait_until_async(lambda: all(attempt.begun is not None for attempt in attempts))
    lane.floor.draining = True
    lane.claimer.drain()
    assert attempts[0].context_made.stopping, "they see that the worker stops"
    assert attempts[0].context_made.stop_reason is None
    lane.claimer.cut_off()
    await lane.ended()
    by_id = {each.id: each for each in lane.settler.given}
    handed = [by_id[attempt.id].handed_back for attempt in attempts]
    assert handed == [True, True, False, True]
    assert by_id[attempts[2].id].outcome == "ack"
    assert reasons == [StopReason.SHUTDOWN]
    lane.close()
