"""What a worker says of its own health, and what it does when a part of it can not go on (H1, K2)."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from rowlock import App, Context
from rowlock.runtime import health, outage
from rowlock.runtime.loopwatch import LoopWatch
from rowlock.testing import fault
from support.databases import Database
from support.failures import database_error
from support.live import Live
from support.proxy import Proxy
from support.story import mostly_slow
from support.waiting import wait_until, wait_until_async, work_for

LOOPS = {"claim:default", "settler", "rescuer", "announcer", "keeper", "watch"}
POINTS = {"claiming": "claim:default", "settling": "settler", "rescuer": "rescuer", "announcer": "announcer",
          "keeper": "keeper"}  # fmt: skip


@pytest.fixture
def make(app_factory: Callable[..., App], database: Database) -> Callable[..., Live]:
    return lambda **job: Live(app_factory, database, **job)


@pytest.fixture
def quick_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops try again at once: how pauses grow is another test's affair."""
    monkeypatch.setattr(outage.Pauses, "next", lambda _self: 0.005)


async def test_health_names_each_loop_its_beat_and_its_error(make: Callable[..., Live]) -> None:
    # contract: H1
    live = make(queues={"mail": 1})

    @live.jobs.job(max_attempts=1, timeout=30, name="job")
    async def job() -> None:
        pass

    nothing = {"claimed": 0, "lost": 0, "settled": {}}
    assert live.app.health() == {"status": "stopped", "loops": {}, "counters": nothing}
    async with live.worker():
        await live.ended(job.enqueue())

        def beating() -> bool:
            loops = live.app.health()["loops"]
            return loops.keys() >= LOOPS | {"claim:mail"} and all(loop["beat"] for loop in loops.values())

        await wait_until_async(beating)
        report = live.app.health()
        assert report["status"] == "ok"
        for loop in report["loops"].values():
            assert set(loop) == {"beat", "error", "error_at", "failures", "working"}
            assert (loop["error"], loop["error_at"], loop["failures"], loop["working"]) == (None, None, 0, True)
            assert datetime.fromisoformat(loop["beat"] or "").utcoffset() == timedelta(0)
    # What was counted stays, for whoever reads it later.
    assert live.app.health() == {
        "status": "stopped",
        "loops": {},
        "counters": {"claimed": 1, "lost": 0, "settled": {"ack": 1}},
    }


@pytest.mark.usefixtures("quick_pauses")
@pytest.mark.parametrize("error", ["of the driver", "time-out"])
async def test_no_database_failure_ends_a_loop(
    make: Callable[..., Live], error: str, caplog: pytest.LogCaptureFixture
) -> None:
    # contract: H1, K2; case: C22
    """Every background action fails five times, while fifty records are worked on."""
    live = make(lease_ms=600, unknown_ms=300, workers=5)

    @live.jobs.job(max_attempts=1, timeout=20, name="job")
    async def job() -> None:
        await work_for(0.02)

    failure = database_error("read-only") if error == "of the driver" else TimeoutError("S3CR3T")
    job.enqueue_many([None] * 50)
    with ExitStack() as faults, caplog.at_level(logging.DEBUG):
        for point in POINTS:
            faults.enter_context(fault(point, failure, times=5))
        async with live.worker():
            await wait_until_async(lambda: len(live.told("settled")) == 50)

            def all_failed_and_work() -> bool:
                loops = live.app.health()["loops"]
                return all(loops[name]["failures"] >= 5 and loops[name]["working"] for name in POINTS.values())

            await wait_until_async(all_failed_and_work, what=lambda: str(live.app.health()))
            loops = live.app.health()["loops"]
            assert live.app.health()["status"] == "ok"
    assert {event.outcome for event in live.told("settled")} == {"ack"}
    for name in POINTS.values():  # the last error is still there, with its time
        assert loops[name]["failures"] == 5
        assert ("TimeoutError" in (loops[name]["error"] or "")) is (error == "time-out")
        assert loops[name]["error_at"]
    assert "ended by a defect" not in caplog.text
    assert "S3CR3T" not in f"{caplog.text} {loops}"


