"""Writing records: in a transaction of the caller's, or in a short one of Rowlock's own (E).

A key is looked for without a lock, inserted with "do nothing on conflict", and looked for again, until it is either
found or made. What this call made is told by a nonce that each row carries, never by a row count.
"""

from __future__ import annotations

import weakref
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, InvalidRequestError
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.errors import EnqueueBusy, NotMigrated, RowlockError, TransactionConflict, WrongDatabase
from rowlock.model.request import Enqueued, EnqueueRequest
from rowlock.store import migrations
from rowlock.store.batch import Batch, JobTarget
from rowlock.store.dialects import dialect_for
from rowlock.store.failures import not_in_order, not_migrated, where

if TYPE_CHECKING:
    from rowlock.store.database import Database

__all__ = ["JobTarget", "acheck_same", "aenqueue", "aenqueue_joined", "check_same", "enqueue", "enqueue_joined"]


# --- the four doors ----------------------------------------------------------------------------------------


def enqueue(db: Database, target: JobTarget, requests: Sequence[EnqueueRequest]) -> list[Enqueued]:
    """Writes records in a short transaction of its own; they are durable when this returns (E8).

    Raises `EnqueueBusy`, `NotMigrated`, `DatabaseUnavailable`.
    """
    batch = Batch(db, target, requests)
    while not batch.done:
        with batch.again_after_conflict():
            db.run(_own, batch)
    return batch.answers()


async def aenqueue(db: Database, target: JobTarget, requests: Sequence[EnqueueRequest]) -> list[Enqueued]:
    """`enqueue` from a coroutine."""
    batch = Batch(db, target, requests)
    while not batch.done:
        with batch.again_after_conflict():
            await db.arun(_own, batch)
    return batch.answers()


def enqueue_joined(
    conn: Connection, db: Database, target: JobTarget, requests: Sequence[EnqueueRequest]
) -> list[Enqueued]:
    """Writes records in the caller's transaction, which this never commits nor rolls back (E2).

    Raises `WrongDatabase` before anything is written, `EnqueueBusy`, `TransactionConflict`, `NotMigrated`.
    """
    batch = Batch(db, target, requests)
    with _callers(db):
        check_same(conn, db)
        if batch.windowed and db.dialect.commits_each(conn):
            return enqueue(db, target, requests)  # there nothing could be taken back
        try:
            if not db.dialect.looks_outside:
                judge = batch.windowed and db.dialect.is_blind(conn)
                batch.join(conn)
                if judge:
                    _raised(db.run(_judge, batch, conn))
            else:
                if batch.missing():
                    _raised(db.run(_in_turn, batch, conn))
                batch.insert(conn)
        except (RowlockError, DBAPIError) as error:
            if batch.leaves_part(error):
                batch.undo(conn)
            raise
    return batch.answers()


async def aenqueue_joined(
    conn: AsyncConnection, db: Database, target: JobTarget, requests: Sequence[EnqueueRequest]
) -> list[Enqueued]:
    """`enqueue_joined` on an async connection."""
    batch = Batch(db, target, requests)
    with _callers(db):
        await acheck_same(conn, db)
        if batch.windowed and await conn.run_sync(db.dialect.commits_each):
            return await aenqueue(db, target, requests)
        try:
            if not db.dialect.looks_outside:
                judge = batch.windowed and await conn.run_sync(db.dialect.is_blind)
                await conn.run_sync(batch.join)
                if judge:
                    assert conn.sync_connection is not None
                    _raised(await db.aread(_judge, batch, conn.sync_connection))
            else:
                if batch.missing():
                    assert conn.sync_connection is not None
                    _raised(await db.aread(_in_turn, batch, conn.sync_connection))
                await conn.run_sync(batch.insert)
        except (RowlockError, DBAPIError) as error:
            if batch.leaves_part(error):
                await conn.run_sync(batch.undo)
            raise
    return batch.answers()


def _own(conn: Connection, db: Database, batch: Batch) -> None:
    looked = batch.windowed
    if batch.size == 1 and not looked:
        batch.write(conn)
        return
    batch.forget()
    if looked:  # a duplicate is found without a transaction, and the rest needs one
        batch.look(conn)
        if batch.done:
            return
    with db.transaction(conn):
        batch.write(conn, looked=looked)


def _judge(own: Connection, db: Database, batch: Batch, caller: Connection) -> DBAPIError | None:
    return batch.judge_outside(own, caller)


