"""`dedupe_for`: a succeeded record answers for its key while its creation is younger than the window (E5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from rowlock import App, Context, DeclarationError, Enqueued, EnqueueValueError, Jobs, State
from rowlock.store import schema
from rowlock.store.clock import Clock
from rowlock.testing import TestApp
from support.databases import Database
from support.waiting import wait_until

AppFactory = Callable[..., App]
NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
MICROSECOND = timedelta(microseconds=1)


class Case:
    """A case on the test's engine, with a job that has a window and one that has none."""

    def __init__(self, engine: sa.Engine) -> None:
        jobs = Jobs()
        self.engine = engine
        self.ran: list[int] = []

        @jobs.job(max_attempts=2, timeout=30, name="charge", dedupe_for=HOUR)
        def charge(ctx: Context) -> None:
            self.ran.append(ctx.id)
            if "fails" in ctx.headers:
                raise ValueError

        @jobs.job(max_attempts=2, timeout=30, name="plain")
        def plain() -> None: ...

        self.charge, self.plain = charge, plain
        self.kit = TestApp(App("sqlite:////nowhere/at/all.db", include=[jobs]), engine=engine, now=NOON)

    def add(self, **columns: Any) -> int:
        """A record as it may stand in the table."""
        row = {
            "job": "charge", "fingerprint": self.charge.wire.fingerprint, "payload": "null", "queue": "default",
            "priority": 100, "run_at": NOON, "attempt": 1, "max_attempts": 2, "timeout_ms": 30_000, "handed_back": 0,
            "created_at": NOON, "key": "k", "state": "succeeded",
        }  # fmt: skip
        with self.engine.begin() as connection:
            connection.execute(schema.job.insert().values(**{**row, **columns}))
            return connection.execute(sa.select(sa.func.max(schema.job.c.id))).scalar_one()

    def rows(self) -> list[Any]:
        with self.engine.connect() as connection:
            return list(connection.execute(sa.select(schema.job).order_by(schema.job.c.id)))


@pytest.fixture
def case(engine: sa.Engine) -> Iterator[Case]:
    made = Case(engine)
    with made.kit:
        yield made


# --- scope, state and time -------------------------------------------------------------------------------------------


def documented() -> Iterator[tuple[str, str, str]]:
    """The cells of the table in docs/jobs.md: a state, a column's title, and the answer."""
    text = (Path(__file__).parents[2] / "docs" / "jobs.md").read_text()
    table = text.partition("| the earlier record is |")[2].partition("\n\n")[0]
    titles, _, *lines = [[cell.strip() for cell in line.strip("| ").split("|")] for line in table.splitlines()]
    for state, *answers in lines:
        for title, answer in zip(titles, answers, strict=True):
            yield state, title, answer


AGES = {
    "without a window": [timedelta(0), MICROSECOND, HOUR * 24],
    "younger than the window": [timedelta(0), MICROSECOND, HOUR - MICROSECOND],
    "as old as the window, or older": [HOUR, HOUR + MICROSECOND, HOUR * 24],
}


async def test_the_documented_table_is_what_happens(case: Case) -> None:
    # contract: E5, E4
    # case: C54 (54 rows of scope, state and time, by each door)
    cells = list(documented())
    assert {state for state, _, _ in cells} == {str(state) for state in State}
    number = 0
    for state, title, answer in cells:
        job: Any = case.plain if title == "without a window" else case.charge
        for age in AGES[title]:
            lease = NOON + HOUR if state == "running" else None
            where = {"job": job.name, "state": state, "created_at": NOON - age, "lease": lease, "token": "t"}
            keys = [f"{state} {title} {age} {n}" for n in range(5)]
            there = [case.add(key=key, **where) for key in keys]
            with case.engine.begin() as connection:
                answers = [job.enqueue(key=keys[0], connection=connection)]
                answers += job.enqueue_many([(None, {"key": keys[1]})], connection=connection)
            answers += [job.enqueue(key=keys[2]), *job.enqueue_many([(None, {"key": keys[3]}), None])[:1]]
            answers += [await job.aenqueue(key=keys[4])]
            if answer == "new":
                assert [each.created for each in answers] == [True] * 5, (state, title, age)
                assert {each.state for each in answers} == {State.PENDING}
            else:
                assert answers == [Enqueued(id_, False, State(state)) for id_ in there], (state, title, age)
            number += 1
    assert number == 54