@pytest.mark.usefixtures("quick_pauses")
async def test_loops_that_end_by_a_defect_are_started_again_and_lose_nothing(
    make: Callable[..., Live], caplog: pytest.LogCaptureFixture
) -> None:
    # contract: H1; case: C22
    live = make(lease_ms=600, unknown_ms=300, workers=5)

    @live.jobs.job(max_attempts=1, timeout=20, name="job")
    async def job() -> None:
        await work_for(0.02)

    job.enqueue_many([None] * 50)
    with ExitStack() as faults, caplog.at_level(logging.DEBUG):
        for number, point in enumerate(POINTS):
            # What a driver makes of a cancellation of its own is a defect like any other: nobody asked the loop to end.
            defect = asyncio.CancelledError() if number == 1 else RuntimeError("S3CR3T")
            faults.enter_context(fault(point, defect, times=4))
        async with live.worker():
            await wait_until_async(lambda: len(live.told("settled")) == 50)
            await wait_until_async(
                lambda: all(live.app.health()["loops"][name]["failures"] >= 4 for name in POINTS.values()),
                what=lambda: str(live.app.health()),
            )
            await wait_until_async(lambda: live.app.health()["status"] == "ok")
    assert sum("ended by a defect" in record.getMessage() for record in caplog.records) == 4 * len(POINTS)
    assert {event.outcome for event in live.told("settled")} == {"ack"}
    assert "S3CR3T" not in caplog.text


