"""Whose tables a connection leads to is told by the installation's id in them, not by a URL (E3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from rowlock import App, Context, NotMigrated, StartRefused, UnsupportedDatabase, WrongDatabase
from support.databases import Database, SQLite, make_database
from support.live import Live

AppFactory = Callable[..., App]
SERVERS = pytest.mark.databases("postgresql", "mariadb", reason="E3: a SQLite connection stays with its file")


@pytest.fixture
def elsewhere(database: Database, dialect: str, tmp_path: Path) -> Iterator[Database]:
    """A second database of the same kind, on the same server, with Rowlock's tables."""
    made = SQLite(tmp_path / "elsewhere.db") if database.server is None else make_database(database.server, dialect)
    other = App(made.url)
    other.migrate()
    other.close()
    yield made
    made.clear()


@pytest.fixture
def other(elsewhere: Database) -> Iterator[sa.Engine]:
    engine = sa.create_engine(elsewhere.sync_url)
    yield engine
    engine.dispose()


def count(engine: sa.Engine) -> int:
    with engine.connect() as conn:
        return conn.execute(sa.text("SELECT count(*) FROM rowlock_job")).scalar_one()


@pytest.mark.parametrize("kind", [sa.Engine.connect, Session], ids=["connection", "session"])
def test_another_installation_is_refused_before_anything_is_written(
    app: App, ping: Any, engine: sa.Engine, other: sa.Engine, kind: Any
) -> None:
    # contract: E3
    for number in range(2):  # also when the connection is known by now
        with kind(other) as holder:
            for call in (
                lambda holder=holder: ping.enqueue(connection=holder),
                lambda holder=holder: ping.enqueue(key="k", connection=holder),
                lambda holder=holder: ping.enqueue_many([None, None], connection=holder),
            ):
                with pytest.raises(WrongDatabase, match="nothing was written"):
                    call()
            with app.bind(holder), pytest.raises(WrongDatabase):
                ping.enqueue()
            holder.execute(sa.text(f"CREATE TABLE usable{number} (n integer)"))  # its transaction is as good as before
            holder.commit()
    assert (count(engine), count(other)) == (0, 0)


async def test_an_async_one_as_well(
    app: App, ping: Any, engine: sa.Engine, elsewhere: Database, other: sa.Engine
) -> None:
    # contract: E3
    aengine = create_async_engine(elsewhere.async_url)
    async with aengine.connect() as conn, AsyncSession(aengine) as session:
        for holder in (conn, session):
            with pytest.raises(WrongDatabase, match="nothing was written"):
                await ping.aenqueue(connection=holder)
    await aengine.dispose()
    await app.aclose()
    assert (count(engine), count(other)) == (0, 0)


def test_a_database_without_tables_of_rowlock_is_another_one_too(app: App, ping: Any, elsewhere: Database) -> None:
    # contract: E3, Z1
    empty = sa.create_engine(elsewhere.sync_url)
    with empty.begin() as conn:
        for table in sa.inspect(conn).get_table_names():
            conn.exec_driver_sql(f"DROP TABLE {table}")
    for _ in range(2):  # also when the job's own database is known by now
        with empty.connect() as conn, pytest.raises(WrongDatabase, match="another database or schema"):
            ping.enqueue(connection=conn)
        ping.enqueue()
    empty.dispose()


async def test_a_file_without_tables_says_so_while_the_caller_writes_to_it(
    app_factory: AppFactory, database: Database, engine: sa.Engine
) -> None:
    # contract: S1, Z1
    app = app_factory(
        migrate=False, settings={"database": {"default": {"url": database.url}}, "job": {"enqueue_wait_ms": 50}}
    )

    @app.job(max_attempts=1, timeout=1, name="j")
    def j() -> None: ...

    with engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE customer (id integer)")
        conn.exec_driver_sql("INSERT INTO customer VALUES (1)")
        with pytest.raises(NotMigrated, match="rowlock migrate"):
            j.enqueue(connection=conn)
    aengine = create_async_engine(database.async_url)
    async with aengine.connect() as conn:
        await conn.exec_driver_sql("INSERT INTO customer VALUES (2)")
        with pytest.raises(NotMigrated, match="rowlock migrate"):
            await j.aenqueue(connection=conn)
    await aengine.dispose()
    await app.aclose()


def test_what_leads_to_the_same_tables_is_accepted_by_whatever_url(
    app: App, ping: Any, engine: sa.Engine, database: Database
) -> None:
    # contract: E3
    other_ways: dict[str, Callable[[sa.URL], sa.URL]] = {
        "sqlite": lambda url: url.set(database=str(url.database).replace("/test.db", "/./test.db")),
        "postgresql": lambda url: url.update_query_dict({"application_name": "another"}),
        "mariadb": lambda url: url.set(drivername="mysql+pymysql").update_query_dict({"charset": "utf8mb4"}),
    }
    same = sa.create_engine(other_ways[database.dialect](database.sync_url))
    with same.begin() as conn:
        assert ping.enqueue(connection=conn).created
    same.dispose()
    assert count(engine) == 1


