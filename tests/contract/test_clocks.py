"""Which clock says when: attempts that end late, clients with a wrong clock, times as text (R1, R3, L2, E6, S5)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from rowlock import App, Backoff, Context, Dead, Jobs, Retry, Snooze, State
from rowlock.store import schema
from rowlock.store.clock import Clock
from rowlock.testing import TestApp
from support.databases import Database
from support.jobtable import JobTable
from support.live import Live
from support.story import all_on_sqlite
from support.waiting import wait_until

NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)
AppFactory = Callable[..., App]


class Case:
    """A case on the test's engine, its jobs, and the ids of what ran, in order."""

    def __init__(self, engine: sa.Engine, **options: Any) -> None:
        self.jobs = Jobs()
        self.ran: list[int] = []
        self.kit = TestApp(App("sqlite:////nowhere/at/all.db", include=[self.jobs]), engine=engine, now=NOON, **options)


@pytest.fixture
def case(engine: sa.Engine) -> Iterator[Case]:
    made = Case(engine)
    with made.kit:
        yield made


# --- C65, C67: when a retry is due ------------------------------------------------------------------------------------


@all_on_sqlite("attempt", [2**31 - 2, 100, 2_000])
def test_an_attempt_number_beyond_every_limit_runs_nothing_and_fails_nothing(
    case: Case, engine: sa.Engine, attempt: int
) -> None:
    # contract: C5, R1, R2
    # case: C65 (attempts without a limit do not exist: J1 has 1..100)
    @case.jobs.job(max_attempts=100, timeout=5, name="run")
    def run(ctx: Context) -> None:
        case.ran.append(ctx.id)
        raise ValueError

    spent, last, behind = (run.enqueue().id for _ in range(3))
    with engine.begin() as connection:
        for id_, number in ((spent, attempt), (last, 99)):
            connection.execute(schema.job.update().where(schema.job.c.id == id_).values(attempt=number))
    case.kit.drain()
    found = case.kit.records.get(spent)
    assert (found.state, found.attempt, found.error_category) == (State.DEAD, attempt, "attempts_exhausted")
    assert (case.kit.records.get(last).state, case.kit.records.get(last).attempt) == (State.DEAD, 100)
    assert case.kit.records.get(behind).run_at <= NOON + timedelta(seconds=300)
    assert case.ran == [last, behind]


def test_a_retry_is_due_its_delay_after_the_end_of_a_long_run_and_jumps_no_queue(case: Case) -> None:
    # contract: R1, C2
    # case: C67
    @case.jobs.job(max_attempts=3, timeout=60, backoff=Backoff(base=2, cap=2), name="fails")
    def fails(ctx: Context) -> None:
        case.ran.append(ctx.id)
        if ctx.attempt == 1:
            case.kit.advance(seconds=3)  # longer than its delay
            raise ValueError

    @case.jobs.job(max_attempts=1, timeout=5, name="other")
    def other(ctx: Context) -> None:
        case.ran.append(ctx.id)

    failing = fails.enqueue().id
    earlier = [made.id for made in other.enqueue_many([(None, {"delay": 4 + n / 100}) for n in range(100)])]
    later = other.enqueue(delay=5.5).id
    assert case.kit.drain() == 1
    found = case.kit.records.get(failing)
    assert (found.state, found.run_at) == (State.PENDING, NOON + timedelta(seconds=3 + 2))  # not 0 + 2, already past
    assert case.kit.drain() == 0
    case.kit.advance(seconds=10)
    assert case.kit.drain() == 102
    assert case.ran == [failing, *earlier, failing, later]


async def test_by_the_databases_clock_the_gap_is_the_delay(app_factory: AppFactory, database: Database) -> None:
    # contract: R1, L2
    # case: C67
    live = Live(app_factory, database, retry_base_ms=400, retry_max_ms=400)

    @live.jobs.job(max_attempts=2, timeout=5)
    def fails(ctx: Context) -> None:
        raise ValueError

    made = fails.enqueue()
    async with live.worker():
        await live.until(made, lambda record: record.state == "pending" and record.attempt == 1)
        before = await live.app.records.aget(made.id)
        await live.ended(made)
        after = await live.app.records.aget(made.id)
    assert before.claimed_at
    assert after.claimed_at
    # Its settlement is after its claim, and its next claim is not before it is due.
    assert before.run_at - before.claimed_at >= timedelta(milliseconds=360)  # less the jitter of a tenth
    assert after.claimed_at >= before.run_at
    assert (after.state, after.attempt) == ("dead", 2)


