"""A handler whose effects commit with its settlement, or not at all, on every database (L8, R5, C8)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import App, Context, Dead, Drop, Jobs, Retry, Snooze, StartRefused, TransactionMisuse
from rowlock.store.transactional import HandlerTransaction
from rowlock.testing import TestApp, context
from support.databases import Database
from support.live import Live
from support.proxy import Proxy
from support.races import Blocker
from support.waiting import BOUND, wait_until, wait_until_async

KINDS = pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])


class Base(DeclarativeBase): ...


class Receipt(Base):
    __tablename__ = "receipts"
    id: Mapped[int] = mapped_column(primary_key=True)
    what: Mapped[str] = mapped_column(sa.String(50), unique=True)


@dataclass(frozen=True)
class Charge:
    what: str


@pytest.fixture
def receipts(engine: sa.Engine) -> Callable[[], list[str]]:
    """The user's table, and what is committed in it."""
    Base.metadata.create_all(engine)

    def committed() -> list[str]:
        with engine.connect() as connection:
            return sorted(connection.scalars(sa.select(Receipt.what)))

    return committed


@pytest.fixture
def live(app_factory: Callable[..., App], database: Database) -> Live:
    return Live(app_factory, database, workers=3)


def transactional(live: Live, is_async: bool, act: Callable[[Context, int], Any], **options: Any) -> Any:
    """A job that writes a receipt for each attempt, and then does `act(ctx, attempt)`."""
    options = {"max_attempts": 3, "timeout": 20, "transactional": True, "name": "charge"} | options
    if is_async:

        @live.jobs.job(**options)
        async def charge(input: Charge, ctx: Context) -> Dead | Drop | Retry | Snooze | None:
            ctx.asession().add(Receipt(what=f"{input.what} {ctx.attempt}"))
            await ctx.asession().flush()
            answer = act(ctx, ctx.attempt)
            return await answer if asyncio.iscoroutine(answer) else answer

    else:

        @live.jobs.job(**options)
        def charge(input: Charge, ctx: Context) -> Dead | Drop | Retry | Snooze | None:
            ctx.session().add(Receipt(what=f"{input.what} {ctx.attempt}"))
            return act(ctx, ctx.attempt)

    return charge


def boom() -> None:
    raise ValueError("S3CR3T")


# --- what commits, and what does not -----------------------------------------------------------------------------


@KINDS
async def test_effects_commit_with_the_settlement(
    live: Live, receipts: Callable[[], list[str]], is_async: bool
) -> None:
    # contract: L8
    job = transactional(live, is_async, lambda ctx, attempt: None)
    async with live.worker():
        record = await live.ended(job.enqueue(Charge("one")))
        await wait_until_async(lambda: live.told("settled"))
        assert live.app.health()["counters"]["settled"] == {"ack": 1}
    assert (record.state, record.attempt) == ("succeeded", 1)
    assert receipts() == ["one 1"]
    assert [event.outcome for event in live.told("settled")] == ["ack"]


@KINDS
@pytest.mark.parametrize(
    ("first", "state"),
    [
        (boom, "succeeded"),
        (Retry, "succeeded"),
        (lambda: Snooze(0.001), "succeeded"),
        (lambda: (_ for _ in ()).throw(Retry()), "succeeded"),
        (lambda: (_ for _ in ()).throw(SystemExit(1)), "succeeded"),
    ],
    ids=["raises", "retry", "snooze", "retry raised", "SystemExit"],
)
async def test_what_is_tried_again_has_not_happened(
    live: Live, receipts: Callable[[], list[str]], is_async: bool, first: Callable[[], Any], state: str
) -> None:
    # contract: L8
    calls: Counter[str] = Counter()

    def act(ctx: Context, attempt: int) -> Any:
        calls["act"] += 1
        return first() if calls["act"] == 1 else None

    job = transactional(live, is_async, act)
    async with live.worker():
        record = await live.ended(job.enqueue(Charge("one")))
    assert record.state == state
    assert calls["act"] == 2
    assert receipts() == [f"one {record.attempt}"], "the first attempt's receipt was undone"