@pytest.mark.usefixtures("quick_pauses")
@pytest.mark.parametrize("point", POINTS)
async def test_after_five_ends_within_a_minute_the_worker_drains(
    make: Callable[..., Live], point: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # contract: H1
    monkeypatch.setattr("rowlock.runtime.worker.FLUSH_S", 0.2)  # nobody is left who could write the last settlement
    live = make(lease_ms=600, unknown_ms=300)

    @live.jobs.job(max_attempts=1, timeout=20, name="job")
    async def job() -> None:
        pass

    with fault(point, RuntimeError("S3CR3T"), times=5):
        async with live.worker():
            if point == "settling":
                job.enqueue()
            await wait_until_async(lambda: "can not go on" in caplog.text)
            await wait_until_async(lambda: live.app.health()["status"] in {"draining", "stopped"})
    assert f"the loop '{POINTS[point]}' ended 5 times within a minute" in caplog.text
    assert "S3CR3T" not in caplog.text


async def test_a_renewal_thread_that_dies_drains_the_worker(
    make: Callable[..., Live], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # contract: H1
    live = make()

    @live.jobs.job(max_attempts=1, timeout=20, name="job")
    async def job() -> None:
        pass

    def defect(*_: Any) -> None:
        raise RuntimeError("S3CR3T")

    monkeypatch.setattr(LoopWatch, "__init__", defect)
    async with live.worker():
        await wait_until_async(lambda: "the renewal thread ended by RuntimeError" in caplog.text)
        await wait_until_async(lambda: live.app.health()["status"] in {"draining", "stopped"})
    assert "S3CR3T" not in caplog.text


async def test_a_worker_whose_every_slot_is_held_by_handlers_past_their_overrun_drains(
    make: Callable[..., Live], caplog: pytest.LogCaptureFixture
) -> None:
    # contract: H1
    live, go = make(workers=2), threading.Event()

    @live.jobs.job(max_attempts=1, timeout=0.05, overrun=0.05, name="deaf")
    def deaf() -> None:
        go.wait(20)

    deaf.enqueue_many([None] * 2)
    async with live.worker():
        await wait_until_async(lambda: "every slot of queue 'default' is held" in caplog.text)
        await wait_until_async(lambda: live.app.health()["status"] == "draining")
        go.set()
        await wait_until_async(lambda: live.app.health()["status"] == "stopped")


# --- alive means working ----------------------------------------------------------------------------------------------


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop is late after a moment, in place of ten seconds."""
    monkeypatch.setattr(health, "GRACE_S", 0.3)


@contextmanager
def hanging(database: Database, what: str) -> Iterator[None]:
    """Looks for due records do not come back within the block: on their connection, or on the file's own thread."""
    if database.dialect != "sqlite":
        raise AssertionError("servers have a proxy for that")
    go = threading.Event()

    def before(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if what in statement:
            go.wait(20)

    sa.event.listen(sa.Engine, "before_cursor_execute", before)
    try:
        yield
    finally:
        go.set()
        sa.event.remove(sa.Engine, "before_cursor_execute", before)


@pytest.mark.usefixtures("impatient")
async def test_a_loop_that_hangs_in_an_await_does_not_work(
    make: Callable[..., Live], app_factory: Callable[..., App], database: Database
) -> None:
    # contract: H1
    """Its task lives, nothing failed, and nothing comes back: a black-holed connection, or a thread that hangs."""

    def serve(live: Live) -> Any:
        @live.jobs.job(max_attempts=1, timeout=30, name="job")
        async def job() -> None:
            pass

        return job

    async def watched(live: Live) -> None:
        await wait_until_async(lambda: live.app.health()["status"] == "failing")
        claims = live.app.health()["loops"]["claim:default"]
        assert (claims["working"], claims["error"], claims["failures"]) == (False, None, 0)
        assert claims["beat"]

    if database.dialect == "sqlite":
        live = make()
        job = serve(live)
        async with live.worker():
            await live.ended(job.enqueue())
            with hanging(database, "WITH RECURSIVE"):
                await watched(live)
            await wait_until_async(lambda: live.app.health()["status"] == "ok")
        return
    with Proxy(database.parsed) as proxy:
        live = Live(app_factory, database, url=proxy.url)
        job = serve(live)
        async with live.worker():
            await live.ended(job.enqueue())
            proxy.mode("blackhole")
            await watched(live)
            proxy.mode("reset")
            proxy.mode("pass")
            await wait_until_async(lambda: live.app.health()["status"] == "ok")


@mostly_slow("postgresql")
def test_a_handler_that_blocks_the_loop_is_in_the_report(
    make: Callable[..., Live], caplog: pytest.LogCaptureFixture
) -> None:
    # contract: H1; case: C09
    """`app.health()` answers on another thread, while the worker's loop stands still; its lease is renewed."""
    live, go = make(lease_ms=900, workers=2), threading.Event()

    @live.jobs.job(max_attempts=1, timeout=20, lease=0.9 if live.database.dialect != "sqlite" else 21, name="blocks")
    async def blocks(ctx: Context) -> None:
        go.wait(20)

    done = blocks.enqueue()
    with live.app.worker_thread():
        wait_until(lambda: live.app.health()["loops"].get("watch", {}).get("error"))
        report = live.app.health()
        watch = report["loops"]["watch"]
        assert report["status"] == "failing"
        assert not watch["working"]
        assert f"in task of job 'blocks', record {done.id} at " in (watch["error"] or "")
        assert live.row(done).state == "running"
        go.set()
        wait_until(lambda: live.app.health()["status"] == "ok")
        wait_until(lambda: live.row(done).state == "succeeded")
    assert sum("event loop blocked" in record.getMessage() for record in caplog.records) == 1


@pytest.mark.usefixtures("impatient")
async def test_a_loop_with_nothing_to_do_and_one_with_full_hands_work(
    make: Callable[..., Live], monkeypatch: pytest.MonkeyPatch
) -> None:
    # contract: H1
    """Neither an idle settler nor a claimer whose slots are taken for hours is late."""
    monkeypatch.setattr("rowlock.runtime.claimer.REST_S", 0.05)
    monkeypatch.setattr("rowlock.runtime.settler.REST_S", 0.05)
    monkeypatch.setattr("rowlock.runtime.outage.Guard.rests.__defaults__", (0.05,))
    live, go = make(workers=1), asyncio.Event()

    @live.jobs.job(max_attempts=1, timeout=30, name="waits")
    async def waits() -> None:
        await go.wait()

    waits.enqueue()
    async with live.worker():
        await wait_until_async(lambda: live.told("claimed"))
        beats = {name: live.app.health()["loops"][name]["beat"] for name in ("claim:default", "settler")}
        for name, beat in beats.items():  # a beat each, though nothing happens
            await wait_until_async(
                lambda name=name, beat=beat: (live.app.health()["loops"][name]["beat"] or "") > (beat or "")
            )
        assert live.app.health()["status"] == "ok"
        go.set()
        await wait_until_async(lambda: live.told("settled"))
