"""Enqueueing in the caller's transaction: what joins, what is refused, and that Rowlock ends nothing (E2, E3)."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from rowlock import App, ConnectionTypeError, Jobs, WrongDatabase

AppFactory = Callable[..., App]


@pytest.fixture
def app(app_factory: AppFactory, jobs: Jobs, ping: Any, engine: sa.Engine) -> App:
    with engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE business (n integer PRIMARY KEY)"))
    return app_factory(jobs)


def counts(engine: sa.Engine) -> tuple[int, int]:
    """Business rows and records, as a new transaction sees them."""
    with engine.connect() as conn:
        business = conn.execute(sa.text("SELECT count(*) FROM business")).scalar_one()
        return business, conn.execute(sa.text("SELECT count(*) FROM rowlock_job")).scalar_one()


def write(conn: Any, n: int) -> None:
    conn.execute(sa.text(f"INSERT INTO business VALUES ({n})"))


# --- E2: what joins ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["connection", "session", "scoped"])
def test_sync_kinds_commit_and_roll_back_together_with_the_rows(
    app: App, ping: Any, engine: sa.Engine, kind: str
) -> None:
    # contract: E2
    made: dict[str, Callable[[], Any]] = {
        "connection": engine.connect,
        "session": lambda: Session(engine),
        "scoped": lambda: scoped_session(sessionmaker(engine)),
    }
    for n, commit in enumerate([True, False, True, False]):
        holder = made[kind]()
        write(holder, n)
        assert ping.enqueue(key=f"k{n}", connection=holder).created
        assert len(ping.enqueue_many([None, None], connection=holder)) == 2
        holder.commit() if commit else holder.rollback()
        holder.close()
    assert counts(engine) == (2, 6)


@pytest.mark.parametrize("kind", ["connection", "session", "scoped"])
async def test_async_kinds_commit_and_roll_back_together_with_the_rows(
    app: App, ping: Any, engine: sa.Engine, async_engine: Any, kind: str
) -> None:
    # contract: E2
    async with async_engine() as aengine:

        @asynccontextmanager
        async def holder() -> AsyncIterator[Any]:
            if kind == "connection":
                async with aengine.connect() as made:
                    yield made
            elif kind == "session":
                async with AsyncSession(aengine) as made:
                    yield made
            else:
                made = async_scoped_session(async_sessionmaker(aengine), scopefunc=lambda: 1)
                yield made
                await made.remove()

        for n, commit in enumerate([True, False]):
            async with holder() as made:
                await made.execute(sa.text(f"INSERT INTO business VALUES ({n})"))
                assert (await ping.aenqueue(key=f"k{n}", connection=made)).created
                assert len(await ping.aenqueue_many([None, None], connection=made)) == 2
                await (made.commit() if commit else made.rollback())
    await app.aclose()
    assert counts(engine) == (1, 3)


def test_a_savepoint_takes_its_records_along(app: App, ping: Any, engine: sa.Engine) -> None:
    # contract: E2
    with engine.begin() as conn:
        write(conn, 1)
        ping.enqueue(key="outer", connection=conn)
        inner = conn.begin_nested()
        assert ping.enqueue(key="inner", connection=conn).created
        assert not ping.enqueue(key="outer", connection=conn).created
        inner.rollback()
        assert ping.enqueue(key="inner", connection=conn).created
    assert counts(engine) == (1, 2)


def test_inside_the_transaction_the_record_is_seen_by_nobody_else(app: App, ping: Any, engine: sa.Engine) -> None:
    # contract: E2
    with engine.connect() as conn:
        ping.enqueue(connection=conn)
        assert counts(engine) == (0, 0)
        conn.commit()
    assert counts(engine) == (0, 1)


def test_bind_joins_every_enqueue_inside_and_restores_the_outer(app: App, ping: Any, engine: sa.Engine) -> None:
    # contract: E2
    with Session(engine) as outer, engine.connect() as inner:
        with app.bind(outer):
            ping.enqueue()
            outer.rollback()
            with app.bind(inner):
                ping.enqueue()
            inner.commit()
            ping.enqueue()
        outer.rollback()
        assert counts(engine) == (0, 1)
    with engine.connect() as conn, app.bind(conn):
        ping.enqueue(detached=True)
        assert counts(engine) == (0, 2)
    ping.enqueue()
    assert counts(engine) == (0, 3)


def test_an_autocommit_connection_is_its_own_transaction(app: App, ping: Any, engine: sa.Engine) -> None:
    # contract: E2
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        assert ping.enqueue(key="k", connection=conn).created
        assert not ping.enqueue(key="k", connection=conn).created
        assert [
            answer.created
            for answer in ping.enqueue_many([(None, {"key": "a"}), (None, {"key": "b"})], connection=conn)
        ]
        assert counts(engine) == (0, 3)
        conn.rollback()
    assert counts(engine) == (0, 3)


# --- E2: what is refused -------------------------------------------------------------------------------------------


async def test_anything_else_is_a_type_error_that_lists_what_is_accepted(
    app: App, ping: Any, engine: sa.Engine, async_engine: Any
) -> None:
    # contract: E2
    async with async_engine() as aengine:
        async with aengine.connect() as aconn, AsyncSession(aengine) as asession:
            for wrong in (aconn, asession):
                with pytest.raises(ConnectionTypeError, match="aenqueue"):
                    ping.enqueue(connection=wrong)
        with engine.connect() as conn, Session(engine) as session:
            raw = conn.connection.dbapi_connection
            for wrong in (engine, engine.pool, raw, sessionmaker(engine), "postgresql://", object(), Session, 1):
                with pytest.raises(TypeError, match="Session"):
                    ping.enqueue(connection=wrong)
                with pytest.raises(TypeError, match="AsyncSession"):
                    await ping.aenqueue(connection=wrong)
            for wrong in (conn, session):
                with pytest.raises(ConnectionTypeError):
                    await ping.aenqueue(connection=wrong)
            write(conn, 1)  # the transaction is as good as before
            conn.commit()
        closed = engine.connect()
        closed.close()
        with pytest.raises(ConnectionTypeError, match="closed"):
            ping.enqueue(connection=closed)
    await app.aclose()
    assert counts(engine) == (1, 0)


def test_rowlock_ends_and_changes_nothing_on_the_callers_connection(app: App, ping: Any, engine: sa.Engine) -> None:
    # contract: E2, E4
    sent: list[str] = []
    sa.event.listen(engine, "before_cursor_execute", lambda _c, _cur, statement, *_: sent.append(statement))
    for name in ("commit", "rollback"):
        sa.event.listen(engine, name, lambda _c, name=name: sent.append(name))
    with engine.connect() as conn:
        for key in (None, "a", "a", "b"):
            ping.enqueue(key=key, connection=conn)
        ping.enqueue_many([None, (None, {"key": "a"}), (None, {"key": "c"})], connection=conn)
        mine = [statement for statement in sent if not re.match(r"\s*(SELECT|INSERT|SAVEPOINT|RELEASE)", statement)]
        assert mine == []
        assert conn.in_transaction()
        conn.rollback()
    assert counts(engine) == (0, 0)


# --- E3 ------------------------------------------------------------------------------------------------------------


def test_a_connection_to_another_installation_is_refused_before_anything_is_written(
    app: App, ping: Any, engine: sa.Engine, tmp_path: Any
) -> None:
    # contract: E3
    elsewhere = App(f"sqlite:///{tmp_path}/elsewhere.db")
    elsewhere.migrate()
    other = sa.create_engine(f"sqlite:///{tmp_path}/elsewhere.db")
    with other.begin() as conn:
        with pytest.raises(WrongDatabase, match="nothing was written"):
            ping.enqueue(connection=conn)
        assert conn.execute(sa.text("SELECT count(*) FROM rowlock_job")).scalar_one() == 0
    other.dispose()
    elsewhere.close()
    assert counts(engine) == (0, 0)
    with engine.begin() as conn:
        assert ping.enqueue(connection=conn).created


@pytest.mark.databases("sqlite", reason="E3: a file is easily named in two ways")
def test_two_ways_to_name_one_database_are_one_identity(app: App, ping: Any, engine: sa.Engine) -> None:
    # contract: E3
    folder, _, name = str(engine.url.database).rpartition("/")
    same = sa.create_engine(f"sqlite:///{folder}/./{name}")
    with same.begin() as conn:
        assert ping.enqueue(connection=conn).created
    same.dispose()
