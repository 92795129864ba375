"""The test kit on every database: on an engine of the case's, in one connection, and on files of its own (X)."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from rowlock import (
    App,
    Backoff,
    Context,
    Dead,
    DirectCall,
    EncodeError,
    Jobs,
    NotMigrated,
    Retry,
    Snooze,
    State,
    StopReason,
    WrongDatabase,
)
from rowlock.runtime.roster import Roster
from rowlock.store.claim import claim
from rowlock.store.database import Database
from rowlock.testing import KitError, TestApp, fault

NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Article:
    id: int
    channel: str = "web"


@dataclass
class Note:
    words: list[str]


@dataclass
class News:
    """An application whose own database can not be reached: whoever asks it, and not the case, fails."""

    app: App
    jobs: Jobs
    ran: list[Any] = field(default_factory=list)

    def case(self, **options: Any) -> TestApp:
        return TestApp(self.app, **options)


@pytest.fixture
def news() -> News:
    jobs = Jobs()
    return News(App("sqlite:////nowhere/at/all.db", include=[jobs]), jobs)


Opened = Callable[..., AbstractContextManager[TestApp]]


@pytest.fixture(params=["engine", "connection"])
def opened(request: pytest.FixtureRequest, news: News, engine: sa.Engine, database_url: str) -> Opened:
    """`with opened() as t:`, a case on the test's database: with its engine, or in one connection of it."""

    @contextlib.contextmanager
    def on_engine(**options: Any) -> Iterator[TestApp]:
        with news.case(engine=engine, **options) as t:
            yield t

    @contextlib.contextmanager
    def in_connection(**options: Any) -> Iterator[TestApp]:
        app = App(database_url)
        app.migrate()  # where DDL commits, the tables have to be there
        app.close()
        with engine.connect() as connection, news.case(connection=connection, **options) as t:
            yield t

    return on_engine if request.param == "engine" else in_connection


def declared(news: News, **options: Any) -> Any:
    """A job that notes what it was given."""

    @news.jobs.job(**{"max_attempts": 3, "timeout": 30, "name": "publish", **options})
    async def publish(input: Article, ctx: Context) -> None:
        news.ran.append((input.id, ctx.attempt))

    return publish


# --- X1: the clock -------------------------------------------------------------------------------------------


def test_the_clock_stands_still_and_moves_forward_only_when_told(news: News, opened: Opened) -> None:
    # contract: X1
    publish = declared(news)
    with opened(now=NOON) as t:
        publish.enqueue(Article(1), delay=timedelta(hours=2))
        assert (t.now, t.drain()) == (NOON, 0)
        t.advance(hours=1, minutes=59)
        assert t.drain() == 0
        t.advance(timedelta(minutes=1))
        assert t.drain() == 1
        assert t.now == NOON + timedelta(hours=2)
        [found] = t.enqueued(publish)
        assert (found.record.created_at, found.record.run_at) == (NOON, t.now)
        assert (found.record.claimed_at, found.record.finished_at) == (t.now, t.now)
        with pytest.raises(ValueError, match="forward"):
            t.advance(seconds=-1)


def test_the_statements_of_a_case_have_no_other_clock(news: News, opened: Opened) -> None:
    # contract: X1, L2; case C88
    publish = declared(news)
    with opened(now=datetime(1999, 12, 31, 23, tzinfo=UTC)) as t:
        publish.enqueue(Article(1), run_at=datetime(2000, 1, 1, tzinfo=UTC))
        assert t.drain() == 0
        t.advance(hours=1)
        assert t.drain() == 1


def test_a_lease_ends_by_the_clock_of_the_case(news: News, opened: Opened) -> None:
    # contract: X1, L7; case C88
    publish = declared(news)
    with opened(leases="declared") as t:
        publish.enqueue(Article(1))
        db = t.databases["default"]
        assert len(db.run(claim, Roster(news.app, db).source("default"), 1)) == 1  # by a worker that dies now
        assert t.drain() == 0
        t.advance(seconds=59)
        assert t.drain() == 0
        t.advance(seconds=1)
        assert t.drain() == 1
        assert news.ran == [(1, 2)]


