"""What the database says when it fails, in Rowlock's words. No message has a password or a payload."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sqlalchemy.exc import (
    DBAPIError,
    InterfaceError,
    InternalError,
    InvalidRequestError,
    OperationalError,
    PendingRollbackError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout

from rowlock.errors import (
    ConnectionTypeError,
    DatabaseUnavailable,
    LoginRefused,
    NotMigrated,
    RowlockError,
    TransactionConflict,
)

if TYPE_CHECKING:
    from rowlock.store.database import Database


@contextmanager
def translated(db: Database) -> Generator[None]:
    """Turns a missing table and a database that is not there into Rowlock's errors; lets the rest pass."""
    try:
        yield
    except DBAPIError as error:
        if db.dialect.is_missing_table(error):
            raise not_migrated(db) from error
        if look_at := db.dialect.refusal(db, error):
            raise refused(db, error, look_at) from error
        if is_outage(db, error):
            raise unavailable(db, error) from error
        if _is_refusal(db, error):
            raise refused(db, error) from error
        raise
    except (OSError, PoolTimeout) as error:
        raise unavailable(db, error) from error


def not_migrated(db: Database) -> NotMigrated:
    """The error for a database without Rowlock's tables."""
    return NotMigrated(
        f"database {db.name!r} ({where(db)}) does not have Rowlock's tables (S1); "
        f"run `rowlock migrate`, or app.migrate()"
    )


def unavailable(db: Database, error: BaseException) -> DatabaseUnavailable:
    """The error for a database that does not answer; of the cause it names only the kind."""
    kind = type(getattr(error, "orig", None) or error).__name__
    return DatabaseUnavailable(
        f"database {db.name!r} ({where(db)}) can not be reached, or broke off ({kind}); {db.dialect.remedy(db)}"
    )


def refused(
    db: Database, error: BaseException, look_at: str = "the user, the password and the database's name in its URL"
) -> LoginRefused:
    """The error for a database that is there and lets nobody in with this URL."""
    original = getattr(error, "orig", None) or error
    kind = type(original.__cause__ or original).__name__  # SQLAlchemy's own class may stand between
    user = f" as {db.url.username!r}" if db.url.username else ""
    return LoginRefused(f"database {db.name!r} ({where(db)}) refuses the connection{user} ({kind}); look at {look_at}")


def not_in_order(error: InvalidRequestError, what: str) -> RowlockError:
    """The error for a caller's connection in which SQLAlchemy lets nothing be sent (E2, E4)."""
    if isinstance(error, PendingRollbackError):
        return TransactionConflict(
            f"{what}: the caller's transaction had failed before, so that nothing more can be done in it (E4); roll "
            f"back, and run the whole transaction again"
        )
    return ConnectionTypeError(
        f"{what}: the caller's session, or the transaction of its `with` block, has ended already (E2); pass one that "
        f"is open, or none"
    )


def _is_refusal(db: Database, error: DBAPIError) -> bool:
    """The connection failed, not a statement on one, and not for want of time."""
    if error.statement is not None:
        return False
    return not (db.dialect.is_conflict(error) or db.dialect.is_lock_timeout(error))


def is_outage(db: Database, error: BaseException) -> bool:
    """The server, the network or the disk failed, not the statement: trying again later may succeed."""
    if isinstance(error, DatabaseUnavailable | OSError | PoolTimeout):
        return True
    if not isinstance(error, DBAPIError):
        return False
    if error.connection_invalidated:
        return True
    if db.dialect.is_conflict(error) or db.dialect.is_lock_timeout(error):
        return False
    # Drivers disagree about the class of "read-only" and "disk full": asyncpg has none for most of what a server says.
    vague = isinstance(error, InterfaceError | OperationalError | InternalError) or type(error) is DBAPIError
    return vague and not db.dialect.is_statement_fault(error)


def where(db: Database) -> str:
    """A database as a message may name it: without user and password."""
    url = db.url
    host = f"{url.host or ''}{f':{url.port}' if url.port else ''}"
    return f"{url.get_backend_name()}://{host}/{url.database or ''}"