@SERVERS
def test_a_session_that_was_sent_elsewhere_is_refused(
    app: App, ping: Any, engine: sa.Engine, database: Database, elsewhere: Database
) -> None:
    # contract: E3
    here, there = {
        "postgresql": ("SET search_path TO public", "SET search_path TO tenant"),
        "mariadb": (f"USE {database.parsed.database}", f"USE {elsewhere.parsed.database}"),
    }[database.dialect]
    with engine.connect() as conn:
        ping.enqueue(connection=conn)
        if database.dialect == "postgresql":
            conn.exec_driver_sql("CREATE SCHEMA tenant")
            conn.exec_driver_sql("CREATE TABLE tenant.rowlock_meta AS SELECT name, 'x' AS value FROM rowlock_meta")
            conn.exec_driver_sql(
                "UPDATE tenant.rowlock_meta SET value = m.value FROM public.rowlock_meta m"
                " WHERE m.name = tenant.rowlock_meta.name AND m.name <> 'installation'"
            )
        conn.commit()
        conn.exec_driver_sql(there)
        conn.commit()
        with pytest.raises(WrongDatabase):
            ping.enqueue(connection=conn)
        conn.rollback()
        conn.exec_driver_sql(here)
        conn.commit()
        assert ping.enqueue(connection=conn).created
        conn.commit()
    assert count(engine) == 2


def test_tables_that_were_made_anew_are_known_again(app: App, ping: Any, engine: sa.Engine) -> None:
    # contract: E3, S1
    with engine.begin() as conn:
        ping.enqueue(connection=conn)
    with engine.begin() as conn:
        for table in ("rowlock_job", "rowlock_program", "rowlock_meta"):
            conn.exec_driver_sql(f"DROP TABLE {table}")
    with engine.connect() as conn, pytest.raises(NotMigrated):
        ping.enqueue(connection=conn)
    app.migrate()
    for _ in range(2):
        with engine.begin() as conn:
            assert ping.enqueue(connection=conn).created
    assert count(engine) == 2


def test_where_it_leads_is_looked_at_once_in_a_transaction(app: App, ping: Any, engine: sa.Engine) -> None:
    # contract: E3
    sent: list[str] = []
    with engine.begin() as conn:
        ping.enqueue(connection=conn)
        sa.event.listen(conn, "before_cursor_execute", lambda _c, _cur, statement, *_: sent.append(statement))
        for _ in range(3):
            ping.enqueue(connection=conn)
    assert len(sent) == 3
    assert all("INSERT INTO rowlock_job" in statement for statement in sent)


POSTGRESQL = pytest.mark.databases("postgresql", reason="E3: libpq's words and schemas are PostgreSQL's")


@POSTGRESQL
async def test_a_url_with_words_of_libpq_serves_every_kind_of_connection(
    app_factory: AppFactory, database: Database
) -> None:
    # contract: C8, M1: query parameters go to the driver, and both sides of a worker understand them
    url = f"{database.url}?sslmode=prefer&application_name=news&options=-csearch_path%3Dpublic"
    live = Live(app_factory, database, url=url)
    seen: list[str] = []

    @live.jobs.job(max_attempts=1, timeout=10, name="sync", transactional=True)
    def sync(ctx: Context) -> None:
        seen.append(ctx.connection.exec_driver_sql("SHOW application_name").scalar_one())

    @live.jobs.job(max_attempts=1, timeout=10, name="async", transactional=True)
    async def asynchronous(ctx: Context) -> None:
        seen.append((await ctx.aconnection.exec_driver_sql("SHOW application_name")).scalar_one())

    async with live.worker():
        for job in (sync, asynchronous):
            assert (await live.ended(await job.aenqueue())).state == "succeeded"
    assert seen == ["news", "news"]


@POSTGRESQL
async def test_an_engine_that_leads_elsewhere_than_its_url_is_refused(database: Database, engine: sa.Engine) -> None:
    # contract: E3, J5: records would be enqueued in one place, and looked for in another
    with engine.begin() as conn:
        conn.exec_driver_sql("CREATE SCHEMA apart")
    try:
        given = sa.create_engine(database.sync_url, connect_args={"options": "-csearch_path=apart"})
        app = App(given)

        @app.job(max_attempts=1, timeout=10, name="job")
        def job() -> None: ...

        await app.amigrate()
        app.migrate()
        with pytest.raises(StartRefused, match=r"E3.*search_path"):
            async with app.worker():
                pass
        await app.aclose()
        given.dispose()
    finally:
        with engine.begin() as conn:
            conn.exec_driver_sql("DROP SCHEMA apart CASCADE")


@pytest.mark.parametrize("pool", [sa.StaticPool, sa.AssertionPool])
def test_an_engine_of_one_connection_is_refused(database: Database, pool: Any) -> None:
    # contract: C8, E8: what one thread enqueues on a connection of all, another rolls back
    given = sa.create_engine(database.sync_url, poolclass=pool)
    with pytest.raises(UnsupportedDatabase, match=rf"{pool.__name__}.*C8"):
        assert App(given).databases
    given.dispose()