# --- X1: the drain -------------------------------------------------------------------------------------------


def test_a_drain_answers_how_many_it_claimed_and_heeds_its_limit(news: News, opened: Opened) -> None:
    # contract: X1
    publish = declared(news)
    with opened() as t:
        publish.enqueue_many([Article(n) for n in range(5)])
        assert [t.drain(limit=2), t.drain(limit=2), t.drain(limit=2), t.drain()] == [2, 2, 1, 0]
        assert [id for id, _ in news.ran] == [0, 1, 2, 3, 4]
        for wrong in (0, 10_001, -1):
            with pytest.raises(ValueError, match="10,000"):
                t.drain(wrong)
        for kind in (True, 1.0, None):
            with pytest.raises(TypeError, match="whole number"):
                t.drain(kind)


async def test_in_a_loop_a_drain_is_awaited(news: News, opened: Opened) -> None:
    # contract: X1
    publish = declared(news)
    with opened() as t:
        await publish.aenqueue(Article(1))
        with pytest.raises(KitError, match=r"await t\.adrain\(\)"):
            t.drain()
        assert await t.adrain() == 1
        assert news.ran == [(1, 1)]


def test_a_drain_goes_through_the_production_code(news: News, opened: Opened) -> None:
    # contract: X1, C4, S6
    @news.jobs.job(max_attempts=2, timeout=30, name="fails")
    def fails(input: Article) -> None:
        raise LookupError("secret")

    with opened(now=NOON) as t:
        fails.enqueue(Article(1))
        assert t.drain() == 1
        [row] = rows(t)
        assert (row.state, row.attempt, row.error_category, row.error_class) == (
            "pending",
            1,
            "failed",
            "LookupError",
        )
        assert row.payload == '{"id":1,"channel":"web"}'
        t.advance(minutes=5)
        assert t.drain() == 1
        [row] = rows(t)
        assert (row.state, row.attempt, row.error_summary) == ("dead", 2, None)


def test_a_failing_handler_does_not_raise_out_of_a_drain(news: News, opened: Opened) -> None:
    # contract: X1, R4
    error = RuntimeError("no")

    @news.jobs.job(max_attempts=1, timeout=30, name="fails")
    def fails() -> None:
        raise error

    @news.jobs.job(max_attempts=1, timeout=30, name="exits")
    async def exits() -> None:
        raise SystemExit(3)

    publish = declared(news, priority=200)
    with opened() as t:
        fails.enqueue()
        exits.enqueue()
        publish.enqueue(Article(1))
        assert t.drain() == 3
        first, second = t.failures
        assert (first.record.job, first.record.state, first.exception) == ("fails", State.DEAD, error)
        assert (second.record.job, type(second.exception)) == ("exits", SystemExit)
        assert news.ran == [(1, 1)]
        assert t.drain() == 0
        assert len(t.failures) == 2


def test_retries_have_no_jitter_and_no_settings_of_production(engine: sa.Engine) -> None:
    # contract: X1, R1
    settings = {"job": {"retry_base_ms": 86_400_000, "retry_max_ms": 86_400_000, "lease_ms": 100}}
    app = App("sqlite:////nowhere/at/all.db", settings=settings)

    @app.job(max_attempts=9, timeout=30, name="fails")
    def fails() -> None:
        raise RuntimeError

    @app.job(max_attempts=9, timeout=30, name="own", backoff=Backoff(base=10, cap=15))
    def own() -> None:
        raise RuntimeError

    with TestApp(app, engine=engine, now=NOON) as t:
        fails.enqueue()
        own.enqueue()
        delays = []
        for _ in range(3):
            t.advance(minutes=10)
            assert t.drain() == 2
            delays.append([(record.run_at - t.now).total_seconds() for record in t.records.list().items[::-1]])
        assert delays == [[1, 10], [2, 15], [4, 15]]
    assert app.settings.job.lease_ms == 100


