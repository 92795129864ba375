"""What the keeper renews, verifies and calls lost, with scripted answers of the database. contract: L3, L4"""

from __future__ import annotations

import asyncio
import threading
from time import monotonic
from typing import Any

from rowlock import Context, Jobs
from rowlock.model.context import StopReason
from rowlock.runtime import faults
from rowlock.runtime.keeper import Keeper, Kept
from rowlock.store.renew import Renewal
from support.scripted import Lane, ScriptedDatabase
from support.waiting import wait_until_async


def group() -> tuple[Jobs, Any, threading.Event]:
    jobs, go_on = Jobs(), threading.Event()

    @jobs.job(max_attempts=2, timeout=5)
    def works(ctx: Context) -> None:
        go_on.wait(20)

    return jobs, works, go_on


def all_renewed(_shape: Any, holds: Any) -> Renewal:
    return Renewal({hold.id for hold in holds}, set(), set())


def none_lost(_shape: Any, _pairs: Any) -> set[int]:
    return set()


class Holds:
    """Attempts in work whose holds are as old as the test says."""

    def __init__(self, **answers: Any) -> None:
        jobs, self.job, self.go_on = group()
        self.db = ScriptedDatabase(**({"renew": all_renewed, "verify_holds": none_lost} | answers))
        self.lane = Lane(jobs, db=self.db)
        self.kept = Kept(self.db, self.lane.guard("keeper"), self.lane.held, shortest_lease_s=60.0)  # type: ignore[arg-type]

    async def begin(self, *ages: float) -> list[Any]:
        attempts = self.lane.start(*(self.lane.record(self.job) for _ in ages))
        await wait_until_async(lambda: all(attempt.begun is not None for attempt in attempts))
        for attempt, age in zip(attempts, ages, strict=True):
            attempt.renewed_at = monotonic() - age
        return attempts

    async def end(self) -> None:
        self.go_on.set()
        await self.lane.ended()
        self.lane.close()


async def test_a_third_of_the_lease_is_renewed_set_wise_and_the_rest_verified_with_one_read() -> None:
    """contract: L4, L3"""
    holds = Holds()
    young, one, two, middle = await holds.begin(0.0, 25.0, 30.0, 10.0)
    assert await holds.kept.tick()
    [(_, renewed)] = holds.db.called("renew")
    assert [hold.id for hold in renewed] == [one.id, two.id]
    [(_, verified)] = holds.db.called("verify_holds")
    assert verified == [(middle.id, middle.token)]
    assert monotonic() - one.renewed_at < 1
    assert young.token in holds.lane.held
    await holds.end()


async def test_nothing_is_asked_when_nothing_is_held() -> None:
    """contract: K3"""
    holds = Holds()
    await holds.begin(0.0)
    assert not await holds.kept.tick()
    assert holds.db.calls == []
    await holds.end()


async def test_a_hold_that_the_database_does_not_confirm_is_told_at_once() -> None:
    """contract: L3"""
    holds = Holds(
        renew=lambda _shape, asked: Renewal(set(), {hold.id for hold in asked}, set()),
        verify_holds=lambda _shape, pairs: {id_ for id_, _ in pairs},
    )
    due, verified = await holds.begin(25.0, 5.0)
    due.context(), verified.context()
    await holds.kept.tick()
    for attempt in (due, verified):
        assert attempt.context_made.stop_reason is StopReason.LOST, "seen by the thread before the loop runs"
        await wait_until_async(lambda attempt=attempt: attempt.closed)
    assert holds.lane.lost == 2
    assert holds.lane.held == {}
    await holds.end()
    assert holds.lane.settler.given == []


async def test_a_lease_that_ran_out_here_is_lost_without_asking() -> None:
    """A process that was stopped, or cut off for longer than the lease. contract: L3"""
    holds = Holds()
    [attempt] = await holds.begin(60.0)
    await holds.kept.tick()
    assert holds.db.calls == []
    await wait_until_async(lambda: attempt.closed)
    await holds.end()


async def test_renewal_ends_at_the_deadline_and_overrun() -> None:
    """contract: L4"""
    holds = Holds()
    [attempt] = await holds.begin(25.0)
    attempt.limit = monotonic() - 0.001
    await holds.kept.tick()
    assert holds.db.called("renew") == []
    assert holds.db.called("verify_holds") != []
    await holds.end()


async def test_the_limit_counts_from_the_handlers_start() -> None:
    """contract: L4, R3"""
    holds = Holds()
    [attempt] = await holds.begin(0.0)
    assert attempt.limit == attempt.deadline + attempt.plan.overrun_s
    assert attempt.plan.overrun_s == 60.0, "one lease"
    await holds.end()


async def test_a_locked_row_is_renewed_singly_and_delays_no_other() -> None:
    """contract: L4"""
    unlocked = asyncio.Event()

    async def waits(_shape: Any, hold: Any) -> bool:
        await unlocked.wait()
        return True

    holds = Holds(renew=lambda _shape, asked: Renewal(set(), set(), {hold.id for hold in asked}), renew_one=waits)
    attempts = await holds.begin(25.0, 25.0, 25.0)
    await holds.kept.tick()
    await wait_until_async(lambda: len(holds.db.called("renew_one")) == 2)
    await holds.kept.tick()
    assert [len(asked) for _, asked in holds.db.called("renew")] == [3, 1], "the third is tried with the others"
    unlocked.set()
    await wait_until_async(lambda: not holds.kept.singles)
    assert sum(monotonic() - attempt.renewed_at < 20 for attempt in attempts) == 2
    await holds.end()


async def test_what_was_settled_while_the_answer_was_on_its_way_is_not_lost() -> None:
    """contract: L3"""
    holds = Holds()
    [attempt] = await holds.begin(5.0)

    def settled_meanwhile(_shape: Any, pairs: Any) -> set[int]:
        holds.lane.held.pop(attempt.token)
        return {id_ for id_, _ in pairs}

    holds.db.answers["verify_holds"] = settled_meanwhile
    await holds.kept.tick()
    assert not attempt.lost
    await holds.end()


async def test_the_thread_survives_a_defect_and_ends_when_told() -> None:
    """contract: H1"""
    holds = Holds()
    await holds.begin(25.0)
    holds.kept.pace_s = 0.01
    faults.arm("keeper", SystemExit(1))
    keeper = Keeper(holds.lane.floor, [holds.kept], on_stuck=holds.lane.stuck.append)
    keeper.start()
    await wait_until_async(lambda: holds.db.called("renew"))
    assert holds.lane.health.beat("keeper").failures == 1
    keeper.stop()
    async with asyncio.timeout(20):
        await keeper.ended
    await holds.end()
