"""Making Rowlock's own engines from a URL, or by re-creating the pool of a given engine.

The application's pool is never used: its traffic could starve claims and renewals (C8).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Engine, create_engine, event, make_url
from sqlalchemy.engine import URL, Connection
from sqlalchemy.exc import ArgumentError, DisconnectionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import AssertionPool, StaticPool

from rowlock.errors import UnsupportedDatabase
from rowlock.store.failures import is_outage

if TYPE_CHECKING:
    from rowlock.store.database import Database, Target

T = TypeVar("T")

IDLE_BEFORE_CHECK = 5.0
"""Seconds after which a pooled connection is looked at before it is used: balancers drop idle ones in silence."""
POOL_SIZE, POOL_OVERFLOW = 5, 10

LOGGING_NAME = "rowlock"
# SQLAlchemy's own log has statements with their parameters and rows: payloads. A program that logs everything must not
# log those, so Rowlock's engines are quiet unless their logger is asked by name, and never tell parameters (S6).
_log = logging.getLogger(f"sqlalchemy.engine.Engine.{LOGGING_NAME}")
if _log.level == logging.NOTSET:
    _log.setLevel(logging.WARNING)
# And its pools' own complaints about connections that can not be closed any more: what failed is told once (K2).
for _kind in ("QueuePool", "AsyncAdaptedQueuePool"):
    _log = logging.getLogger(f"sqlalchemy.pool.impl.{_kind}.{LOGGING_NAME}")
    if _log.level == logging.NOTSET:
        _log.setLevel(logging.CRITICAL)


def url_of(target: Target, name: str) -> URL:
    """The URL of what a user gave as database `name`. Raises `UnsupportedDatabase`."""
    if isinstance(target, AsyncEngine | Engine):
        if isinstance(target.pool, StaticPool | AssertionPool):
            # Threads that share a connection end each other's transactions: what was enqueued would be gone (E8).
            raise UnsupportedDatabase(
                f"database {name!r}: its engine has a {type(target.pool).__name__}, one connection for all, and "
                f"Rowlock works on several at once (C8); leave poolclass out"
            )
        return target.url
    if isinstance(target, URL):
        return target
    text = "postgresql" + target[8:] if target.startswith("postgres:") else target
    try:
        return make_url(text)
    except ArgumentError:
        raise UnsupportedDatabase(
            f"database {name!r}: what is given as its URL can not be read as one; write sqlite:///file.db, "
            f"postgresql://…, mysql://… or mariadb://…"
        ) from None


def sync_engine(db: Database) -> Engine:
    """A sync engine in autocommit mode, with a pool of its own."""
    wait_ms = db.wait_ms
    if isinstance(db.target, Engine):
        engine = _recreated(db.target)
    else:
        url, _ = db.dialect.urls(db.url)
        engine = create_engine(
            url,
            isolation_level="AUTOCOMMIT",
            logging_name=LOGGING_NAME,
            hide_parameters=True,
            connect_args=db.dialect.connect_args(is_async=False, wait_ms=wait_ms),
            **_pool(db),
        )
    _listen(engine, db)
    return engine


def async_engine(db: Database) -> AsyncEngine:
    """The same for the running loop."""
    if isinstance(db.target, AsyncEngine):
        engine = AsyncEngine(_recreated(db.target.sync_engine))
    else:
        url, options = _async(db)
        engine = create_async_engine(
            url,
            isolation_level="AUTOCOMMIT",
            logging_name=LOGGING_NAME,
            hide_parameters=True,
            connect_args=options,
            **_pool(db),
        )
    _listen(engine.sync_engine, db)
    return engine


def _async(db: Database) -> tuple[URL, dict[str, Any]]:
    """The URL of the async engine, and its driver's options."""
    sync, url = db.dialect.urls(db.url)
    if db.pooler:  # the sync driver's async side: it sends a statement whole, and needs nothing of the session after it
        url = sync
    return url, db.dialect.connect_args(is_async=url != sync, wait_ms=db.wait_ms)


def handler_engine(db: Database, size: int) -> Engine:
    """For the transactions of sync handlers: at most `size` at once, in sessions as a user's program has them."""
    if isinstance(db.target, Engine):
        engine = _recreated(db.target)
    else:
        url, _ = db.dialect.urls(db.url)
        engine = create_engine(url, **_of_handlers(db, size, is_async=False))
    _listen_as_handlers_want(engine, db)
    return engine


def async_handler_engine(db: Database, size: int) -> AsyncEngine:
    """The same for async handlers, on the running loop."""
    if isinstance(db.target, AsyncEngine):
        engine = AsyncEngine(_recreated(db.target.sync_engine))
    else:
        url = _async(db)[0] if db.pooler else db.dialect.handler_url(db.url)
        is_async = url != db.dialect.urls(db.url)[0]
        engine = create_async_engine(url, **_of_handlers(db, size, is_async=is_async))
    _listen_as_handlers_want(engine.sync_engine, db)
    return engine


