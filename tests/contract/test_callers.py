"""Callers' transactions as the database sees them: one session, one fate, and nothing of Rowlock's own on it (E2)."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from rowlock import App, ConnectionTypeError, Jobs, RowlockError, State, TransactionConflict
from support.databases import Database
from support.waiting import wait_until

AppFactory = Callable[..., App]
OPTIONS: list[dict[str, Any]] = [{}, {"key": "k"}, {"key": "k"}, {"delay": 60}]


@dataclass(frozen=True)
class Order:
    number: int


@pytest.fixture
def app(app_factory: AppFactory, jobs: Jobs, ping: Any, engine: sa.Engine) -> App:
    with engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE business (n integer PRIMARY KEY, pid integer)"))
    return app_factory(jobs)


def counts(engine: sa.Engine) -> tuple[int, int]:
    with engine.connect() as conn:
        return tuple(
            conn.execute(sa.text(f"SELECT count(*) FROM {t}")).scalar_one() for t in ("business", "rowlock_job")
        )


# --- C17: what the server saw of the caller's session -----------------------------------------------------------------


@pytest.mark.databases("postgresql", reason="C17: there each row names its transaction, and a session its own settings")
@pytest.mark.parametrize("commit", [True, False])
def test_postgresql_sees_one_transaction_and_no_setting_changed(
    app: App, ping: Any, engine: sa.Engine, commit: bool
) -> None:
    # contract: E2, E4
    # case: C17
    def session(conn: sa.Connection) -> tuple[Any, ...]:
        settings = "SELECT md5(string_agg(name || '=' || coalesce(setting, ''), ',' ORDER BY name)) FROM pg_settings"
        facts = f"SELECT pg_backend_pid(), pg_current_xact_id()::text, ({settings})"
        return tuple(conn.execute(sa.text(facts)).one())

    with engine.connect() as conn:
        conn.execute(sa.text("INSERT INTO business VALUES (1, pg_backend_pid())"))
        before = session(conn)
        for options in OPTIONS:
            ping.enqueue(connection=conn, **options)
        ping.enqueue_many([None, (None, {"key": "b"}), (None, {"key": "k"})], connection=conn)
        assert session(conn) == before  # one backend, one transaction, and nothing that a SET would have left
        made = set(conn.execute(sa.text("SELECT xmin::text FROM rowlock_job UNION SELECT xmin::text FROM business")))
        assert len(made) == 1
        conn.commit() if commit else conn.rollback()
    assert counts(engine) == ((1, 5) if commit else (0, 0))


@pytest.mark.databases("mariadb", reason="C17: there the server counts what a session sends, by kind")
@pytest.mark.parametrize("commit", [True, False])
def test_mariadb_counts_no_statement_but_reads_and_inserts(
    app: App, ping: Any, engine: sa.Engine, commit: bool
) -> None:
    # contract: E2, E4
    # case: C17
    kinds = ("commit", "rollback", "rollback_to_savepoint", "begin", "set_option", "lock_tables", "update", "delete")

    def sent(conn: sa.Connection) -> list[Any]:
        wanted = ", ".join(f"'Com_{kind}'" for kind in kinds)
        return list(conn.exec_driver_sql(f"SHOW SESSION STATUS WHERE Variable_name IN ({wanted})"))

    with engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE seen (pid integer, what varchar(9))")
        for table in ("business", "rowlock_job"):
            conn.exec_driver_sql(
                f"CREATE TRIGGER {table}_seen AFTER INSERT ON {table} FOR EACH ROW"
                f" INSERT INTO seen VALUES (CONNECTION_ID(), LEFT('{table}', 9))"
            )
    with engine.connect() as conn:
        conn.exec_driver_sql("INSERT INTO business VALUES (1, CONNECTION_ID())")
        before = sent(conn)
        for options in OPTIONS:
            ping.enqueue(connection=conn, **options)
        ping.enqueue_many([None, (None, {"key": "b"}), (None, {"key": "k"})], connection=conn)
        assert sent(conn) == before
        assert len(before) == len(kinds)
        pid = conn.exec_driver_sql("SELECT CONNECTION_ID()").scalar_one()
        assert set(conn.exec_driver_sql("SELECT * FROM seen")) == {(pid, "business"), (pid, "rowlock_j")}
        conn.commit() if commit else conn.rollback()
    assert counts(engine) == ((1, 5) if commit else (0, 0))


@pytest.mark.databases("sqlite", reason="C17: there the connection itself tells each statement that it runs")
@pytest.mark.parametrize("commit", [True, False])
def test_sqlite_traces_no_statement_but_reads_and_inserts(app: App, ping: Any, engine: sa.Engine, commit: bool) -> None:
    # contract: E2, E4
    # case: C17
    traced: list[str] = []
    with engine.connect() as conn:
        conn.exec_driver_sql("INSERT INTO business VALUES (1, 1)")
        raw: Any = conn.connection.dbapi_connection
        raw.set_trace_callback(traced.append)
        for options in OPTIONS:
            ping.enqueue(connection=conn, **options)
        ping.enqueue_many([None, (None, {"key": "b"}), (None, {"key": "k"})], connection=conn)
        raw.set_trace_callback(None)
        assert raw.in_transaction
        conn.commit() if commit else conn.rollback()
    assert sum(statement.strip().startswith("INSERT") for statement in traced) >= 4  # they went over this connection
    assert {statement.split()[0] for statement in traced} <= {"SELECT", "INSERT", "--"}
    assert counts(engine) == ((1, 5) if commit else (0, 0))


# --- C18: seen exactly when the caller's rows are ---------------------------------------------------------------------


def test_a_handler_always_finds_what_was_committed_with_its_record(
    app_factory: AppFactory, database: Database, engine: sa.Engine
) -> None:
    # contract: E2
    # case: C18 (its wake-up half belongs to K4)
    with engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE orders (n integer PRIMARY KEY)"))
    jobs, found, readers = Jobs(), dict[int, int](), sa.create_engine(database.sync_url)

    @jobs.job(max_attempts=1, timeout=30, name="ship")
    def ship(input: Order) -> None:
        with readers.connect() as conn:
            found[input.number] = conn.execute(
                sa.text(f"SELECT count(*) FROM orders WHERE n = {input.number}")
            ).scalar_one()

    app = app_factory(jobs, settings={"database": {"default": {"url": database.url}}, "job": {"poll_ms": 1}})
    coin = random.Random(18)
    committed = {number for number in range(200) if coin.random() < 0.5}

    def polled() -> str:
        return app.health()["loops"]["claim:default"]["beat"]

    def settled() -> bool:
        return not any(app.records.list(state=state).items for state in ("pending", "running"))

    with app.worker_thread():
        wait_until(polled)
        for number in range(200):
            look = number % 5 == 0
            if look:  # on SQLite a worker with something to write would wait for this transaction
                wait_until(settled)
            with engine.connect() as conn:
                conn.execute(sa.text(f"INSERT INTO orders VALUES ({number})"))
                ship.enqueue(Order(number), connection=conn, key=f"order {number}" if number % 2 else None)
                if look:  # the worker has looked while the record was there and not committed
                    before = polled()
                    wait_until(lambda before=before: polled() != before)
                conn.commit() if number in committed else conn.rollback()
        wait_until(
            lambda: app.records.list(state="pending").items == [] and not app.records.list(state="running").items
        )
        wait_until(lambda: len(found) >= len(committed))
    readers.dispose()
    assert found == dict.fromkeys(committed, 1)  # starts are commits, and each start found its order
    assert {record.state for record in app.records.list(limit=500).items} == {State.SUCCEEDED}


# --- C19: works, or is refused by one sentence ------------------------------------------------------------------------


def refused(error: BaseException) -> None:
    assert "\n" not in str(error)
    assert "ping" in str(error) or "enqueue" in str(error)


async def test_what_is_no_connection_is_refused_in_one_line(
    app: App, ping: Any, engine: sa.Engine, async_engine: Any
) -> None:
    # contract: E2, Z1
    # case: C19
    async with async_engine() as aengine, aengine.connect() as aconn, AsyncSession(aengine) as asession:
        pooled = await aconn.get_raw_connection()
        with engine.connect() as conn, Session(engine) as session:
            drivers = [conn.connection, conn.connection.dbapi_connection, conn.connection.cursor()]
            wrong: list[Any] = [*drivers, pooled, pooled.driver_connection, engine, aengine, engine.pool, aengine.pool]
            for given in [*wrong, aconn, asession]:
                for call in (lambda g: ping.enqueue(connection=g), lambda g: ping.enqueue_many([None], connection=g)):
                    with pytest.raises(TypeError, match="AsyncSession") as caught:
                        call(given)
                    refused(caught.value)
            for given in [*wrong, conn, session]:
                with pytest.raises(TypeError, match="AsyncSession") as caught:
                    await ping.aenqueue(connection=given)
                refused(caught.value)
                with pytest.raises(TypeError, match="AsyncSession"):
                    await ping.aenqueue_many([None], connection=given)
            for accepted in (conn, session):
                assert ping.enqueue(connection=accepted).created
                accepted.rollback()
        for accepted in (aconn, asession):
            assert (await ping.aenqueue(connection=accepted)).created
            await accepted.rollback()
    await app.aclose()
    assert counts(engine) == (0, 0)


Case = Callable[[sa.Engine], Any]


def failed_flush(engine: sa.Engine) -> Session:
    metadata = sa.MetaData()
    business = sa.Table(
        "business", metadata, sa.Column("n", sa.Integer, primary_key=True), sa.Column("pid", sa.Integer)
    )
    from sqlalchemy.orm import registry

    class Business: ...

    mapper = registry()
    mapper.map_imperatively(Business, business)
    session = Session(engine)
    for _ in range(2):
        one = Business()
        one.n = 1  # type: ignore[attr-defined]
        session.add(one)
    with pytest.raises(sa.exc.DBAPIError):
        session.flush()
    mapper.dispose()
    return session


def lost(engine: sa.Engine) -> sa.Connection:
    connection = engine.connect()
    connection.exec_driver_sql("SELECT 1")
    connection.invalidate()
    return connection


@pytest.mark.parametrize("make", [failed_flush, lost])
def test_a_transaction_that_is_lost_is_said_to_be(app: App, ping: Any, engine: sa.Engine, make: Case) -> None:
    # contract: E2, E4, Z1
    # case: C19
    given = make(engine)
    for call in (lambda: ping.enqueue(connection=given), lambda: ping.enqueue_many([None, None], connection=given)):
        with pytest.raises(TransactionConflict, match="had failed before") as caught:
            call()
        refused(caught.value)
    given.rollback()
    assert ping.enqueue(connection=given).created  # the session is as good as new
    given.rollback()
    given.close()
    assert counts(engine) == (0, 0)


def test_what_has_ended_is_refused(app: App, ping: Any, engine: sa.Engine) -> None:
    # contract: E2, Z1
    # case: C19
    ended = Session(engine, close_resets_only=False)
    ended.close()
    with engine.begin() as over, Session(engine) as session, session.begin():
        over.rollback()
        session.rollback()
        for given in (ended, over, session):
            with pytest.raises(ConnectionTypeError, match="has ended") as caught:
                ping.enqueue(connection=given)
            refused(caught.value)
    again = Session(engine)
    again.close()  # which in SQLAlchemy only resets it
    assert ping.enqueue(connection=again).created
    again.close()
    assert counts(engine) == (0, 0)


async def test_what_has_ended_is_refused_in_a_coroutine(
    app: App, ping: Any, engine: sa.Engine, async_engine: Any
) -> None:
    # contract: E2, Z1
    # case: C19
    @asynccontextmanager
    async def invalidated(aengine: AsyncEngine) -> AsyncIterator[Any]:
        async with aengine.connect() as conn:
            await conn.exec_driver_sql("SELECT 1")
            await conn.invalidate()
            yield conn
            await conn.rollback()

    async with async_engine() as aengine:
        async with invalidated(aengine) as conn:
            with pytest.raises(TransactionConflict, match="had failed before"):
                await ping.aenqueue(connection=conn)
        async with aengine.begin() as conn:
            await conn.rollback()
            with pytest.raises(ConnectionTypeError, match="has ended"):
                await ping.aenqueue(key="k", connection=conn)
        async with AsyncSession(aengine) as session, session.begin():
            await session.rollback()
            with pytest.raises(ConnectionTypeError, match="has ended"):
                await ping.aenqueue(connection=session)
        with pytest.raises(RowlockError, match="closed"):
            await ping.aenqueue(connection=conn)
    await app.aclose()
    assert counts(engine) == (0, 0)
