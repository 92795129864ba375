"""Enqueueing on sessions as callers have them: modes, zones, character sets, clocks and sizes (E2, E4, E6, L2, W3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from rowlock import App, EnqueueValueError, Jobs, TransactionConflict, UnsupportedDatabase
from rowlock.store import records
from rowlock.store.clock import Clock
from rowlock.store.dialects import mysql_server
from rowlock.store.dialects.base import Row
from support.databases import Database
from support.jobtable import statements

AppFactory = Callable[..., App]
MARIADB = pytest.mark.databases(
    "mariadb", reason="S5: the others have neither modes nor packets, and one character set"
)
SERVERS = pytest.mark.databases("postgresql", "mariadb", reason="L2: SQLite's clock is the host's, and it has no zone")
EMOJI = "a\U0001f600b"


@dataclass(frozen=True)
class Text:
    text: str = ""


@pytest.fixture
def jobs() -> Jobs:
    return Jobs()


@pytest.fixture
def send(jobs: Jobs) -> Any:
    @jobs.job(max_attempts=3, timeout=30, name="send")
    def send(input: Text) -> None: ...

    return send


@pytest.fixture
def app(app_factory: AppFactory, jobs: Jobs, send: Any) -> App:
    return app_factory(jobs)


def payload(app: App, id_: int) -> bytes:
    return app.databases["default"].run(records.payload, id_)


# --- modes and zones --------------------------------------------------------------------------------------------------


@MARIADB
def test_whatever_the_callers_sql_mode_is(app: App, send: Any, engine: sa.Engine) -> None:
    # contract: E2, S5
    modes = ["", "ANSI", "ORACLE", "NO_BACKSLASH_ESCAPES", "TRADITIONAL", "EMPTY_STRING_IS_NULL", "MSSQL"]
    for mode in [*modes, "NO_BACKSLASH_ESCAPES,ANSI_QUOTES,PIPES_AS_CONCAT", "PAD_CHAR_TO_FULL_LENGTH"]:
        text, key = "it's \\ \" ` \x00 é", f"k\\'\"{mode}"
        with engine.begin() as conn:
            conn.exec_driver_sql(f"SET sql_mode = '{mode}'")
            one = send.enqueue(Text(text), key=key, delay=5, headers={"a": "\\'"}, connection=conn)
            assert not send.enqueue(Text(), key=key, connection=conn).created
            many = send.enqueue_many(
                [(Text(text), {"key": f"{key}{n}", "queue": f"q'\\{n}"}) for n in range(3)], connection=conn
            )
        assert {payload(app, answer.id) for answer in (one, *many)} == {send.wire.encode(Text(text)).encode()}
        found = app.records.get(one.id)
        assert (found.key, found.headers, found.run_at - found.created_at) == (key, '{"a":"\\\\\'"}', timedelta(0, 5))
        assert [app.records.get(answer.id).queue for answer in many] == ["q'\\0", "q'\\1", "q'\\2"]


@SERVERS
def test_whatever_the_callers_time_zone_is(app: App, send: Any, engine: sa.Engine) -> None:
    # contract: E6, S5, L2
    at = datetime(2031, 2, 3, 4, 5, 6, 789_012, tzinfo=UTC)
    before = app.records.get(send.enqueue(Text()).id)
    for zone in ("+13:00", "-12:00", "+05:30"):
        with engine.begin() as conn:
            name = "time_zone" if engine.name != "postgresql" else "timezone"
            conn.exec_driver_sql(f"SET {name} = '{zone}'")
            now = send.enqueue(Text(), connection=conn)
            later = send.enqueue(Text(), delay=3_600, connection=conn)
            then = send.enqueue_many([(Text(), {"run_at": at}), (Text(), {"run_at": at})], connection=conn)
        found = app.records.get(now.id)
        assert timedelta(0) <= found.created_at - before.created_at < timedelta(minutes=10)
        assert found.run_at == found.created_at
        found = app.records.get(later.id)
        assert found.run_at - found.created_at == timedelta(hours=1)
        assert [app.records.get(answer.id).run_at for answer in then] == [at, at]


@SERVERS
def test_the_clients_clock_is_never_asked(
    app: App, send: Any, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # contract: L2, E6
    def asked(self: Clock) -> None:
        raise AssertionError("the host's clock was asked")

    monkeypatch.setattr(Clock, "host_now", asked)
    for options in ({}, {"delay": 2}, {"run_at": datetime(2001, 1, 1, tzinfo=UTC)}):
        answers = [send.enqueue(Text(), **options), *send.enqueue_many([(Text(), options)] * 2)]
        with engine.begin() as conn:
            answers += [send.enqueue(Text(), connection=conn, **options)]
        for answer in answers:
            found = app.records.get(answer.id)
            assert found.run_at - found.created_at == timedelta(seconds=options.get("delay", 0))


@pytest.mark.databases("postgresql", reason="E6: only PostgreSQL's now() is that of the transaction's begin")
def test_now_is_the_enqueue_not_the_begin_of_the_callers_transaction(app: App, send: Any, engine: sa.Engine) -> None:
    # contract: E6
    with engine.begin() as conn:
        begun = conn.execute(sa.text("SELECT now()")).scalar_one()
        ids = [send.enqueue(Text(), connection=conn).id]
        ids += [answer.id for answer in send.enqueue_many([Text()] * 2, connection=conn)]
    found = [app.records.get(id_) for id_ in ids]
    assert all(record.created_at > begun for record in found)
    assert found[0].created_at < found[1].created_at == found[2].created_at


# --- character sets ---------------------------------------------------------------------------------------------------


@MARIADB
@pytest.mark.parametrize("charset", ["utf8", "latin1", "utf8mb4"])
async def test_no_character_is_lost_in_a_session_of_an_older_character_set(
    app: App, send: Any, database: Database, charset: str
) -> None:
    # contract: W3, E4
    texts = [EMOJI, "é", "plain", "ключ\U0001f601"]
    sync = sa.create_engine(database.sync_url.update_query_dict({"charset": charset}))
    with sync.begin() as conn:
        conn.exec_driver_sql("SET sql_mode = ''")  # or the server would refuse what it can not keep
        ids = [send.enqueue(Text(text), key=text, headers={"a": text}, connection=conn).id for text in texts]
        assert [send.enqueue(Text(), key=text, connection=conn).id for text in texts] == ids
        many = send.enqueue_many([(Text(text), {"key": f"m{text}"}) for text in texts], connection=conn)
    sync.dispose()
    asyncronous = create_async_engine(database.async_url.update_query_dict({"charset": charset}))
    async with asyncronous.begin() as conn:
        assert [(await send.aenqueue(Text(), key=text, connection=conn)).id for text in texts] == ids
        amany = await send.aenqueue_many([(Text(text), {"key": f"a{text}"}) for text in texts], connection=conn)
    await asyncronous.dispose()
    assert [app.records.get(id_).key for id_ in ids] == texts
    for answers in (ids, [answer.id for answer in many], [answer.id for answer in amany]):
        assert [payload(app, id_) for id_ in answers] == [send.wire.encode(Text(text)).encode() for text in texts]
    await app.aclose()


@MARIADB
def test_an_engine_of_an_older_character_set_is_refused_for_rowlocks_own_work(
    app_factory: AppFactory, database: Database
) -> None:
    # contract: W3, Z1
    old = sa.create_engine(database.sync_url.update_query_dict({"charset": "latin1"}))
    with pytest.raises(UnsupportedDatabase, match="charset=utf8mb4"):
        app_factory(url=old)
    old.dispose()


# --- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("joined", [False, True], ids=["own", "joined"])
def test_a_batch_may_be_larger_than_a_statement(app: App, send: Any, engine: sa.Engine, joined: bool) -> None:
    # contract: E1, W3
    texts = [f"{n}" + "\"'" * 250_000 for n in range(20)]  # MariaDB takes 16 MiB, and each quote is two bytes there
    items = [(Text(text), {"key": text[:2]} if n % 2 else {}) for n, text in enumerate(texts)]
    if joined:
        with engine.begin() as conn:
            answers = send.enqueue_many(items, connection=conn)
    else:
        answers = send.enqueue_many(items)
    assert all(answer.created for answer in answers)
    assert [payload(app, answer.id) for answer in answers] == [send.wire.encode(Text(text)).encode() for text in texts]


@MARIADB
def test_what_no_statement_of_this_server_takes_is_refused_and_the_session_stays(
    app: App, send: Any, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # contract: W3, E4, Z1
    monkeypatch.setattr(mysql_server, "longest_statement", lambda conn: 300_000)
    with engine.begin() as conn:
        for call in (
            lambda: send.enqueue(Text("x" * 300_000), connection=conn),
            lambda: send.enqueue(Text("'" * 150_000), key="k", connection=conn),
            lambda: send.enqueue_many([(Text(), {"key": "a"}), Text(), Text("x" * 300_000)], connection=conn),
            lambda: send.enqueue(Text("x" * 300_000)),
        ):
            with pytest.raises(EnqueueValueError, match="max_allowed_packet"):
                call()
        assert conn.execute(sa.text("SELECT count(*) FROM rowlock_job")).scalar_one() == 0
        assert len(send.enqueue_many([Text("x" * 100_000)] * 9, connection=conn)) == 9
    assert app.records.counts()[0].count == 9


# --- sessions that are not in order -----------------------------------------------------------------------------------


@pytest.mark.databases("postgresql", reason="E4: only PostgreSQL's transactions fail as a whole")
async def test_a_transaction_that_has_failed_already_is_told_so(
    app: App, send: Any, engine: sa.Engine, async_engine: Any
) -> None:
    # contract: E4, E2
    for number in range(2):
        with engine.connect() as conn:
            if number:
                send.enqueue(Text(), connection=conn)
            with pytest.raises(sa.exc.DBAPIError):
                conn.exec_driver_sql("SELECT 1 / 0")
            with pytest.raises(TransactionConflict, match="had failed before"):
                send.enqueue(Text(), connection=conn)
            conn.rollback()
            assert send.enqueue(Text(), connection=conn).created
            conn.rollback()
    async with async_engine() as aengine, aengine.connect() as conn:
        with pytest.raises(sa.exc.DBAPIError):
            await conn.exec_driver_sql("SELECT 1 / 0")
        with pytest.raises(TransactionConflict, match="had failed before"):
            await send.aenqueue(Text(), key="k", connection=conn)
    await app.aclose()


def test_ids_are_right_where_each_row_commits_by_itself(
    app: App, send: Any, engine: sa.Engine, database: Database
) -> None:
    # contract: E1, E2
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        if database.dialect == "sqlite":  # as if another process wrote between two rows
            conn.exec_driver_sql(
                "CREATE TRIGGER amid AFTER INSERT ON rowlock_job WHEN new.job = 'send' BEGIN INSERT INTO rowlock_job"
                " (job, fingerprint, payload, max_attempts, timeout_ms) VALUES ('other', 'f', 'null', 1, 1); END"
            )
        answers = send.enqueue_many([Text(str(n)) for n in range(5)], connection=conn)
        assert [payload(app, answer.id) for answer in answers] == [f'{{"text":"{n}"}}'.encode() for n in range(5)]


def test_a_given_engine_stays_as_it_is(app_factory: AppFactory, database: Database) -> None:
    # contract: C8, E2
    given = sa.create_engine(database.sync_url)
    app = app_factory(url=given)

    @app.job(max_attempts=1, timeout=1, name="own")
    def own() -> None: ...

    with statements(given) as sent:
        own.enqueue()
        own.enqueue_many([(None, {"key": "k"}), None])
    assert sent == []
    assert given.pool.checkedin() == 0  # nothing of Rowlock's ran on it
    with given.connect() as conn:
        own.enqueue(connection=conn)
        conn.rollback()  # it is no connection in autocommit mode
    assert app.records.counts()[0].count == 3
    given.dispose()


@pytest.mark.databases("sqlite", reason="E4: elsewhere the INSERT itself answers, or a range and a nonce tell")
def test_rows_that_another_process_writes_in_between_are_not_taken_for_ones_own(
    app_factory: Any, engine: sa.Engine
) -> None:
    # contract: E4
    app = app_factory()
    db = app.databases["default"]
    foreign = sa.create_engine(engine.url)

    def between(_conn: Any, _cursor: Any, sql: str, *_: Any) -> None:
        if sql.startswith("SELECT token, id"):
            with foreign.begin() as other:
                other.exec_driver_sql(
                    "INSERT INTO rowlock_job (job, fingerprint, payload, max_attempts, timeout_ms, token)"
                    " VALUES ('theirs', 'f', 'null', 1, 1, 'their-nonce')"
                )

    mine = [Row("j", "f", "null", f"k{n}", "default", 1, None, None, 1, 1, None, f"nonce-{n}") for n in range(3)]
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        sa.event.listen(conn, "before_cursor_execute", between)
        made = db.dialect.insert(conn, db, mine)
    foreign.dispose()
    assert [row.nonce for row in made] == [row.nonce for row in mine]
