"""Small pieces of the runtime: threads, outages, supervision, the task factory, events. contract: L4, K2, H1, H2, R4"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError

from rowlock import App, Jobs
from rowlock.errors import DatabaseUnavailable
from rowlock.hooks import Hooks
from rowlock.runtime import faults, isolate
from rowlock.runtime.announcer import Announcer
from rowlock.runtime.describe import brief
from rowlock.runtime.events import Event, Events
from rowlock.runtime.health import Health
from rowlock.runtime.outage import LONGEST_PAUSE_S, Guard, Outage, Pauses
from rowlock.runtime.pool import Threads
from rowlock.runtime.roster import Roster
from rowlock.runtime.supervise import supervised
from support.scripted import ScriptedDatabase
from support.waiting import wait_until_async

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


class Work:
    """Waits on its thread until it may go on."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.thread: threading.Thread | None = None
        self.seen = ""
        self.done = False

    def in_thread(self) -> None:
        self.thread = threading.current_thread()
        self.seen = variable.get()
        variable.set("set by another")
        self.go_on.wait(20)

    def on_loop(self) -> None:
        assert threading.current_thread() is not self.thread
        self.done = True


async def test_threads_grow_on_demand_are_reused_and_end() -> None:
    """contract: K1, L4"""
    threads = Threads(asyncio.get_running_loop(), 3)
    first = [Work() for _ in range(3)]
    for work in first:
        threads.submit(work)
    await wait_until_async(lambda: all(work.thread for work in first))
    assert all(work.thread is not None and work.thread.daemon for work in first), "a hung one keeps no process alive"
    for work in first:
        work.go_on.set()
    await wait_until_async(lambda: all(work.done for work in first))
    again = Work()
    again.go_on.set()
    threads.submit(again)
    await wait_until_async(lambda: again.done)
    assert again.thread in {work.thread for work in first}
    assert again.seen == "unset", "what a handler sets in a context variable is gone with it"
    assert threads.close(5.0)


async def test_a_hung_thread_does_not_keep_the_others_from_ending() -> None:
    """contract: M6"""
    threads = Threads(asyncio.get_running_loop(), 2)
    hung, other = Work(), Work()
    other.go_on.set()
    for work in (hung, other):
        threads.submit(work)
    await wait_until_async(lambda: other.done)
    assert not threads.close(0.01)
    hung.go_on.set()
    assert threads.close(5.0)


def test_pauses_grow_to_the_cap() -> None:
    """contract: K2"""
    pauses = Pauses()
    taken = [pauses.next() for _ in range(40)]
    assert taken[0] <= 0.05
    assert all(LONGEST_PAUSE_S * 0.8 <= pause <= LONGEST_PAUSE_S for pause in taken[10:])
    pauses.reset()
    assert pauses.next() <= 0.05


def test_an_outage_is_one_line_and_its_end_another(caplog: pytest.LogCaptureFixture) -> None:
    """contract: K2"""
    told = list[Any]()
    health, events = Health(), Events(Hooks(events={"outage": [told.append]}))
    outage = Outage(ScriptedDatabase(), events)  # type: ignore[arg-type]
    claim, settle, keep = (Guard(name, outage, health.beat(name)) for name in ("claim", "settle", "keep"))
    with caplog.at_level(logging.WARNING, "rowlock"):
        for _ in range(5):
            claim.failed(DatabaseUnavailable("database 'default' can not be reached"))
            settle.failed(OSError("secret"))
        assert len(caplog.records) == 1
        assert health.loops()[1]["claim"]["error"] == "database 'default' can not be reached"
        keep.rests()  # it lives, and asked nothing: that says nothing of the database
        settle.rests()
        assert len(caplog.records) == 1
        claim.worked()
        claim.worked()
    assert [line.getMessage() for line in caplog.records][1:] == ["database 'default' works again"]
    assert [event.outcome for event in told] == ["begun", "over"]
    assert "secret" not in caplog.text


def test_a_deadlock_is_nothing_to_talk_about_and_three_in_a_row_are(caplog: pytest.LogCaptureFixture) -> None:
    """contract: K2"""
    db = ScriptedDatabase()
    db.dialect.is_conflict = lambda _error: True
    health = Health()
    guard = Guard("claim", Outage(db, Events(Hooks())), health.beat("claim"))  # type: ignore[arg-type]
    deadlock = DBAPIError("UPDATE", {}, Exception("deadlock"))
    for _ in range(2):
        guard.failed(deadlock)
    guard.worked()
    guard.failed(deadlock)
    guard.failed(deadlock)
    assert caplog.records == []
    guard.failed(deadlock)
    assert len(caplog.records) == 1


def test_one_loop_that_works_again_calls_the_others_out_of_their_pauses() -> None:
    """contract: K2"""
    calls = list[int]()
    outage = Outage(ScriptedDatabase(), Events(Hooks()))  # type: ignore[arg-type]
    outage.on_sign = lambda: calls.append(1)
    health = Health()
    claim, settle = (Guard(name, outage, health.beat(name)) for name in ("claim", "settle"))
    claim.failed(OSError())
    settle.failed(OSError())
    settle.worked()
    assert calls == [1]


def test_patience_doubles_for_a_slow_server_and_comes_back() -> None:
    guard = Guard("claim", Outage(ScriptedDatabase(), Events(Hooks())), Health().beat("claim"))  # type: ignore[arg-type]
    first = guard.patience_s
    guard.failed(TimeoutError())
    assert guard.patience_s == 2 * first
    guard.worked()
    assert guard.patience_s == first