def test_the_window_counts_from_the_enqueue_not_from_when_it_is_due(case: Case) -> None:
    # contract: E5
    # case: C54
    first = case.charge.enqueue(key="k", delay=HOUR * 24)
    case.kit.advance(minutes=30)
    assert case.charge.enqueue(key="k", delay=HOUR * 48) == Enqueued(first.id, False, State.PENDING)
    case.kit.advance(minutes=31)  # over, and still queued: E4 goes on
    assert case.charge.enqueue(key="k") == Enqueued(first.id, False, State.PENDING)
    case.kit.advance(hours=24)
    assert case.kit.drain() == 1
    assert case.charge.enqueue(key="k").created  # its creation is more than a day ago


def test_the_way_of_one_key(case: Case) -> None:
    # contract: E5
    # case: C51, C53
    first = case.charge.enqueue(key="k")
    assert first.created
    assert case.charge.enqueue(key="k") == Enqueued(first.id, False, State.PENDING)
    case.kit.drain()
    before = case.rows()
    case.kit.advance(minutes=59)
    for _ in range(3):
        assert case.charge.enqueue(key="k", priority=0) == Enqueued(first.id, False, State.SUCCEEDED)
    assert case.rows() == before
    assert case.plain.enqueue(key="k").created  # keys are a job's own
    assert case.charge.enqueue(key="K").created
    case.kit.advance(minutes=1)
    second = case.charge.enqueue(key="k")
    assert second.created
    assert second.id > first.id
    case.kit.drain()
    assert case.charge.enqueue(key="k") == Enqueued(second.id, False, State.SUCCEEDED)
    assert first.id in case.ran
    assert case.ran.count(second.id) == 1


def test_a_running_record_is_met_and_left_as_it_is(case: Case) -> None:
    # contract: E5, E4
    # case: C51 (of its scopes Rowlock has "queued and running", and with a window that and succeeded)
    id_ = case.add(
        state="running", lease=NOON + HOUR, token="t", claimed_by="w", claimed_at=NOON, created_at=NOON - HOUR * 9
    )
    before = case.rows()
    with case.engine.begin() as connection:
        for answer in [case.charge.enqueue(key="k"), case.charge.enqueue(key="k", connection=connection),
                       *case.charge.enqueue_many([(None, {"key": "k"})] * 2)]:  # fmt: skip
            assert answer == Enqueued(id_, False, State.RUNNING)
    assert case.rows() == before


def test_failed_and_blocked_records_free_the_key_at_once(case: Case) -> None:
    # contract: E5
    dead = case.charge.enqueue(key="k", headers={"fails": "1"})
    case.kit.drain()
    assert case.charge.enqueue(key="k") == Enqueued(dead.id, False, State.PENDING)  # it is tried again
    case.kit.advance(minutes=1)
    case.kit.drain()
    assert case.kit.records.get(dead.id).state is State.DEAD
    assert case.charge.enqueue(key="k").created


def test_a_succeeded_record_answers_though_a_later_one_died(case: Case) -> None:
    # contract: E5
    id_ = case.add(created_at=NOON - timedelta(minutes=50))
    case.add(state="dead", created_at=NOON - timedelta(minutes=10))
    case.add(created_at=NOON - timedelta(minutes=70))
    assert case.charge.enqueue(key="k") == Enqueued(id_, False, State.SUCCEEDED)
    later = case.add(created_at=NOON - timedelta(minutes=20))
    assert case.charge.enqueue(key="k").id == later  # the last of several


def test_aliases_share_the_window(engine: sa.Engine, case: Case) -> None:
    # contract: E5, J4
    id_ = case.add(job="old.name")
    renamed = Jobs()
    charge = renamed.declare("new.name", aliases=("older", "old.name"), max_attempts=2, timeout=30, dedupe_for=HOUR)
    case.kit.app.include(renamed)
    assert charge.enqueue(key="k") == Enqueued(id_, False, State.SUCCEEDED)
    assert [each.id for each in charge.enqueue_many([(None, {"key": "k"}), (None, {"key": "k"})])] == [id_, id_]
    assert charge.enqueue(key="other").created