# --- C72: a timeout is an attempt like any other ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("lease", [10, 30, 90])
def test_one_attempt_that_times_out_is_one_start(engine: sa.Engine, dialect: str, kind: str, lease: int) -> None:
    # contract: R2, R3, L4
    # case: C72
    if lease <= 30 and dialect == "sqlite":
        pytest.skip("only postgresql, mariadb: L5: on SQLite a lease covers the timeout")
    case = Case(engine, leases="declared")

    @case.jobs.job(max_attempts=1, timeout=30, lease=lease, overrun=3_600, name="slow sync")
    def slow(ctx: Context) -> None:
        case.ran.append(ctx.id)
        case.kit.advance(seconds=31)

    @case.jobs.job(max_attempts=1, timeout=30, lease=lease, overrun=3_600, name="slow async")
    async def aslow(ctx: Context) -> None:
        case.ran.append(ctx.id)
        case.kit.advance(seconds=31)

    with case.kit:
        made = (slow if kind == "sync" else aslow).enqueue()
        assert case.kit.drain() == 1
        found = case.kit.records.get(made.id)
        assert (found.state, found.attempt, found.error_category) == (State.DEAD, 1, "timed_out")
        for _ in range(3):
            case.kit.advance(hours=1)
            assert case.kit.drain() == 0
        assert case.ran == [made.id]


# --- C73, C74: a client whose clock is wrong --------------------------------------------------------------------------

SERVERS = pytest.mark.databases("postgresql", "mariadb", reason="L2: SQLite's clock is the host's")


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch) -> Callable[[timedelta], None]:
    """Sets the clock of this process wrong, at the only place where Rowlock reads it."""

    def by(shift: timedelta) -> None:
        monkeypatch.setattr(Clock, "host_now", lambda self: datetime.now(UTC) + shift)

    return by


@SERVERS
@pytest.mark.parametrize("minutes", [-5, 5, -10])
def test_a_client_with_a_wrong_clock_is_served_in_time(
    app_factory: AppFactory, database: Database, engine: sa.Engine, wrong: Callable[[timedelta], None], minutes: int
) -> None:
    # contract: L2, E6
    # case: C73, C74
    jobs, seen = Jobs(), dict[int, float]()

    @jobs.job(max_attempts=1, timeout=30, name="run")
    def run(ctx: Context) -> None:
        seen[ctx.id] = ctx.attempt

    app = app_factory(jobs, settings={"database": {"default": {"url": database.url}}, "job": {"poll_ms": 20}})
    db = app.databases["default"]

    def utc(value: Any) -> datetime:
        found = db.dialect.from_db(value)
        assert found is not None
        return found

    def server() -> datetime:
        with db.engine().connect() as connection:
            return utc(connection.execute(sa.text(f"SELECT {db.dialect.now(db)}")).scalar_one())

    at = server() + timedelta(seconds=0.6)
    wrong(timedelta(minutes=minutes))
    before = server()
    with Session(engine) as session:
        answers = [run.enqueue(), run.enqueue(delay=0.3), run.enqueue(run_at=at), run.enqueue(connection=session)]
        answers += run.enqueue_many([(None, {"delay": 0.3}), (None, {"run_at": at})], connection=session)
        session.commit()
    after = server()
    with app.worker_thread():  # whose clock is as wrong
        wait_until(lambda: len(seen) == len(answers))
        wait_until(
            lambda: app.records.list(state="succeeded").items[-1:] and not app.records.list(state="running").items
        )
    waits = [0.0, 0.3, None, 0.0, 0.3, None]
    for answer, wait in zip(answers, waits, strict=True):
        found = app.records.get(answer.id)
        assert before <= found.created_at <= after
        assert found.run_at == (at if wait is None else found.created_at + timedelta(seconds=wait))
        assert found.claimed_at is not None
        assert found.finished_at is not None
        assert found.run_at <= found.claimed_at <= found.finished_at <= server()
        # In time: by a clock that is minutes wrong it would have been at once, or minutes later.
        assert found.claimed_at - found.run_at < timedelta(seconds=20)