@KINDS
@pytest.mark.parametrize(
    ("say", "state"),
    [
        (lambda: Dead("card refused"), "dead"),
        (Drop, "succeeded"),
        (lambda: (_ for _ in ()).throw(Dead("card refused")), "dead"),
    ],
    ids=["dead", "drop", "dead raised"],
)
async def test_what_ends_the_work_commits(
    live: Live, receipts: Callable[[], list[str]], is_async: bool, say: Callable[[], Any], state: str
) -> None:
    # contract: L8, R6
    job = transactional(live, is_async, lambda ctx, attempt: say())
    async with live.worker():
        record = await live.ended(job.enqueue(Charge("one")))
    assert (record.state, record.attempt) == (state, 1)
    assert receipts() == ["one 1"]


@KINDS
async def test_a_handler_that_is_too_late_has_done_nothing(
    live: Live, receipts: Callable[[], list[str]], is_async: bool
) -> None:
    # contract: L8, R3
    async def act_async(ctx: Context, attempt: int) -> None:
        if attempt == 1:
            await asyncio.Event().wait()

    def act_sync(ctx: Context, attempt: int) -> None:
        if attempt == 1:
            wait_until(lambda: ctx.stopping)

    job = transactional(live, is_async, act_async if is_async else act_sync, timeout=0.3)
    async with live.worker():
        record = await live.ended(job.enqueue(Charge("one")))
    assert (record.state, record.attempt) == ("succeeded", 2)
    assert receipts() == ["one 2"]


@KINDS
async def test_a_handler_that_lost_its_record_changes_nothing(
    live: Live, receipts: Callable[[], list[str]], is_async: bool
) -> None:
    # contract: L8, L1: its own connection takes the token away, so that it works where only one can write, too
    take = sa.text("UPDATE rowlock_job SET token = 'another'")

    async def act_async(ctx: Context, attempt: int) -> None:
        await ctx.aconnection.execute(take)

    def act_sync(ctx: Context, attempt: int) -> None:
        ctx.connection.execute(take)

    job = transactional(live, is_async, act_async if is_async else act_sync, lease=30)
    enqueued = job.enqueue(Charge("one"))
    async with live.worker():
        await wait_until_async(lambda: live.told("lost"))
    assert live.row(enqueued).state == "running", "nothing was written: it waits for its lease"
    assert receipts() == []
    assert not live.told("settled")


# --- the transaction is Rowlock's to end ---------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize("what", ["commit", "rollback"])
@pytest.mark.parametrize("of", ["connection", "session"])
async def test_commit_and_rollback_raise(
    live: Live, receipts: Callable[[], list[str]], is_async: bool, what: str, of: str
) -> None:
    # contract: L8
    caught: list[BaseException] = []

    async def act_async(ctx: Context, attempt: int) -> None:
        try:
            await getattr(ctx.aconnection if of == "connection" else ctx.asession(), what)()
        except TransactionMisuse as error:
            caught.append(error)
            raise

    def act_sync(ctx: Context, attempt: int) -> None:
        try:
            getattr(ctx.connection if of == "connection" else ctx.session(), what)()
        except TransactionMisuse as error:
            caught.append(error)
            raise

    job = transactional(live, is_async, act_async if is_async else act_sync, max_attempts=1)
    async with live.worker():
        record = await live.ended(job.enqueue(Charge("one")))
    assert f"{what} of the attempt's transaction (L8)" in str(caught[0])
    assert (record.state, record.error_class) == ("dead", "rowlock.errors.TransactionMisuse")
    assert receipts() == []


@KINDS
async def test_a_transaction_that_the_handler_ended_by_hand_fails_the_attempt(
    live: Live, receipts: Callable[[], list[str]], is_async: bool
) -> None:
    # contract: L8: what a raw COMMIT has committed can not be undone; that it happened is not passed over
    async def act_async(ctx: Context, attempt: int) -> None:
        await ctx.aconnection.exec_driver_sql("ROLLBACK")

    def act_sync(ctx: Context, attempt: int) -> None:
        ctx.session().flush()
        ctx.connection.exec_driver_sql("COMMIT")

    job = transactional(live, is_async, act_async if is_async else act_sync, max_attempts=1)
    async with live.worker():
        record = await live.ended(job.enqueue(Charge("one")))
    assert (record.state, record.error_class) == ("dead", "rowlock.errors.TransactionMisuse")


