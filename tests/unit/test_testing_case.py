from __future__ import annotations

import asyncio
import contextvars
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from rowlock import App, Context, DirectCall, Job, State
from rowlock.testing import KitError, TestApp


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where cases make their files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def app(temporary: Path) -> App:
    return App("sqlite:////nowhere/at/all.db")


ran: contextvars.ContextVar[str] = contextvars.ContextVar("ran", default="")


def chain(app: App, name: str = "chain") -> Job[None, Any]:
    """A job that enqueues itself once more."""

    @app.job(max_attempts=1, timeout=30, name=name)
    async def link(ctx: Context) -> None:
        if ctx.key == "first":
            await link.aenqueue(key="second")

    return link


# --- X5 ------------------------------------------------------------------------------------------------------


def test_a_case_without_jobs_needs_no_database(app: App, temporary: Path) -> None:
    # contract: X5
    threads = set(threading.enumerate())
    with TestApp(app) as t:
        t.advance(hours=1)
        assert t.drain() == 0
        assert t.failures == []
        assert list(temporary.iterdir()) == []
        assert set(threading.enumerate()) == threads


def test_a_case_leaves_no_file_and_no_thread(app: App, temporary: Path) -> None:
    # contract: X5
    threads = set(threading.enumerate())
    job = chain(app)
    with TestApp(app) as t:
        job.enqueue(key="first")
        assert t.drain() == 2
        with t.engine().connect() as connection:
            assert connection.execute(sa.text("SELECT count(*) FROM rowlock_job")).scalar_one() == 2
        assert t.url().drivername == "sqlite"
        assert Path(str(t.url().database)).is_relative_to(temporary)
    assert list(temporary.iterdir()) == []
    assert set(threading.enumerate()) == threads


def test_a_secret_that_the_settings_refer_to_is_not_needed(temporary: Path) -> None:
    # contract: X1
    app = App(settings={"database": {"default": {"url": {"env": "NOT_SET_IN_TESTS"}}}, "runtime": {"mode": "api"}})
    job = chain(app)
    with TestApp(app) as t:
        job.enqueue(key="first")
        assert t.drain() == 2


def test_cases_may_end_in_any_order(app: App) -> None:
    # contract: X5
    job = chain(app)
    first, second = TestApp(app), TestApp(app)
    first.__enter__()
    second.__enter__()
    job.enqueue(key="of the second")
    first.__exit__(None, None, None)
    job.enqueue(key="of the second too")
    assert len(second.enqueued(job)) == 2
    second.__exit__(None, None, None)
    with TestApp(app) as third:
        assert third.enqueued(job) == []


async def test_cases_of_one_loop_run_beside_each_other(app: App) -> None:
    # contract: X5
    job = chain(app)
    both = asyncio.Barrier(2)

    async def case(number: int) -> int:
        async with TestApp(app) as t:
            await both.wait()
            for _ in range(number):
                await job.aenqueue()
            await job.aenqueue(key="first")
            await both.wait()
            drained = await t.adrain()
            await both.wait()
            assert len(t.enqueued(job)) == drained
            return drained

    assert await asyncio.gather(case(1), case(2)) == [3, 4]


def test_a_thread_of_the_test_belongs_to_the_case(app: App) -> None:
    # contract: X5
    job = chain(app)
    with TestApp(app) as t:
        thread = threading.Thread(target=job.enqueue)
        thread.start()
        thread.join()
        assert len(t.enqueued(job)) == 1


def test_applications_do_not_mind_each_other(app: App) -> None:
    # contract: X5
    other = App("sqlite:////nowhere/else.db")
    job, same = chain(app), chain(other)
    with TestApp(app) as t, TestApp(other) as u:
        job.enqueue(key="first")
        same.enqueue()
        assert (t.drain(), u.drain()) == (2, 1)


# --- the block -----------------------------------------------------------------------------------------------


def test_outside_of_its_block_a_case_is_closed(app: App) -> None:
    # contract: X1, Z1
    job = chain(app)
    t = TestApp(app)
    for use in (t.drain, lambda: t.enqueued(job), t.engine, t.records.list):
        with pytest.raises(KitError, match="with TestApp"):
            use()
    with t, pytest.raises(KitError, match="open already"):
        t.__enter__()
    with pytest.raises(KitError, match="with TestApp"):
        t.drain()
    with t:
        t.refute_enqueued(job)


def test_a_case_is_of_an_application() -> None:
    # contract: X1, Z1
    wrong: Any = "newsroom.main:app"
    with pytest.raises(TypeError, match=r"rowlock\.App"):
        TestApp(wrong)
    with pytest.raises(ValueError, match='"largest" or "declared"'):
        TestApp(App(), leases=wrong)


def test_a_drain_may_not_be_called_by_a_handler(app: App) -> None:
    # contract: X1, X2
    @app.job(max_attempts=1, timeout=30)
    def sync() -> None:
        t.drain()

    @app.job(max_attempts=1, timeout=30)
    async def coroutine() -> None:
        await t.adrain()

    with TestApp(app) as t:
        sync.enqueue()
        coroutine.enqueue()
        assert t.drain() == 2
        assert [str(failure.exception)[:32] for failure in t.failures] == ["this case is being drained alrea"] * 2


def test_a_drain_keeps_the_context_of_the_test_to_itself(app: App) -> None:
    # contract: X1
    seen: list[str] = []

    @app.job(max_attempts=1, timeout=30)
    async def look() -> None:
        seen.append(ran.get())
        ran.set("by the handler")

    with TestApp(app) as t:
        for value in ("one", "two"):
            token = ran.set(value)
            look.enqueue()
            t.drain()
            assert ran.get() == value
            ran.reset(token)
    assert seen == ["one", "two"]


def test_a_case_takes_no_loop_of_the_thread_away(app: App) -> None:
    # contract: X1
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        with TestApp(app) as t:
            t.drain()
        assert asyncio.get_event_loop_policy().get_event_loop() is loop
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def test_an_endless_chain_ends_at_the_limit(app: App) -> None:
    # contract: X1, X2
    @app.job(max_attempts=1, timeout=30)
    async def endless() -> None:
        await endless.aenqueue()

    with TestApp(app) as t:
        endless.enqueue()
        assert t.drain(limit=50) == 50
        t.assert_enqueued(endless, state=State.PENDING, count=1)


# --- no serve() ----------------------------------------------------------------------------------------------


@pytest.fixture
def case(app: App) -> Iterator[TestApp]:
    with TestApp(app) as t:
        yield t


async def test_a_case_has_no_worker(app: App, case: TestApp) -> None:
    # contract: X1
    with pytest.raises(KitError, match=r"no serve\(\).*await adrain\(\)"):
        async with app.worker():
            pass
    with pytest.raises(KitError, match=r"no serve\(\)"), app.worker_thread():
        pass


async def test_an_asgi_application_starts_without_one(app: App, case: TestApp) -> None:
    # contract: X1
    job = chain(app)
    async with app.lifespan():
        await job.aenqueue(key="first")
        case.assert_enqueued(job, state="pending", count=1)
    assert await case.adrain() == 2


def test_a_job_can_not_be_called(app: App, case: TestApp) -> None:
    # contract: X4
    job: Any = chain(app)
    with pytest.raises(DirectCall):
        job()
