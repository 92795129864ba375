"""Operations on records as short steps: one code path, sync and async, on Rowlock's connections and a caller's (O2).

An operation is a generator: it yields what to do on a connection and gets the answer back. Who drives it decides where
that runs: each step in a short transaction of its own, or all of them in the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, InvalidRequestError
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.errors import EnqueueBusy, TransactionConflict
from rowlock.store.enqueue import acheck_same, check_same
from rowlock.store.failures import not_in_order, not_migrated, where

if TYPE_CHECKING:
    from rowlock.store.database import Database

T = TypeVar("T")
OWN_RETRIES = 5


@dataclass(frozen=True, slots=True)
class Step:
    """What to do on a connection, more than once if the database asks for it.

    `outside`: a look for the committed records of keys that a caller's snapshot may be blind to (E4).
    """

    work: Callable[[Connection], Any]
    outside: bool = False


Operation = Generator[Step, Any, T]


def run(db: Database, operation: Operation[T], caller: Connection | None = None) -> T:
    """Drives an operation to its end, in the caller's transaction if one is given. Raises what its steps raise."""
    if caller is not None:
        with in_callers_words(db):
            check_same(caller, db)
            return _driven(operation, lambda step: db.run(_read, step) if step.outside else step.work(caller))
    with in_callers_words(db, joined=False):
        return _driven(operation, lambda step: _again_after_conflict(db, step))


async def arun(db: Database, operation: Operation[T], caller: AsyncConnection | None = None) -> T:
    """`run` from a coroutine."""
    answer: Any = None
    with in_callers_words(db, joined=caller is not None):
        if caller is not None:
            await acheck_same(caller, db)
        while True:
            try:
                step = operation.send(answer)
            except StopIteration as ended:
                return ended.value
            if caller is None:
                answer = await _aagain_after_conflict(db, step)
            elif step.outside:
                answer = await db.aread(_read, step)
            else:
                answer = await caller.run_sync(step.work)


def _driven(operation: Operation[T], do: Callable[[Step], Any]) -> T:
    answer: Any = None
    while True:
        try:
            step = operation.send(answer)
        except StopIteration as ended:
            return ended.value
        answer = do(step)


def _read(conn: Connection, _db: Database, step: Step) -> Any:
    return step.work(conn)


def _written(conn: Connection, db: Database, step: Step) -> Any:
    with db.transaction(conn):
        return step.work(conn)


def _again_after_conflict(db: Database, step: Step) -> Any:
    if step.outside:  # Rowlock's own connections are not blind
        return []
    for _ in range(OWN_RETRIES):
        try:
            return db.run(_written, step)
        except DBAPIError as error:
            if not db.dialect.is_conflict(error):
                raise
    return db.run(_written, step)


async def _aagain_after_conflict(db: Database, step: Step) -> Any:
    if step.outside:
        return []
    for _ in range(OWN_RETRIES):
        try:
            return await db.arun(_written, step)
        except DBAPIError as error:
            if not db.dialect.is_conflict(error):
                raise
    return await db.arun(_written, step)


@contextmanager
def in_callers_words(db: Database, *, joined: bool = True) -> Generator[None]:
    """What fails in a caller's transaction, in Rowlock's words (E4)."""
    try:
        yield
    except DBAPIError as error:
        if db.dialect.is_lock_timeout(error):
            raise EnqueueBusy(
                f"a change of records in {where(db)} had to wait for another transaction longer than its connection "
                f"allows (O2); try again"
            ) from error
        if not joined:
            raise
        if db.dialect.is_missing_table(error):
            raise not_migrated(db) from error
        if db.dialect.is_conflict(error):
            raise TransactionConflict(
                f"the database ended the caller's transaction in {where(db)} by a deadlock or a serialization failure "
                f"(O2); roll back, and run the whole transaction again"
            ) from error
        raise
    except InvalidRequestError as error:
        if not joined:
            raise
        raise not_in_order(error, f"a change of records in {where(db)}") from error