def test_a_queue_that_only_the_settings_name_is_served(engine: sa.Engine) -> None:
    # contract: X1
    app = App("sqlite:////nowhere/at/all.db", settings={"job": {"queues": {"billing": 7}}})

    @app.job(max_attempts=1, timeout=30, name="charge")
    def charge() -> None: ...

    with TestApp(app, engine=engine) as t:
        charge.enqueue(queue="billing")
        charge.enqueue(queue="nobody's")
        assert t.drain() == 1
        t.assert_enqueued(charge, queue="nobody's", state="pending", count=1)


def test_outcomes_are_those_of_production(news: News, opened: Opened) -> None:
    # contract: X1, R6
    answers = iter([Snooze(60), Retry(after=60), Retry(), Dead("enough")])

    @news.jobs.job(max_attempts=4, timeout=30, name="answers")
    def answer(ctx: Context) -> Snooze | Retry | Dead:
        news.ran.append(ctx.attempt)
        return next(answers)

    with opened() as t:
        id = answer.enqueue().id
        drained = [t.drain()]
        for _ in range(2):
            t.advance(60)
            drained.append(t.drain())
        assert drained == [1, 1, 2]
        assert news.ran == [1, 1, 2, 3]
        record = t.records.get(id)
        assert (record.state, record.error_category, record.error_summary) == ("dead", "rejected", "enough")
        assert t.failures == []


def test_a_record_that_nobody_knows_is_blocked_at_once(news: News, opened: Opened) -> None:
    # contract: X1, S4, S7
    publish = declared(news)
    with opened() as t:
        id = publish.enqueue(Article(1)).id
        execute(t, sa.text("UPDATE rowlock_job SET job = 'gone'"))
        assert t.drain() == 0
        record = t.records.get(id)
        assert (record.state, record.error_category, record.attempt) == ("blocked", "unknown_job", 0)


def test_a_drain_takes_no_time_of_the_clock_on_the_wall(news: News, opened: Opened) -> None:
    # contract: X1
    publish = declared(news)
    with opened() as t:
        begun = time.monotonic()
        for day in range(3):
            publish.enqueue(Article(day), delay=timedelta(days=1))
            t.advance(days=365)
            assert t.drain() == 1
        assert time.monotonic() - begun < 5


def test_hooks_and_listeners_of_the_application_are_called(news: News, opened: Opened) -> None:
    # contract: X1, H2
    publish = declared(news)
    told: list[str] = []
    news.app.before_attempt(lambda ctx: told.append(f"before {ctx.attempt}"))
    news.app.after_attempt(lambda ctx: told.append(f"after {ctx.attempt}"))
    news.app.on_failure(lambda exc, ctx: told.append(f"failure {exc!r} {ctx.id}"))
    news.app.on("settled")(lambda event: told.append(f"{event.name} {event.outcome}"))
    with opened() as t:
        publish.enqueue(Article(1))
        assert t.drain() == 1
    assert told == ["before 1", "after 1", "settled ack"]