@pytest.mark.databases("mariadb", reason="L8: elsewhere DDL does not commit")
async def test_ddl_that_commits_fails_the_attempt(live: Live, receipts: Callable[[], list[str]]) -> None:
    # contract: L8
    def act(ctx: Context, attempt: int) -> None:
        ctx.connection.exec_driver_sql("CREATE TABLE other (id int)")

    job = transactional(live, False, act, max_attempts=1)
    async with live.worker():
        record = await live.ended(job.enqueue(Charge("one")))
    assert (record.state, record.error_class) == ("dead", "rowlock.errors.TransactionMisuse")


@KINDS
async def test_a_part_that_may_fail_has_a_savepoint(
    live: Live, receipts: Callable[[], list[str]], is_async: bool
) -> None:
    # contract: L8
    twice = sa.text("INSERT INTO receipts (id, what) SELECT id + 1, what FROM receipts")

    async def act_async(ctx: Context, attempt: int) -> None:
        try:
            async with ctx.asession().begin_nested():
                await ctx.asession().execute(twice)
        except sa.exc.IntegrityError:
            ctx.asession().add(Receipt(what="the other way"))

    def act_sync(ctx: Context, attempt: int) -> None:
        try:
            with ctx.connection.begin_nested():
                ctx.session().flush()
                ctx.connection.execute(twice)
        except sa.exc.IntegrityError:
            ctx.connection.execute(sa.insert(Receipt).values(what="the other way"))

    job = transactional(live, is_async, act_async if is_async else act_sync, max_attempts=1)
    async with live.worker():
        record = await live.ended(job.enqueue(Charge("one")))
    assert record.state == "succeeded"
    assert "the other way" in receipts()


@KINDS
async def test_what_the_session_could_not_write_fails_the_attempt(
    live: Live, receipts: Callable[[], list[str]], is_async: bool
) -> None:
    # contract: L8: the last flush is Rowlock's, and its failure the handler's
    def act(ctx: Context, attempt: int) -> None:
        session = ctx.asession().sync_session if is_async else ctx.session()
        session.add(Receipt(what="one 1" if attempt == 1 else "fine"))

    job = transactional(live, is_async, act)
    async with live.worker():
        record = await live.ended(job.enqueue(Charge("one")))
    assert (record.state, record.attempt) == ("succeeded", 2)
    assert receipts() == ["fine", "one 2"]


@KINDS
@pytest.mark.parametrize("caught", [False, True], ids=["raised", "caught"])
async def test_a_flush_that_fails_raises_what_failed(
    live: Live, receipts: Callable[[], list[str]], is_async: bool, caught: bool
) -> None:
    # contract: L8, S6: the handler sees its own error, and so does who reads of it; nothing is committed either way
    seen: list[BaseException] = []

    async def act_async(ctx: Context, attempt: int) -> Dead | None:
        ctx.asession().add(Receipt(what="one 1"))
        try:
            await ctx.asession().flush()
        except sa.exc.IntegrityError as error:
            seen.append(error)
            if not caught:
                raise
        return Dead("twice")

    def act_sync(ctx: Context, attempt: int) -> Dead | None:
        ctx.session().add(Receipt(what="one 1"))
        try:
            ctx.session().flush()
        except sa.exc.IntegrityError as error:
            seen.append(error)
            if not caught:
                raise
        return Dead("twice")

    job = transactional(live, is_async, act_async if is_async else act_sync, max_attempts=1)
    async with live.worker():
        record = await live.ended(job.enqueue(Charge("one")))
    expected = "rowlock.errors.TransactionMisuse" if caught else "sqlalchemy.exc.IntegrityError"
    assert (record.state, record.error_category, record.error_class) == ("dead", "failed", expected)
    assert len(seen) == 1
    assert receipts() == []


