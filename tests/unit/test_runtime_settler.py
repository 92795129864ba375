"""Writing settlements, with scripted answers of the database. contract: L1, L6, K2"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rowlock import Jobs
from rowlock.errors import DatabaseUnavailable
from rowlock.model.outcome import Settlement, success
from rowlock.runtime import faults
from rowlock.runtime.settler import Settler
from rowlock.runtime.supervise import supervised
from rowlock.store.settle import Verdict
from support.scripted import Lane, ScriptedDatabase, all_of
from support.waiting import wait_until_async


@asynccontextmanager
async def settling(**answers: Any) -> AsyncIterator[tuple[Lane, Settler]]:
    jobs, db = Jobs(), ScriptedDatabase(**answers)

    @jobs.job(max_attempts=2, timeout=5)
    async def works() -> None: ...

    lane = Lane(jobs, db=db, slots=1000)
    lane.job = works
    settler = Settler(lane.floor, db, lane.guard("settler"), lane.held)
    lane.settler = lane.claimer.settler = settler
    beat = lane.health.beat("settler")
    task = asyncio.create_task(supervised(settler.run, beat, lane.stuck.append))
    try:
        yield lane, settler
    finally:
        settler.stop()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def flushed(settler: Settler) -> None:
    async with asyncio.timeout(20):
        await settler.flush()


async def test_what_collects_while_a_statement_is_under_way_goes_with_the_next() -> None:
    """contract: L6"""
    go_on = asyncio.Event()

    async def slow(_shape: Any, settlements: Sequence[Settlement], **_: Any) -> list[Verdict]:
        await go_on.wait()
        return [Verdict.SETTLED] * len(settlements)

    async with settling(settle=slow) as (lane, settler):
        lane.start(lane.record(lane.job))
        await wait_until_async(lambda: lane.db.called("settle"))
        lane.start(*(lane.record(lane.job) for _ in range(700)))
        await lane.ended()
        go_on.set()
        await flushed(settler)
        assert [len(args[1]) for args in lane.db.called("settle")] == [1, 500, 200]
        assert lane.held == {}
        assert lane.outcomes["ack"] == 701


async def test_a_lost_verdict_is_told_for_that_record_alone() -> None:
    """contract: L6, L3"""

    def second_is_lost(_shape: Any, settlements: Sequence[Settlement], **_: Any) -> list[Verdict]:
        return [Verdict.LOST if each.id == 2 else Verdict.SETTLED for each in settlements]

    told = list[Any]()
    async with settling(settle=second_is_lost) as (lane, settler):
        lane.app.on("lost")(told.append)
        lane.start(*(lane.record(lane.job) for _ in range(3)))
        await lane.ended()
        await flushed(settler)
        assert [event.id for event in told] == [2]
        assert lane.outcomes["ack"] == 2
        assert lane.held == {}


async def test_a_failed_statement_is_repeated_and_recognises_its_own_effect(caplog: pytest.LogCaptureFixture) -> None:
    """contract: L1, K2"""
    tries = list[bool]()

    def fails_twice(_shape: Any, settlements: Sequence[Settlement], *, repeated: bool) -> list[Verdict]:
        tries.append(repeated)
        if len(tries) <= 2:
            raise DatabaseUnavailable("database 'default' can not be reached")
        return [Verdict.SETTLED] * len(settlements)

    with caplog.at_level(logging.WARNING, "rowlock"):
        async with settling(settle=fails_twice) as (lane, settler):
            lane.start(lane.record(lane.job))
            await lane.ended()
            await flushed(settler)
            assert not lane.health.beat("settler").failing
    assert tries == [False, True, True]
    assert [line.getMessage().split(" (")[0] for line in caplog.records] == [
        "database 'default' fails",
        "database 'default' works again",
    ]


async def test_one_settlement_that_can_not_be_written_does_not_stop_the_others() -> None:
    """contract: L6"""

    def refuses_the_third(_shape: Any, settlements: Sequence[Settlement], **_: Any) -> list[Verdict]:
        if any(each.id == 3 for each in settlements):
            raise DatabaseUnavailable("a value that this database refuses")
        return [Verdict.SETTLED] * len(settlements)

    async with settling(settle=refuses_the_third) as (lane, _):
        lane.start(*(lane.record(lane.job) for _ in range(8)))
        await wait_until_async(lambda: lane.outcomes["ack"] == 7)
        assert [attempt.id for attempt in lane.held.values()] == [3]


async def test_a_locked_row_delays_only_its_own_settlement() -> None:
    """contract: L4, L6"""
    unlocked = asyncio.Event()

    def some_are_busy(_shape: Any, settlements: Sequence[Settlement], **_: Any) -> list[Verdict]:
        return [Verdict.BUSY if each.id <= 4 and not unlocked.is_set() else Verdict.SETTLED for each in settlements]

    async def waits(_shape: Any, _settlement: Settlement, **_: Any) -> Verdict:
        await unlocked.wait()
        return Verdict.SETTLED

    async with settling(settle=some_are_busy, settle_one=waits) as (lane, settler):
        lane.start(*(lane.record(lane.job) for _ in range(6)))
        await wait_until_async(lambda: lane.outcomes["ack"] == 2)
        lane.start(lane.record(lane.job))
        await wait_until_async(lambda: lane.outcomes["ack"] == 3)
        assert len(lane.db.called("settle_one")) <= 2, "the others are tried again with the batch"
        unlocked.set()
        await flushed(settler)
        assert lane.outcomes["ack"] == 7


async def test_what_waits_for_a_locked_row_is_given_up_when_its_hold_is_lost() -> None:
    """contract: L3"""

    async def for_ever(*_: Any, **__: Any) -> Verdict:
        return await asyncio.Future()

    async with settling(settle=all_of(Verdict.BUSY), settle_one=for_ever) as (lane, settler):
        [attempt] = lane.start(lane.record(lane.job))
        await lane.ended()
        await wait_until_async(lambda: lane.db.called("settle_one"))
        attempt.lose()
        await flushed(settler)
        assert lane.lost == 1
        assert lane.held == {}


async def test_a_defect_in_the_loop_loses_no_settlement() -> None:
    """contract: H1"""
    async with settling(settle=all_of(Verdict.SETTLED)) as (lane, settler):
        for error in (RuntimeError("armed"), SystemExit(1)):
            faults.arm("settling", error)
            lane.start(lane.record(lane.job))
            await lane.ended()
            await flushed(settler)
        assert lane.outcomes["ack"] == 2
        assert lane.health.beat("settler").failures == 2
        assert lane.stuck == []


async def test_one_id_with_two_tokens_never_shares_a_statement() -> None:
    """contract: L1"""
    async with settling(settle=all_of(Verdict.SETTLED)) as (lane, settler):
        record = lane.record(lane.job)
        [attempt] = lane.start(record)
        await lane.ended()
        await flushed(settler)
        for token in (record.token, "another"):
            settler.add(attempt, success(record.id, token))
        await flushed(settler)
        assert [len(args[1]) for args in lane.db.called("settle")] == [1, 1, 1]