def test_a_fault_is_raised_once(news: News, opened: Opened) -> None:
    # contract: X1, C3
    publish = declared(news)
    with opened() as t:
        publish.enqueue(Article(1))
        with fault("claimed", RuntimeError("injected")):
            assert t.drain() == 0
        [found] = t.enqueued(publish)
        assert (found.record.state, found.record.attempt) == ("pending", 0)
        assert t.drain() == 1


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
def test_time_that_passes_in_a_handler_times_it_out(news: News, opened: Opened, is_async: bool) -> None:
    # contract: X1, R3
    if is_async:

        @news.jobs.job(max_attempts=2, timeout=60, name="slow")
        async def slow(input: Article, ctx: Context) -> None:
            t.advance(seconds=input.id)
            try:
                await asyncio.Event().wait() if input.id >= 60 else None
            finally:
                news.ran.append((input.id, ctx.stopping, ctx.stop_reason))
    else:

        @news.jobs.job(max_attempts=2, timeout=60, name="slow")
        def slow(input: Article, ctx: Context) -> None:
            t.advance(seconds=input.id)
            news.ran.append((input.id, ctx.stopping, ctx.stop_reason))

    with opened() as t:
        slow.enqueue(Article(59))
        assert t.drain() == 1
        slow.enqueue(Article(60))
        assert t.drain() == 1
        assert news.ran == [(59, False, None), (60, True, StopReason.DEADLINE)]
        t.assert_enqueued(slow, where={"id": 59}, state="succeeded")
        [late] = t.assert_enqueued(slow, where={"id": 60}, state="pending")
        assert (late.record.error_category, late.record.run_at) == ("timed_out", t.now + timedelta(seconds=1))
        assert [type(failure.exception) for failure in t.failures] == [TimeoutError]


@pytest.mark.parametrize("leases", ["largest", "declared"])
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
def test_time_that_passes_in_a_handler_renews_its_lease(
    news: News, opened: Opened, is_async: bool, leases: str
) -> None:
    # contract: X1, L4
    def work() -> None:
        for hours in (1, 1, 1, 30):
            t.advance(hours=hours)

    if is_async:

        @news.jobs.job(max_attempts=5, timeout=3600, lease=3601, name="long")
        async def long() -> None:
            work()
    else:

        @news.jobs.job(max_attempts=5, timeout=3600, lease=3601, name="long")
        def long() -> None:
            work()

    with opened(leases=leases) as t:
        long.enqueue()
        assert t.drain() == 1
        [found] = t.enqueued(long)
        # It was late, and it is settled by its own attempt: nobody else took it meanwhile.
        assert (found.record.attempt, found.record.error_category) == (1, "timed_out")


def test_a_handler_whose_hold_was_taken_is_told_when_time_passes(news: News, engine: sa.Engine) -> None:
    # contract: X1, L3
    @news.jobs.job(max_attempts=5, timeout=3600, lease=3601, name="robbed")
    def robbed(ctx: Context) -> None:
        if ctx.attempt == 1:
            execute(t, sa.text("UPDATE rowlock_job SET token = 'of somebody else'"))
            t.advance(minutes=30)
            news.ran.append(ctx.stop_reason)

    with news.case(engine=engine, leases="declared") as t:
        robbed.enqueue()
        assert t.drain() == 1
        assert news.ran == [StopReason.LOST]
        assert t.enqueued(robbed)[0].record.state == "running"


# --- X1: where a case lives ----------------------------------------------------------------------------------


def test_an_engine_of_the_case_is_migrated_and_empty(news: News, engine: sa.Engine) -> None:
    # contract: X1, X5
    publish = declared(news)
    with news.case(engine=engine) as t:
        publish.enqueue(Article(1))
    with news.case(engine=engine) as t:
        t.refute_enqueued(publish)
        with t.engine().begin() as connection:
            publish.enqueue(Article(2), connection=connection)
        with pytest.raises(ZeroDivisionError), Session(engine) as session, session.begin():
            publish.enqueue(Article(3), connection=session)
            raise ZeroDivisionError
        assert t.drain() == 1
        assert news.ran == [(2, 1)]


async def test_an_async_engine_of_the_case(news: News, async_engine: Any) -> None:
    # contract: X1
    publish = declared(news)
    async with async_engine() as engine, news.case(engine=engine) as t:
        async with engine.begin() as connection:
            await publish.aenqueue(Article(1), connection=connection)
        await publish.aenqueue(Article(2))
        assert await t.adrain() == 2