@KINDS
async def test_a_session_that_the_handler_closed_has_written(
    live: Live, receipts: Callable[[], list[str]], is_async: bool
) -> None:
    # contract: L8, R5
    async def act_async(ctx: Context, attempt: int) -> None:
        async with ctx.asession() as session:
            session.add(Receipt(what="closed"))

    def act_sync(ctx: Context, attempt: int) -> None:
        with ctx.session() as session:
            session.add(Receipt(what="closed"))

    job = transactional(live, is_async, act_async if is_async else act_sync)
    async with live.worker():
        await live.ended(job.enqueue(Charge("one")))
    assert receipts() == ["closed", "one 1"]


@KINDS
async def test_the_wrong_kind_raises(live: Live, receipts: Callable[[], list[str]], is_async: bool) -> None:
    # contract: L8
    said: list[str] = []

    def act(ctx: Context, attempt: int) -> None:
        for ask in ("connection", "session") if is_async else ("aconnection", "asession"):
            with pytest.raises(TransactionMisuse) as caught:
                leads_to = getattr(ctx, ask)
                leads_to()
            said.append(str(caught.value))

    job = transactional(live, is_async, act)
    async with live.worker():
        await live.ended(job.enqueue(Charge("one")))
    right = "ctx.aconnection" if is_async else "ctx.connection"
    assert len(said) == 2
    assert all(right in text and "(L8)" in text for text in said)


async def test_a_job_without_a_transaction_says_so(live: Live) -> None:
    # contract: L8
    said: list[str] = []

    @live.jobs.job(max_attempts=1, timeout=5, name="plain")
    async def plain(ctx: Context) -> None:
        try:
            ctx.asession()
        except TransactionMisuse as error:
            said.append(str(error))

    async with live.worker():
        await live.ended(plain.enqueue())
    assert "transactional=True" in said[0]


async def test_after_its_end_the_transaction_is_closed(live: Live, receipts: Callable[[], list[str]]) -> None:
    # contract: R5
    kept: list[Context] = []
    job = transactional(live, False, lambda ctx, attempt: kept.append(ctx))
    async with live.worker():
        await live.ended(job.enqueue(Charge("one")))
        with pytest.raises(TransactionMisuse, match="ended"):
            kept[0].session()


# --- in company ------------------------------------------------------------------------------------------------------


@KINDS
async def test_what_it_enqueues_on_its_connection_is_part_of_it(
    live: Live, receipts: Callable[[], list[str]], is_async: bool
) -> None:
    # contract: L8, E2
    @live.jobs.job(max_attempts=1, timeout=5, name="mail")
    async def mail(input: Charge) -> None: ...

    async def act_async(ctx: Context, attempt: int) -> None:
        await mail.aenqueue(Charge(str(attempt)), connection=ctx.asession())
        if attempt == 1:
            boom()

    def act_sync(ctx: Context, attempt: int) -> None:
        mail.enqueue(Charge(str(attempt)), connection=ctx.session())
        if attempt == 1:
            boom()

    job = transactional(live, is_async, act_async if is_async else act_sync)
    async with live.worker():
        await live.ended(job.enqueue(Charge("one")))
        await wait_until_async(lambda: any(row.job == "mail" and row.state == "succeeded" for row in live.rows()))
    assert [row.payload for row in live.rows() if row.job == "mail"] == ['{"what":"2"}']


@pytest.mark.databases("postgresql", reason="C7: where a planner's settings are a session's")
async def test_a_handler_has_a_session_like_any_other(live: Live, receipts: Callable[[], list[str]]) -> None:
    # contract: C7
    settings: dict[str, str] = {}

    def act(ctx: Context, attempt: int) -> None:
        for name in ("transaction_isolation", "enable_seqscan", "plan_cache_mode", "lock_timeout", "TimeZone"):
            settings[name] = ctx.connection.exec_driver_sql(f"SHOW {name}").scalar_one()

    job = transactional(live, False, act)
    async with live.worker():
        await live.ended(job.enqueue(Charge("one")))
    assert settings == {
        "transaction_isolation": "read committed",
        "enable_seqscan": "on",
        "plan_cache_mode": "auto",
        "lock_timeout": "0",
        "TimeZone": "UTC",
    }