def test_without_a_key_nothing_is_a_duplicate(case: Case) -> None:
    # contract: E5
    case.add(key=None)
    assert case.charge.enqueue().created
    assert [each.created for each in case.charge.enqueue_many([None] * 3)] == [True] * 3


# --- many ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("joined", [False, True], ids=["own", "joined"])
def test_many_answer_each_item_in_order(case: Case, joined: bool) -> None:
    # contract: E5, E1
    # case: C52
    done = {f"k{n}": case.add(key=f"k{n}") for n in range(0, 50, 5)}
    stale = [case.add(key=f"k{n}", created_at=NOON - HOUR) for n in range(1, 50, 5)]
    keys = [f"k{n}" for n in range(990)] + [f"k{n}" for n in range(100, 110)]
    items: list[Any] = [(None, {"key": key}) for key in keys]
    with case.engine.begin() as connection:
        options = {"connection": connection} if joined else {}
        with pytest.raises(EnqueueValueError, match="item 1000"):
            case.charge.enqueue_many([*items, (None, {"key": " "})], **options)
        answers = case.charge.enqueue_many(items, **options)
    assert sum(each.created for each in answers) == 980
    for key, answer in zip(keys, answers, strict=True):
        if key in done:
            assert answer == Enqueued(done[key], False, State.SUCCEEDED)
    assert answers[990:] == [Enqueued(each.id, False, State.PENDING) for each in answers[100:110]]
    assert {each.id for each in answers}.isdisjoint(stale)
    by_id = {row.id: row.key for row in case.rows()}
    assert [by_id[each.id] for each in answers] == keys


# --- whose clock -----------------------------------------------------------------------------------------------------