def test_a_connection_of_the_case_leaves_nothing(news: News, engine: sa.Engine, database_url: str) -> None:
    # contract: X1
    @news.jobs.job(max_attempts=3, timeout=30, name="sync")
    def sync(input: Article) -> None:
        publish.enqueue(input, key="from a thread")

    publish = declared(news)
    app = App(database_url)
    app.migrate()
    app.close()
    with engine.connect() as connection:
        with news.case(connection=connection) as t:
            sync.enqueue(Article(1))
            with Session(connection) as session:
                publish.enqueue(Article(2), connection=session)
                session.commit()
            with Session(connection) as session:
                publish.enqueue(Article(3), connection=session)
                session.rollback()
            assert t.drain() == 3
            assert [found.input.id for found in t.enqueued(publish)] == [2, 1]
            with pytest.raises(KitError, match="one connection"):
                t.engine()
        assert connection.execute(sa.text("SELECT count(*) FROM rowlock_job")).scalar_one() == 0
        connection.commit()
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM rowlock_job")).scalar_one() == 0


@pytest.mark.databases("sqlite", "postgresql", reason="S1: on MariaDB making the tables would commit the transaction")
def test_a_connection_can_hold_the_tables_too(news: News, engine: sa.Engine) -> None:
    # contract: X1
    publish = declared(news)
    for _ in range(2):  # on one pooled connection: what it remembered of the first case's tables is gone with them
        with engine.connect() as connection, news.case(connection=connection) as t:
            publish.enqueue(Article(1), connection=connection)
            assert t.drain() == 1
    assert sa.inspect(engine).get_table_names() == []


@pytest.mark.databases("mariadb", reason="S1: elsewhere DDL is part of the transaction")
def test_a_connection_without_the_tables_is_refused_where_they_would_commit(news: News, engine: sa.Engine) -> None:
    # contract: X1, S1
    declared(news)
    with engine.connect() as connection, pytest.raises(NotMigrated), news.case(connection=connection):
        pass
    assert sa.inspect(engine).get_table_names() == []


def test_what_a_case_can_not_live_on_is_refused(news: News, engine: sa.Engine) -> None:
    # contract: X1
    with engine.connect() as connection:
        with Session(connection) as session, pytest.raises(TypeError, match=r"session\.connection\(\)"):
            news.case(connection=session).__enter__()
        with pytest.raises(ValueError, match="exclude"):
            news.case(connection=connection, engine=engine)
    autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")
    with autocommit.connect() as connection, pytest.raises(KitError, match="autocommit"):
        news.case(connection=connection).__enter__()
    with pytest.raises(ValueError, match="'other'"), news.case(engine={"other": engine}):
        pass


def test_each_database_of_an_application_has_its_place(engine: sa.Engine) -> None:
    # contract: X1, E3
    app = App("sqlite:////nowhere/a.db", databases={"reports": "sqlite:////nowhere/b.db"})

    @app.job(max_attempts=1, timeout=30, name="plain")
    def plain() -> None:
        report.enqueue()

    @app.job(max_attempts=1, timeout=30, name="report", database="reports")
    def report() -> None: ...

    with TestApp(app, engine={"reports": engine}) as t:
        plain.enqueue()
        assert t.drain() == 2
        assert t.records.counts(database="reports")[0].count == 1
        assert t.url("reports").database == engine.url.database
        with t.engine().begin() as connection, pytest.raises(WrongDatabase):
            report.enqueue(connection=connection)


# --- X2 ------------------------------------------------------------------------------------------------------