async def test_many_at_once_each_happen_once(live: Live, receipts: Callable[[], list[str]], dialect: str) -> None:
    # contract: L8, L5: where one can write, they take turns, and other jobs go on in between
    @live.jobs.job(max_attempts=1, timeout=5, name="plain")
    async def plain(input: Charge) -> None: ...

    def act(ctx: Context, attempt: int) -> None:
        if attempt == 1 and ctx.id % 3 == 0:
            boom()

    job = transactional(live, False, act)
    job.enqueue_many([Charge(f"r{n}") for n in range(12)])
    plain.enqueue_many([Charge(f"p{n}") for n in range(20)])
    async with live.worker():
        await wait_until_async(
            lambda: all(row.state == "succeeded" for row in live.rows()), BOUND, lambda: f"{live.rows()}"
        )
    assert sorted(text.split()[0] for text in receipts()) == sorted(f"r{n}" for n in range(12))


@pytest.mark.databases("sqlite", reason="L8: elsewhere transactions do not wait for each other")
async def test_one_place_over_two_workers(
    live: Live, app_factory: Callable[..., App], database: Database, receipts: Callable[[], list[str]],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    # contract: L8: the other worker's transactional records wait; its other work goes on when the place changes hands
    running: list[int] = []

    def act(ctx: Context, attempt: int) -> None:  # the write lock alone keeps handlers apart, not claims
        count = sa.text("SELECT count(*) FROM rowlock_job WHERE state = 'running'")
        running.append(ctx.connection.execute(count).scalar_one())

    job = transactional(live, False, act)
    other = Live(app_factory, database, workers=3)
    transactional(other, False, act)
    job.enqueue_many([Charge(f"r{n}") for n in range(10)])
    async with live.worker(), other.worker():
        await wait_until_async(lambda: all(row.state == "succeeded" for row in live.rows()))
    assert running == [1] * 10, "the others were not even claimed"
    assert len(receipts()) == 10
    assert "fails" not in caplog.text


@KINDS
@pytest.mark.databases("sqlite", reason="L8: elsewhere a BEGIN waits for nobody")
async def test_its_timeout_starts_when_it_has_the_file(
    live: Live, database: Database, receipts: Callable[[], list[str]], is_async: bool
) -> None:
    # contract: L8, R3
    job = transactional(live, is_async, lambda ctx, attempt: None, timeout=0.3, overrun=0.1, max_attempts=1)
    with Blocker(database) as somebody:
        live.app.on("claimed")(lambda _event: somebody.begin())
        async with live.worker():
            done = job.enqueue(Charge("one"))
            await wait_until_async(lambda: live.told("claimed"))
            since = monotonic()
            await wait_until_async(lambda: monotonic() > since + 0.6)
            somebody.rollback()
            record = await live.ended(done)
    assert (record.state, record.attempt, receipts()) == ("succeeded", 1, ["one 1"])


@pytest.mark.databases("postgresql", "mariadb", reason="K2: SQLite is a file: there is no network")
@pytest.mark.parametrize(
    ("where", "is_async"),
    [("SAVEPOINT rowlock_", True), ("RELEASE SAVEPOINT rowlock_", True), ("COMMIT", True), ("COMMIT", False)],
)
async def test_an_answer_that_the_network_swallows_does_not_keep_the_slot(
    app_factory: Callable[..., App], database: Database, receipts: Callable[[], list[str]], where: str,
    is_async: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    # contract: K2, L8: the only slot is free again, and what happened counts once
    monkeypatch.setattr("rowlock.runtime.outage.FIRST_PATIENCE_S", 0.5)
    begins = where.startswith("SAVEPOINT")
    with Proxy(database.parsed) as proxy:
        live = Live(app_factory, database, url=proxy.url, workers=1, lease_ms=2_000)

        def statement(input: Charge, ctx: Context) -> sa.Insert:
            if not begins and ctx.attempt == 1 and input.what == "one":
                proxy.after(where.encode(), "blackhole")
            # Another row each time: what a server was cut off from keeps its locks until it notices.
            return sa.insert(Receipt).values(what=f"{input.what} {ctx.attempt}")

        async def asynchronous(input: Charge, ctx: Context) -> None:
            await ctx.aconnection.execute(statement(input, ctx))

        def sync(input: Charge, ctx: Context) -> None:
            ctx.connection.execute(statement(input, ctx))

        options: dict[str, Any] = {"max_attempts": 20, "timeout": 1, "overrun": 0.1, "transactional": True}
        charge: Any = live.jobs.job(name="charge", **options)(asynchronous if is_async else sync)

        if begins:
            proxy.after(where.encode(), "blackhole")
        one, two = charge.enqueue(Charge("one")), charge.enqueue(Charge("two"))
        async with live.worker():
            assert [(await live.ended(each)).state for each in (one, two)] == ["succeeded", "succeeded"]
        assert [text.split()[0] for text in receipts()] == ["one", "two"]


@KINDS
@pytest.mark.parametrize("arrived", [True, False], ids=["committed", "not committed"])
async def test_a_commit_that_was_not_answered(
    live: Live, receipts: Callable[[], list[str]], is_async: bool, arrived: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # contract: L8, L1: what the database says counts. case: C20
    commit, failed = HandlerTransaction.commit, Counter[str]()

    def cut(self: HandlerTransaction) -> None:
        failed["commit"] += 1
        if failed["commit"] == 1:
            if arrived:
                commit(self)
            raise OperationalError("COMMIT", {}, Exception("the connection was cut"))
        commit(self)

    monkeypatch.setattr(HandlerTransaction, "commit", cut)
    job = transactional(live, is_async, lambda ctx, attempt: None)
    async with live.worker():
        record = await live.ended(job.enqueue(Charge("one")))
    assert record.state == "succeeded"
    assert receipts() == (["one 1"] if arrived else ["one 2"])
    assert not live.told("lost"), "the effect of the first try was recognised"


@pytest.mark.databases("postgresql", "mariadb", reason="L8: SQLite has no connection to cut")
@KINDS
async def test_a_connection_that_is_cut_undoes_the_attempt(
    live: Live, receipts: Callable[[], list[str]], is_async: bool, engine: sa.Engine, dialect: str
) -> None:
    # contract: L8
    me = "SELECT pg_backend_pid()" if dialect == "postgresql" else "SELECT connection_id()"

    def cut(pid: int) -> None:
        with engine.connect() as connection:
            connection.exec_driver_sql(
                f"SELECT pg_terminate_backend({pid})" if dialect == "postgresql" else f"KILL {pid}"
            )

    async def act_async(ctx: Context, attempt: int) -> None:
        if attempt == 1:
            cut((await ctx.aconnection.exec_driver_sql(me)).scalar_one())

    def act_sync(ctx: Context, attempt: int) -> None:
        if attempt == 1:
            ctx.session().flush()
            cut(ctx.connection.exec_driver_sql(me).scalar_one())

    job = transactional(live, is_async, act_async if is_async else act_sync)
    async with live.worker():
        record = await live.ended(job.enqueue(Charge("one")))
    assert (record.state, record.attempt) == ("succeeded", 2)
    assert receipts() == ["one 2"]


# --- before it starts ------------------------------------------------------------------------------------------------


@pytest.mark.databases("postgresql", "mariadb", reason="C8: SQLite has one place")
async def test_a_pool_without_room_for_them_is_refused(app_factory: Callable[..., App], database: Database) -> None:
    # contract: C8
    def app(pool: int) -> App:
        jobs = Jobs()

        @jobs.job(max_attempts=1, timeout=5, transactional=True, name="charge")
        def charge(ctx: Context) -> None: ...

        configured = {"url": database.url, "pool": pool}
        return app_factory(jobs, settings={"database": {"default": configured}, "job": {"workers": 3}})

    small = app(4)
    with pytest.raises(StartRefused, match=r"pool=4 .*3 for the slots of transactional jobs \+ 2 .*= 5"):
        async with small.worker():
            pass
    enough = app(5)
    async with enough.worker():
        pass
    await enough.aclose()
    await small.aclose()


# --- tests of a user's own -----------------------------------------------------------------------------------------


def test_a_case_runs_it_as_production_does(app_factory: Callable[..., App], engine: sa.Engine, dialect: str) -> None:
    # contract: X1, L8
    Base.metadata.create_all(engine)
    app, jobs = App("sqlite:///never.db"), Jobs()

    @jobs.job(max_attempts=2, timeout=5, transactional=True, name="charge")
    def charge(input: Charge, ctx: Context) -> None:
        ctx.session().add(Receipt(what=f"{input.what} {ctx.attempt}"))
        if ctx.attempt == 1:
            boom()

    app.include(jobs)
    with TestApp(app, engine=engine) as case:
        charge.enqueue(Charge("one"))
        assert case.drain() == 1
        case.advance(minutes=5)
        assert case.drain() == 1
    with engine.connect() as connection:
        assert list(connection.scalars(sa.select(Receipt.what))) == ["one 2"]


def test_a_case_of_one_connection_runs_it_too(database: Database, engine: sa.Engine) -> None:
    # contract: X1, L8
    Base.metadata.create_all(engine)
    migrated = App(database.url)
    migrated.migrate()
    migrated.close()
    app, jobs = App("sqlite:///never.db"), Jobs()

    @jobs.job(max_attempts=2, timeout=5, transactional=True, name="charge")
    def charge(input: Charge, ctx: Context) -> None:
        ctx.session().add(Receipt(what=f"{input.what} {ctx.attempt}"))
        if ctx.attempt == 1:
            boom()

    app.include(jobs)
    with engine.connect() as connection:
        with TestApp(app, connection=connection) as case:
            charge.enqueue(Charge("one"))
            assert case.drain() == 1
            case.advance(minutes=5)
            assert case.drain() == 1
            assert list(connection.scalars(sa.select(Receipt.what))) == ["one 2"]
        assert list(connection.scalars(sa.select(Receipt.what))) == []


def test_a_handler_alone_works_on_the_connection_of_the_test(engine: sa.Engine) -> None:
    # contract: R7, X1
    Base.metadata.create_all(engine)
    jobs = Jobs()

    @jobs.job(max_attempts=2, timeout=5, transactional=True)
    def charge(input: Charge, ctx: Context) -> None:
        ctx.connection.execute(sa.insert(Receipt).values(what=input.what))

    with engine.connect() as connection:
        charge.handler(Charge("one"), context(charge, connection=connection))
        assert list(connection.scalars(sa.select(Receipt.what))) == ["one"]
        connection.rollback()


@KINDS
@pytest.mark.databases("postgresql", "mariadb", reason="L8: on SQLite such a handler keeps the write lock to its end")
@pytest.mark.parametrize("ends", ["goes on", "raises"])
async def test_a_cancelled_handler_commits_its_work_or_is_cancelled(
    live: Live, receipts: Callable[[], list[str]], is_async: bool, ends: str
) -> None:
    # contract: O4, L8; case: C71
    runs: list[int] = []

    async def task(ctx: Context) -> None:
        runs.append(ctx.id)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if ends == "raises":
                raise

    def thread(ctx: Context) -> None:
        runs.append(ctx.id)
        wait_until(lambda: ctx.stopping)
        if ends == "raises":
            raise ValueError

    charge = transactional(live, is_async, lambda ctx, _: task(ctx) if is_async else thread(ctx))
    async with live.worker():
        done = charge.enqueue(Charge("a"))
        await wait_until_async(lambda: runs)
        await live.app.records.acancel(done.id)
        record = await live.ended(done)
    # A cancellation may have hit a statement, so that an async handler's transaction can not be trusted any more.
    completed = ends == "goes on" and not is_async
    assert (record.state, receipts()) == (("succeeded", ["a 1"]) if completed else ("cancelled", []))
    assert [event.outcome for event in live.told("settled")] == ["ack" if completed else "cancelled"]


async def test_a_handler_that_goes_on_after_its_cancellation_at_a_shutdown_is_handed_back(
    app_factory: Callable[..., App], database: Database, receipts: Callable[[], list[str]]
) -> None:
    # contract: L8, M6
    live = Live(app_factory, database, runtime={"shutdown_ms": 50})
    runs: list[int] = []

    async def task(ctx: Context) -> None:
        runs.append(ctx.id)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return

    charge = transactional(live, True, lambda ctx, _: task(ctx))
    async with live.worker():
        done = charge.enqueue(Charge("a"))
        await wait_until_async(lambda: runs)
    assert (live.row(done).state, live.row(done).attempt, receipts()) == ("pending", 0, [])