def _in_turn(own: Connection, db: Database, batch: Batch, caller: Connection) -> DBAPIError | None:
    return batch.join_in_turn(own, caller)


def _raised(error: DBAPIError | None) -> None:
    if error is not None:
        raise error


# --- the caller's connection -------------------------------------------------------------------------------


class _Seen(NamedTuple):
    """What is known of a connection: in which transaction it was looked at, where it led, and to whose tables."""

    transaction: weakref.ref[object]
    place: object
    installation: str


SEEN = "rowlock_installation"


def check_same(conn: Connection, db: Database) -> None:
    """Refuses a connection to another database than `db`, by the installation's id, not by a URL (E3).

    Raises `WrongDatabase`, `NotMigrated`.
    """
    if not _leads_to(conn, db):
        with _unmigrated(db):
            db.installation = db.run(migrations.verify)  # what is remembered of it may be of tables that were made anew
        _require(conn, db)


async def acheck_same(conn: AsyncConnection, db: Database) -> None:
    """`check_same` on an async connection."""
    if not await conn.run_sync(_leads_to, db):
        with _unmigrated(db):
            db.installation = await db.aread(migrations.verify)
        await conn.run_sync(_require, db)


@contextmanager
def _unmigrated(db: Database) -> Generator[None]:
    """SQLite: a file that is not in WAL mode yet can not be looked at while the caller writes to it."""
    try:
        yield
    except DBAPIError as error:
        if db.installation is None and db.dialect.is_lock_timeout(error):
            raise not_migrated(db) from error
        raise


def _leads_to(conn: Connection, db: Database) -> bool:
    if not _same_kind(conn, db):  # its tables could not even be looked for
        raise _wrong(db)
    return db.installation is not None and _sees(conn, db)


def _require(conn: Connection, db: Database) -> None:
    conn.info.pop(SEEN, None)
    if not _sees(conn, db):
        raise _wrong(db)


def _sees(conn: Connection, db: Database) -> bool:
    try:
        return _installation(conn, db) == db.installation
    except NotMigrated:  # where the caller is; in `db` they are looked for apart
        return False


def _installation(conn: Connection, db: Database) -> str:
    """Whose tables the connection leads to. Looked at in each transaction anew: a session can be sent elsewhere."""
    seen: _Seen | None = conn.info.get(SEEN)
    transaction = conn.get_transaction()
    if seen is not None and transaction is not None and seen.transaction() is transaction:
        return seen.installation
    place = db.dialect.place(conn)
    installation = seen.installation if seen and seen.place == place else migrations.verify(conn, db)
    transaction = conn.get_transaction()
    if transaction is not None:
        conn.info[SEEN] = _Seen(weakref.ref(transaction), place, installation)
    return installation


def _same_kind(conn: Connection, db: Database) -> bool:
    kinds = type(dialect_for(conn.engine.url)), type(db.dialect)
    return issubclass(*kinds) or issubclass(*reversed(kinds))  # a MariaDB server answers to mysql:// as well


def _wrong(db: Database) -> WrongDatabase:
    return WrongDatabase(
        f"the connection leads to another database or schema than {db.name!r} ({where(db)}), where this job's records "
        f"are (E3); nothing was written: pass a connection to that database, or none"
    )


@contextmanager
def _callers(db: Database) -> Generator[None]:
    """What fails in a caller's transaction, in Rowlock's words (E4)."""
    try:
        yield
    except DBAPIError as error:
        if db.dialect.is_missing_table(error):
            raise not_migrated(db) from error
        if db.dialect.is_conflict(error):
            raise TransactionConflict(
                f"the database ended the caller's transaction in {where(db)} by a deadlock or a serialization failure "
                f"(E4); roll back, and run the whole transaction again"
            ) from error
        if db.dialect.is_failed_transaction(error):
            raise TransactionConflict(
                f"the caller's transaction in {where(db)} had failed before, so that the database takes nothing more "
                f"in it (E4); roll back, and run the whole transaction again"
            ) from error
        if db.dialect.is_lock_timeout(error):
            raise EnqueueBusy(
                f"a write in {where(db)} had to wait for another transaction longer than its connection allows (E4); "
                f"nothing was written, try again"
            ) from error
        raise
    except InvalidRequestError as error:
        raise not_in_order(error, f"an enqueue in {where(db)}") from error