def _of_handlers(db: Database, size: int, *, is_async: bool) -> dict[str, Any]:
    return {
        "logging_name": LOGGING_NAME,
        "hide_parameters": True,
        "connect_args": db.dialect.connect_args(is_async=is_async, wait_ms=db.wait_ms),
        "pool_size": size,
        "max_overflow": -1,
        "pool_logging_name": LOGGING_NAME,
    }


def _listen_as_handlers_want(engine: Engine, db: Database) -> None:
    """READ COMMITTED and UTC, as everywhere (C7); no bound on lock waits and no planner's settings: it is their SQL."""

    def connected(dbapi_connection: Any, _record: Any) -> None:
        engine.dialect.set_isolation_level(dbapi_connection, db.dialect.handler_isolation)
        if db.pooler:
            db.dialect.through_pooler(dbapi_connection)
            return
        cursor = dbapi_connection.cursor()
        try:
            db.dialect.on_handler_connect(cursor, wait_ms=db.wait_ms)
        finally:
            cursor.close()
        dbapi_connection.commit()

    event.listen(engine, "connect", connected)
    _listen_idle(engine)
    if db.dialect.one_writer:  # its driver begins only before a row is written

        def begin(conn: Connection) -> None:
            conn.exec_driver_sql(db.dialect.begin)

        event.listen(engine, "begin", begin)


def _recreated(given: Engine) -> Engine:
    return Engine(given.pool.recreate(), given.dialect, given.url, logging_name=LOGGING_NAME, hide_parameters=True)


def _pool(db: Database) -> dict[str, Any]:
    size, overflow = (POOL_SIZE, POOL_OVERFLOW) if db.pool is None else (max(1, db.pool - db.for_handlers), 0)
    # Nothing is left open when a connection is returned (`guarded`), so the pool need not roll back: one trip less.
    return {
        "pool_size": size,
        "max_overflow": overflow,
        "pool_timeout": 10,
        "pool_reset_on_return": None,
        "pool_logging_name": LOGGING_NAME,
    }


def _listen(engine: Engine, db: Database) -> None:
    def connected(dbapi_connection: Any, record: Any) -> None:
        record.info["rowlock_made"] = time.monotonic()
        # Of a user's engine the connection is not in autocommit mode. Not by an execution option: at each return to the
        # pool SQLAlchemy would give the session the isolation level back that the user's engine has (C7).
        dbapi_connection.commit()
        engine.dialect.set_isolation_level(dbapi_connection, "AUTOCOMMIT")
        if db.pooler:
            db.dialect.through_pooler(dbapi_connection)
            return
        cursor = dbapi_connection.cursor()
        try:
            db.dialect.on_connect(cursor, wait_ms=db.wait_ms)
        finally:
            cursor.close()

    def taken(_dbapi_connection: Any, record: Any, _proxy: Any) -> None:
        if record.info["rowlock_made"] < db.silent_at:
            raise DisconnectionError("another connection of its time fell silent")

    event.listen(engine, "connect", connected)
    event.listen(engine, "checkout", taken)
    _listen_idle(engine)


def _listen_idle(engine: Engine) -> None:
    """Looks whether a connection that was idle for long is still there, before it is used."""

    def taken(dbapi_connection: Any, record: Any, _proxy: Any) -> None:
        used = record.info.get("rowlock_used")
        if used is None or time.monotonic() - used < IDLE_BEFORE_CHECK:
            return
        try:
            alive = engine.dialect.do_ping(dbapi_connection)
        except Exception as error:
            raise DisconnectionError("an idle connection is gone") from error
        if not alive:
            raise DisconnectionError("an idle connection is gone")

    def returned(_dbapi_connection: Any, record: Any) -> None:
        record.info["rowlock_used"] = time.monotonic()

    event.listen(engine, "checkout", taken)
    event.listen(engine, "checkin", returned)


def guarded(conn: Connection, db: Database, function: Callable[[], T]) -> T:
    """Runs a function of the store, and leaves nothing open on the connection, whatever ends it."""
    try:
        return function()
    except asyncio.CancelledError:
        raise  # who awaits this closes the connection, without waiting for an answer
    except Exception as error:
        if is_outage(db, error):
            # It may lead to a server that was demoted, and answers "read-only" as long as it is used (K2).
            conn.invalidate()
        raise
    except BaseException:
        conn.invalidate()
        raise


async def drop(conn: AsyncConnection) -> None:
    """Closes a connection on which a reply may still be on its way (C8)."""
    sync = conn.sync_connection
    if sync is not None and conn.dialect.has_terminate:
        sync.invalidate()  # not through `conn`: that would first say good-bye, and wait for an answer
    else:
        await conn.invalidate()


def rollback(conn: Connection) -> None:
    """Ends an explicit transaction; a connection that can not even do that is thrown away."""
    try:
        conn.exec_driver_sql("ROLLBACK")
    except Exception:  # noqa: BLE001 - whatever keeps it from ending, it must not be used again
        conn.invalidate()