def test_what_a_handler_enqueues_runs_in_the_same_drain(news: News, opened: Opened) -> None:
    # contract: X2; case C86
    @news.jobs.job(max_attempts=3, timeout=30, name="first")
    async def first(input: Article) -> None:
        news.ran.append("first")
        await second.aenqueue(input)
        await second.aenqueue(input, delay=60)

    @news.jobs.job(max_attempts=3, timeout=30, name="second")
    def second(input: Article) -> None:
        news.ran.append("second")
        third.enqueue(key="once")

    @news.jobs.job(max_attempts=3, timeout=30, name="third")
    def third(ctx: Context) -> None:
        news.ran.append(f"third {ctx.key} {ctx.attempt}")
        if ctx.attempt < 3:
            raise RuntimeError

    with opened() as t:
        first.enqueue(Article(1))
        assert t.drain() == 3
        assert news.ran == ["first", "second", "third once 1"]
        t.assert_enqueued(second, count=2)
        t.assert_enqueued(second, state="pending", count=1)
        t.advance(1)
        assert t.drain() == 1
        t.advance(2)
        assert t.drain() == 1
        assert news.ran[3:] == ["third once 2", "third once 3"]
        t.advance(57)
        assert t.drain() == 2
        assert news.ran[5:] == ["second", "third once 1"]


def test_a_handler_that_moves_the_clock_brings_what_becomes_due(news: News, opened: Opened) -> None:
    # contract: X2
    publish = declared(news)

    @news.jobs.job(max_attempts=1, timeout=30, name="patient")
    def patient() -> None:
        publish.enqueue(Article(1), delay=10)
        t.advance(10)

    with opened() as t:
        patient.enqueue()
        assert t.drain() == 2


# --- X4, X5 --------------------------------------------------------------------------------------------------


def test_a_job_can_not_be_called_in_a_case_either(news: News, opened: Opened) -> None:
    # contract: X4, J2
    publish = declared(news)
    with opened(), pytest.raises(DirectCall, match=r"\.handler"):
        publish(Article(1))


def test_two_cases_never_see_each_other(news: News, opened: Opened) -> None:
    # contract: X5
    @news.jobs.job(max_attempts=1, timeout=30, name="chain")
    async def chain(input: Article) -> None:
        news.ran.append(input.id)
        if input.id < 100:
            await chain.aenqueue(Article(input.id + 100))

    with opened() as outer:
        chain.enqueue(Article(1))
        with news.case() as inner:
            chain.enqueue(Article(2))
            inner.advance(days=1)
            assert [found.input.id for found in outer.enqueued(chain)] == [1]
            assert [found.input.id for found in inner.enqueued(chain)] == [2]
            assert outer.drain() == 2
            assert news.ran == [1, 101]
            assert inner.drain() == 2
        assert news.ran == [1, 101, 2, 102]
        assert outer.now < inner.now
        chain.enqueue(Article(3))
        assert outer.drain() == 2


def test_a_case_keeps_the_promises_that_a_double_breaks(news: News, opened: Opened) -> None:
    # contract: X1; case C87
    @news.jobs.job(max_attempts=1, timeout=30, name="note")
    def note(input: Note) -> None:
        news.ran.append(input.words)

    with opened() as t:
        words = ["as enqueued"]
        assert note.enqueue(Note(words), key="k").created
        words.append("too late")
        assert not note.enqueue(Note(words), key="k").created
        assert t.drain() == 1
        assert news.ran == [["as enqueued"]]
        assert note.enqueue(Note([]), key="k").created
        with pytest.raises(EncodeError):
            note.enqueue(Note(["\ud800"]))


def test_nothing_of_a_case_is_left_in_the_application(news: News, opened: Opened) -> None:
    # contract: X5
    configured, settings = news.app.databases, news.app.settings
    with opened():
        assert isinstance(news.app.databases["default"], Database)
        assert news.app.databases["default"] is not configured["default"]
    assert news.app.databases is configured
    assert news.app.settings is settings


# --- helpers -------------------------------------------------------------------------------------------------


def execute(t: TestApp, statement: sa.Executable) -> list[Any]:
    """A statement beside Rowlock, in the case's database."""

    def run(connection: sa.Connection, _: Database) -> list[Any]:
        result = connection.execute(statement)
        return list(result) if result.returns_rows else []

    return t.databases["default"].run(run)


def rows(t: TestApp) -> list[Any]:
    return execute(t, sa.text("SELECT * FROM rowlock_job ORDER BY id"))