async def test_a_loop_that_ends_by_a_defect_is_restarted_and_after_five_ends_given_up() -> None:
    """contract: H1"""
    health, stuck, ends = Health(), list[str](), list[int]()

    async def body() -> None:
        ends.append(1)
        raise SystemExit(len(ends)) if len(ends) % 2 else RuntimeError

    async with asyncio.timeout(20):
        await supervised(body, health.beat("sweeper"), stuck.append)
    assert len(ends) == 5
    assert stuck == ["the loop 'sweeper' ended 5 times within a minute (H1)"]


@pytest.mark.parametrize(("apart_s", "given_up"), [(14.9, True), (15.1, False)])
async def test_ends_that_are_more_than_a_minute_apart_stop_nothing(
    monkeypatch: pytest.MonkeyPatch, apart_s: float, given_up: bool
) -> None:
    """contract: H1: five within a minute"""
    stuck, ends = list[str](), list[int]()
    monkeypatch.setattr("rowlock.runtime.supervise.monotonic", lambda: len(ends) * apart_s)
    monkeypatch.setattr(Pauses, "next", lambda _self: 0.0)

    async def body() -> None:
        if len(ends) < 20:
            ends.append(1)
            raise RuntimeError

    async with asyncio.timeout(20):
        await supervised(body, Health().beat("sweeper"), stuck.append)
    assert (len(ends), len(stuck)) == ((5, 1) if given_up else (20, 0))


def test_health_says_when_a_loop_is_late_or_fails() -> None:
    """contract: H1"""
    health = Health()
    health.status = "ok"
    beat = health.beat("claim:default")
    beat.ok(1.0)
    assert health.loops()[0] == "ok"
    beat.late_after = 0.0
    assert health.loops()[0] == "failing"
    beat.ok()
    beat.failed(OSError())
    assert health.loops()[0] == "failing"
    assert health.loops()[1]["claim:default"]["beat"] is not None


def test_a_failing_listener_is_logged_once_and_hurts_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """contract: H2"""
    told = list[Any]()

    def fails(event: Event) -> None:
        raise SystemExit(event.id)

    events = Events(Hooks(events={"settled": [fails, told.append]}))
    for n in range(3):
        events.tell(Event("settled", id=n))
    assert len(told) == 3
    assert len(caplog.records) == 1


def test_what_is_said_of_a_foreign_error_has_no_text() -> None:
    """contract: S6"""
    try:
        raise ValueError("secret")
    except ValueError as error:
        said = brief(error)
    assert said.startswith("ValueError at ")
    assert "secret" not in said


async def test_the_task_factory_is_chained_counted_and_taken_away() -> None:
    """contract: R4"""
    loop = asyncio.get_running_loop()
    made = list[Any]()

    def theirs(loop: Any, coro: Any, **options: Any) -> asyncio.Task[Any]:
        made.append(coro)
        return asyncio.Task(coro, loop=loop, **options)

    loop.set_task_factory(theirs)
    isolate.install(loop)
    isolate.install(loop)
    await asyncio.create_task(asyncio.sleep(0))
    assert made[-1].__name__ == "sleep", "outside of an attempt nothing is wrapped"
    blamed = SimpleNamespace(errors=[])
    blamed.blame = blamed.errors.append
    isolate.current.set(blamed)

    async def leaves() -> None:
        raise SystemExit

    results = await asyncio.gather(asyncio.create_task(leaves()), return_exceptions=True)
    assert isinstance(results[0], isolate.StrayExit)
    assert isinstance(blamed.errors[0], SystemExit)
    isolate.uninstall(loop)
    assert loop.get_task_factory() is not theirs
    isolate.uninstall(loop)
    assert loop.get_task_factory() is theirs
    loop.set_task_factory(None)


def test_a_fault_is_raised_once_and_only_where_it_was_armed() -> None:
    """contract: X6"""
    faults.arm("keeper", ValueError("armed"))
    faults.hit("settling")
    with pytest.raises(ValueError, match="armed"):
        faults.hit("keeper")
    faults.hit("keeper")
    with pytest.raises(ValueError, match="no fault point"):
        faults.arm("nowhere", ValueError())


async def test_what_a_program_knows_is_said_at_the_start_and_each_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """contract: S7"""
    jobs, clock = Jobs(), [1_000.0]
    jobs.declare("elsewhere", max_attempts=1, timeout=1)
    answers = dict.fromkeys(("announce", "strangers", "runnable_blocked", "paused"), lambda *_: [])
    db = ScriptedDatabase(**answers)
    monkeypatch.setattr("rowlock.runtime.announcer.monotonic", lambda: clock[0])

    async def now(_db: Any, work: Any, _patience: float) -> Any:
        return await work

    monkeypatch.setattr("rowlock.runtime.announcer.bounded", now)
    roster = Roster(App("sqlite:///unused.db", include=[jobs]), db)  # type: ignore[arg-type]
    outage = Outage(db, Events(Hooks()))  # type: ignore[arg-type]
    for unknown_ms, pace_s in ((3_600_000, 60.0), (604_800_000, 60.0), (0, 60.0), (30_000, 10.0)):
        db.calls.clear()
        guard = Guard("announcer", outage, Health().beat("announcer"))
        announcer = Announcer(roster, guard, Events(Hooks()), unknown_ms=unknown_ms, poll_s=0.25)
        for passed in (0.0, pace_s * 0.9, pace_s * 0.1, pace_s * 0.5, pace_s * 0.5):
            clock[0] += passed
            await announcer.run_once()
        assert len(db.called("announce")) == 3, unknown_ms
        [(pairs,), *_] = db.called("announce")
        assert [pair.job for pair in pairs] == ["elsewhere"]
        assert len(db.called("runnable_blocked")) == 1  # listed at the start (O3)