@pytest.mark.databases("postgresql", "mariadb", reason="L2: SQLite's clock is the host's")
def test_the_age_is_by_the_databases_clock(
    app_factory: AppFactory, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # contract: E5, L2
    def asked(self: Clock) -> datetime:
        raise AssertionError("the host's clock was asked")

    monkeypatch.setattr(Clock, "host_now", asked)
    app = app_factory()
    charge = app.declare("charge", max_attempts=1, timeout=1, dedupe_for=HOUR)
    plus = app.databases["default"].dialect.plus_ms
    for zone in (None, "+13:00", "-12:00"):  # a session's own
        for ms, created in ((3_590_000, False), (3_600_000, True)):
            first = charge.enqueue(key=f"{zone}{ms}")
            with engine.begin() as conn:
                conn.exec_driver_sql(
                    f"UPDATE rowlock_job SET state = 'succeeded', created_at = {plus('created_at', f'-{ms}')}"
                    f" WHERE id = {first.id}"
                )
            with engine.begin() as conn:
                if zone:
                    conn.exec_driver_sql(f"SET {'timezone' if engine.name == 'postgresql' else 'time_zone'} = '{zone}'")
                assert charge.enqueue(key=f"{zone}{ms}", connection=conn).created is created
                conn.rollback()
            assert charge.enqueue(key=f"{zone}{ms}").created is created


# --- the window and the retention ------------------------------------------------------------------------------------


def test_a_window_that_outlasts_the_records_is_refused(app_factory: AppFactory, database: Database) -> None:
    # contract: E5, N4
    # case: C55 (refused, where the scenario would keep the key apart from the record)
    week = timedelta(days=7)
    for window, shown in (
        (week + timedelta(milliseconds=1), "604,800.001 s"),
        (timedelta(days=8), "8 d"),
        (timedelta(days=3_650), "3,650 d"),
    ):
        jobs = Jobs()
        jobs.declare("charge", max_attempts=1, timeout=1, dedupe_for=window)
        with pytest.raises(DeclarationError, match=f"7 d, and dedupe_for of job 'charge' needs them for {shown} "):
            app_factory(jobs, migrate=False)
    app = app_factory()
    app.declare("equal", max_attempts=1, timeout=1, dedupe_for=week)  # equal is legal
    with pytest.raises(DeclarationError, match=r"604,800\.001 s"):
        app.declare("later", max_attempts=1, timeout=1, dedupe_for=week + timedelta(milliseconds=1))
    longer = {"database": {"default": {"url": database.url}}, "retention": {"overrides": {"rowlock_job": "14d"}}}
    app = app_factory(settings=longer, migrate=False)
    app.declare("longer", max_attempts=1, timeout=1, dedupe_for=timedelta(days=14))
    with pytest.raises(DeclarationError, match=r"14 d, .*1,209,600\.001 s"):
        app.declare("too long", max_attempts=1, timeout=1, dedupe_for=timedelta(days=14, milliseconds=1))


def test_an_override_below_a_window_is_rejected(app_factory: AppFactory, database: Database) -> None:
    # contract: E5, N4, N5
    short = {"database": {"default": {"url": database.url}}, "retention": {"overrides": {"rowlock_job": "1h"}}}
    app = app_factory(settings=short, migrate=False)
    assert app.retention.violations() == []
    app.declare("charge", max_attempts=1, timeout=1, dedupe_for=timedelta(hours=24))
    [violation] = app.retention.violations()
    assert "dedupe_for of job 'charge' needs rows for 1 d" in violation
    assert "7 d go on" in violation


def test_retention_leaves_the_records_that_still_answer(engine: sa.Engine) -> None:
    # contract: E5, N2, N4, N5
    # case: C55
    jobs = Jobs()

    @jobs.job(max_attempts=1, timeout=30, name="charge", dedupe_for=timedelta(hours=24))
    def charge() -> None: ...

    app = App("sqlite:////nowhere/at/all.db", include=[jobs])
    with TestApp(app, engine=engine, now=NOON) as kit:
        first = charge.enqueue(key="k")
        kit.drain()
        kit.advance(hours=2)
        kit.sweep()
        assert charge.enqueue(key="k") == Enqueued(first.id, False, State.SUCCEEDED)
        kit.advance(hours=22)
        second = charge.enqueue(key="k")
        assert second.created
        kit.drain()
        kit.advance(days=7, hours=1)
        kit.sweep()  # and nothing of a key outlasts its records
        assert kit.records.list().items == []


# --- live ------------------------------------------------------------------------------------------------------------


def test_what_a_worker_finishes_is_a_duplicate_for_all_who_ask(
    app_factory: AppFactory, database: Database, engine: sa.Engine
) -> None:
    # contract: E5
    jobs, ran = Jobs(), list[int]()

    @jobs.job(max_attempts=1, timeout=30, name="charge", dedupe_for=HOUR)
    def charge(ctx: Context) -> None:
        ran.append(ctx.id)

    app = app_factory(jobs, settings={"database": {"default": {"url": database.url}}, "job": {"poll_ms": 1}})
    with app.worker_thread():
        first = charge.enqueue(key="k")
        wait_until(lambda: app.records.get(first.id).state is State.SUCCEEDED)
        again = [charge.enqueue(key="k"), *charge.enqueue_many([(None, {"key": "k"}), (None, {"key": "k"})])]
        with engine.begin() as connection:
            again.append(charge.enqueue(key="k", connection=connection))
    assert again == [Enqueued(first.id, False, State.SUCCEEDED)] * 4
    assert ran == [first.id]


def test_a_handlers_own_transaction_joins_it_too(
    app_factory: AppFactory, database: Database, engine: sa.Engine
) -> None:
    # contract: E5, L8, E2
    jobs, answers = Jobs(), list[Enqueued]()
    charge = jobs.declare("charge", max_attempts=1, timeout=30, dedupe_for=HOUR)

    @jobs.job(max_attempts=1, timeout=30, name="order", transactional=True)
    def order(ctx: Context) -> None:
        answers.append(charge.enqueue(key="k", connection=ctx.connection))
        answers.append(charge.enqueue(key="other", connection=ctx.connection))

    app = app_factory(jobs, settings={"database": {"default": {"url": database.url}}, "job": {"poll_ms": 10}})
    first = charge.enqueue(key="k")
    with engine.begin() as connection:
        connection.execute(schema.job.update().values(state="succeeded"))
    made = order.enqueue()
    with app.worker_thread():
        wait_until(lambda: app.records.get(made.id).state is State.SUCCEEDED)
    assert answers[0] == Enqueued(first.id, False, State.SUCCEEDED)
    assert answers[1].created
    assert app.records.get(answers[1].id).state is State.PENDING
