"""One timer for all deadlines of a queue (R3), and attempts that are freed as soon as they end (H3)."""

from __future__ import annotations

import asyncio
import gc
import weakref
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from rowlock import Jobs
from rowlock.runtime.alarm import Alarm
from support.scripted import Lane


class Hand:
    """A loop whose timers a test rings by hand."""

    def __init__(self) -> None:
        self.timers: list[Any] = []

    def call_later(self, delay: float, callback: Any) -> Any:
        timer = SimpleNamespace(delay=delay, ring=callback, cancelled=False)
        timer.cancel = lambda: setattr(timer, "cancelled", True)
        self.timers.append(timer)
        return timer

    @property
    def armed(self) -> list[Any]:
        return [timer for timer in self.timers if not timer.cancelled]


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    at = [100.0]
    monkeypatch.setattr("rowlock.runtime.alarm.monotonic", lambda: at[0])
    return at


def attempt(deadline: float, told: list[float]) -> Any:
    made = SimpleNamespace(deadline=deadline, watched=True)

    def on_deadline() -> None:
        made.watched = False
        told.append(deadline)

    made.on_deadline = on_deadline
    return made


def test_it_is_set_to_the_earliest_and_rings_for_those_that_are_due(now: list[float]) -> None:
    # contract: R3
    loop, told = Hand(), list[float]()
    running = {str(deadline): attempt(deadline, told) for deadline in (130.0, 110.0, 110.0004, 120.0)}
    alarm = Alarm(loop, running)  # type: ignore[arg-type]
    for one in running.values():
        alarm.set(one.deadline)
    assert [timer.delay for timer in loop.armed] == [10.0]
    now[0] = 110.0
    loop.armed[0].ring()
    assert told == [110.0, 110.0004]
    assert [timer.delay for timer in loop.armed] == [10.0]


def test_it_rings_for_nobody_once_and_then_waits_for_those_that_are_there(now: list[float]) -> None:
    # contract: R3, H3
    loop, told = Hand(), list[float]()
    running = {"gone": attempt(110.0, told)}
    alarm = Alarm(loop, running)  # type: ignore[arg-type]
    alarm.set(110.0)
    del running["gone"]
    running["next"] = attempt(139.0, told)
    alarm.set(139.0)  # later than it rings: left as it is
    assert len(loop.timers) == 1
    now[0] = 110.0
    loop.armed[0].ring()
    assert (told, [timer.delay for timer in loop.armed]) == ([], [29.0])
    running.clear()
    now[0] = 139.0
    loop.armed[0].ring()
    assert (told, loop.armed, alarm.at) == ([], [], float("inf"))


def test_an_attempt_and_its_task_are_freed_when_they_end_without_the_collector() -> None:
    # contract: H3
    jobs = Jobs()

    @jobs.job(max_attempts=1, timeout=timedelta(hours=1))
    async def works() -> None:
        await asyncio.sleep(0)

    @jobs.job(max_attempts=1, timeout=timedelta(hours=1))
    async def fails() -> None:
        raise ValueError

    async def main() -> None:
        lane = Lane(jobs)
        attempts = lane.start(lane.record(works), lane.record(fails))
        seen = [weakref.ref(each.task) for each in attempts]
        await lane.ended()
        del attempts
        lane.held.clear()
        lane.settler.__init__()  # type: ignore[misc]
        await asyncio.sleep(0)
        assert [task() for task in seen] == [None, None]
        lane.claimer.alarm.stop()
        lane.close()

    gc.disable()
    try:
        asyncio.run(main())
    finally:
        gc.enable()