def test_in_a_long_transaction_now_is_the_enqueue(
    app_factory: AppFactory, engine: sa.Engine, jobs: Jobs, ping: Any
) -> None:
    # contract: E6, C2
    # case: C74 (the order: by the moment of the enqueue, whenever its transaction began or commits)
    app = app_factory(jobs)
    with engine.connect() as conn:
        conn.execute(sa.text("SELECT count(*) FROM rowlock_job")).all()  # the transaction has begun
        begun = app.records.get(ping.enqueue().id).created_at
        conn.rollback() if engine.name == "sqlite" else None  # whose snapshot would be too old to write in
        inside = ping.enqueue(connection=conn)
        if engine.name != "sqlite":  # one writer: nobody enqueues in between there
            between = ping.enqueue()
        conn.commit()
    found = app.records.get(inside.id)
    assert found.created_at > begun
    assert found.run_at == found.created_at
    if engine.name != "sqlite":
        assert app.records.get(between.id).run_at >= found.run_at


# --- C75: times as text -----------------------------------------------------------------------------------------------


@pytest.mark.databases("sqlite", reason="C75: the other databases have a native time type")
async def test_every_path_writes_texts_of_one_width(app_factory: AppFactory, database: Database) -> None:
    # contract: S5
    # case: C75
    live, snoozed = Live(app_factory, database, lease_ms=400, unknown_ms=0), list[int]()

    raises: dict[str, Callable[[], BaseException]] = {
        "fail": ValueError,
        "retry at": lambda: Retry(at=datetime.now(UTC)),
        "retry after": lambda: Retry(after=0.001),
        "dead": lambda: Dead("no"),
    }

    @live.jobs.job(max_attempts=3, timeout=0.2, lease=0.6)
    async def ends(ctx: Context) -> None:
        how = ctx.headers["how"]
        if how == "slow":
            await asyncio.Event().wait()
        if how == "snooze" and len(snoozed) < 2:
            snoozed.append(ctx.id)
            raise Snooze(0.001)
        if ctx.attempt == 1 and how in raises:
            error = raises[how]()
            raise error

    now = datetime.now(UTC).replace(microsecond=0)
    hows = ["fine", "slow", "snooze", *raises]
    made = [ends.enqueue(headers={"how": how}) for how in hows]
    made += ends.enqueue_many(
        [(None, {"headers": {"how": "fine"}, "run_at": now}), (None, {"headers": {"how": "fine"}, "delay": 0.001})]
    )
    corrupt, stranger, exhausted, expired = (ends.enqueue(headers={"how": "fine"}, delay=0.001) for _ in range(4))
    live.change(corrupt, payload="{")
    live.change(stranger, job="nobody's")
    live.change(exhausted, attempt=3)
    live.change(expired, state="running", token="t", attempt=1, lease=now - timedelta(hours=1))
    async with live.worker():
        for each in [*made, corrupt, stranger, exhausted, expired]:
            await live.ended(each)
        live.change(stranger, job=ends.name)
        assert live.app.records.release(stranger.id).count == 1
        await live.ended(stranger)
    wide = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}")
    engine, seen = sa.create_engine(database.sync_url), 0
    with engine.connect() as conn:
        for table in sa.inspect(engine).get_table_names():
            if not table.startswith("rowlock_"):
                continue
            for row in conn.execute(sa.text(f"SELECT * FROM {table}")).mappings():
                for name, value in row.items():
                    if value is not None and re.search(r"(_at|lease|until|since)$", name):
                        assert wide.fullmatch(value), (table, name, value)
                        seen += 1
    engine.dispose()
    assert seen > 40


@pytest.mark.databases("sqlite", reason="C75: the other databases have a native time type")
def test_whole_seconds_and_parts_of_them_sort_as_time(database: Database) -> None:
    # contract: S5, C2
    # case: C75
    with JobTable(database) as jobs:
        parts = [0, 1, 10, 100_000, 999_999]
        due = [
            jobs.add(run_at=NOON - timedelta(seconds=1) + timedelta(microseconds=part))[0] for part in reversed(parts)
        ]
        jobs.clock.time = NOON - timedelta(seconds=1)  # exactly the first of them
        assert [record.id for record in jobs.claim(9)] == due[-1:]
        jobs.clock.time = NOON - timedelta(microseconds=1)
        assert [record.id for record in jobs.claim(9)] == due[-2::-1]
        with jobs.db.engine().connect() as connection:
            texts = set(connection.exec_driver_sql("SELECT lease FROM rowlock_job").scalars())
        assert texts == {"2027-03-01 12:00:59.000000", "2027-03-01 12:00:59.999999"}
