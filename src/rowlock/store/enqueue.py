"""Writing records: in a transaction of the caller's, or in a short one of Rowlock's own (E).

A key is looked for without a lock, inserted with "do nothing on conflict", and looked for again, until it is either
found or made. What this call made is told by a nonce that each row carries, never by a row count.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from rowlock.errors import EnqueueBusy, TransactionConflict, WrongDatabase
from rowlock.model.outcome import State
from rowlock.model.request import Enqueued, EnqueueRequest
from rowlock.store import migrations
from rowlock.store.dialects import dialect_for
from rowlock.store.dialects.base import Row
from rowlock.store.failures import not_migrated, where

if TYPE_CHECKING:
    from rowlock.store.database import Database

CHUNK = 1_000
"""Rows in one INSERT."""
OWN_RETRIES = 20


class JobTarget(NamedTuple):
    """The job that records are for. `names` are its name and its aliases: they share their keys."""

    names: tuple[str, ...]
    max_attempts: int
    timeout_ms: int


# --- the four doors ----------------------------------------------------------------------------------------


def enqueue(db: Database, target: JobTarget, requests: Sequence[EnqueueRequest]) -> list[Enqueued]:
    """Writes records in a short transaction of its own; they are durable when this returns (E8).

    Raises `EnqueueBusy`, `NotMigrated`, `DatabaseUnavailable`.
    """
    batch = _Batch(db, target, requests)
    while not batch.done:
        with batch.again_after_conflict():
            db.run(_own, batch)
    return batch.answers()


async def aenqueue(db: Database, target: JobTarget, requests: Sequence[EnqueueRequest]) -> list[Enqueued]:
    """`enqueue` from a coroutine."""
    batch = _Batch(db, target, requests)
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
    batch = _Batch(db, target, requests)
    with _callers(db):
        check_same(conn, db, db.run(migrations.verify) if db.installation is None else db.installation)
        while not batch.advance(conn):
            batch.learn(db.run(_outside, batch))
    return batch.answers()


async def aenqueue_joined(
    conn: AsyncConnection, db: Database, target: JobTarget, requests: Sequence[EnqueueRequest]
) -> list[Enqueued]:
    """`enqueue_joined` on an async connection."""
    batch = _Batch(db, target, requests)
    with _callers(db):
        own = await db.aread(migrations.verify) if db.installation is None else db.installation
        await conn.run_sync(check_same, db, own)
        while not await conn.run_sync(batch.advance):
            batch.learn(await db.aread(_outside, batch))
    return batch.answers()


def check_same(conn: Connection, db: Database, installation: str) -> None:
    """Refuses a connection to another database than `db`, by the installation's id, not by a URL (E3)."""
    db.installation = installation
    theirs = conn.info.get("rowlock_installation")
    if not _same_kind(conn, db):  # its tables could not even be looked for
        theirs = "of another kind"
    elif theirs is None:
        theirs = conn.info["rowlock_installation"] = migrations.verify(conn, db)
    if theirs != installation:
        raise WrongDatabase(
            f"the connection leads to another database than {db.name!r} ({where(db)}), where this job's records are "
            f"(E3); nothing was written: pass a connection to that database, or none"
        )


def _same_kind(conn: Connection, db: Database) -> bool:
    kinds = type(dialect_for(conn.engine.url)), type(db.dialect)
    return issubclass(*kinds) or issubclass(*reversed(kinds))  # a MariaDB server answers to mysql:// as well


def _outside(conn: Connection, db: Database, batch: _Batch) -> list[tuple[str, int, str]]:
    return db.dialect.look_outside(conn, db, batch.target.names, batch.missing())


def _own(conn: Connection, db: Database, batch: _Batch) -> None:
    if batch.size == 1:
        batch.write(conn)
        return
    batch.forget()
    with db.transaction(conn):
        batch.write(conn)


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
        if db.dialect.is_lock_timeout(error):
            raise EnqueueBusy(
                f"a write in {where(db)} had to wait for another transaction longer than its connection allows (E4); "
                f"nothing was written, try again"
            ) from error
        raise


# --- one call's records ------------------------------------------------------------------------------------


class _Batch:
    """The records of one call on their way: which keys are settled, as found or as made, and which are not."""

    def __init__(self, db: Database, target: JobTarget, requests: Sequence[EnqueueRequest]) -> None:
        self.target = target
        self.size = len(requests)
        self._db = db
        self._deadline = time.monotonic() + db.wait_ms / 1000
        prefix = secrets.token_hex(12)
        job, most, timeout = target.names[0], target.max_attempts, target.timeout_ms
        self._rows = [
            Row(
                job,
                r.fingerprint,
                r.payload,
                r.key,
                r.queue,
                r.priority,
                r.run_at,
                r.delay_ms,
                most,
                timeout,
                r.headers,
                f"{prefix}{n:08x}",
            )
            for n, r in enumerate(requests)
        ]
        self._conflicts = 0
        self.forget()

    def forget(self) -> None:
        """Back to the start: the transaction that this was written in is gone."""
        self._ids: dict[str, int] = {}
        self._found: dict[str, tuple[int, State]] = {}
        self._plain = [row for row in self._rows if row.key is None]
        self._keyed: dict[str, Row] = {}
        for row in self._rows:
            if row.key is not None:
                self._keyed.setdefault(row.key, row)  # within one call, the first of a key becomes the record
        self._looked = False

    @property
    def done(self) -> bool:
        return not self._plain and not self._keyed

    def missing(self) -> list[str]:
        return sorted(self._keyed)

    def learn(self, active: Sequence[tuple[str, int, str]]) -> None:
        """Takes note of records that a look outside of the caller's transaction found."""
        for key, id_, state in active:
            if self._keyed.pop(key, None) is not None:
                self._found[key] = (id_, State(state))
        self._looked = True

    def advance(self, conn: Connection) -> bool:
        """Goes on in the caller's transaction. False: a look outside of it is needed first."""
        if self._keyed:
            self.learn_from(conn)
            if self._keyed and self._db.dialect.looks_outside and not self._looked:
                return False
            if self._keyed:
                self._db.dialect.reserve_keys(conn, self._db, self.target.names[0], self.missing())
        if self._db.dialect.looks_outside:
            self._insert(conn)
            self._looked = False
            self._refuse_late()
            return self.done
        self.write(conn)
        return True

    def write(self, conn: Connection) -> None:
        """Looks, inserts, and looks again until each record is found or made."""
        while not self.done:
            if self._keyed:
                self.learn_from(conn)
            self._insert(conn)
            self._refuse_late()

    def learn_from(self, conn: Connection) -> None:
        looked = self._looked
        self.learn(self._db.dialect.find_active(conn, self.target.names, self.missing()))
        self._looked = looked

    def _insert(self, conn: Connection) -> None:
        # Keys in one order everywhere, so that two batches can not wait for each other in a circle.
        for rows in (self._plain, [self._keyed[key] for key in self.missing()]):
            for start in range(0, len(rows), CHUNK):
                made = self._db.dialect.insert(conn, self._db, rows[start : start + CHUNK])
                self._ids |= dict(made)
        self._plain = []
        self._keyed = {key: row for key, row in self._keyed.items() if row.nonce not in self._ids}

    def _refuse_late(self) -> None:
        if not self.done and time.monotonic() >= self._deadline:
            raise EnqueueBusy(
                f"job {self.target.names[0]!r}: other enqueues of the same key kept coming and going for "
                f"{self._db.wait_ms} ms (E4, job.enqueue_wait_ms); nothing was written, try again"
            )

    @contextmanager
    def again_after_conflict(self) -> Generator[None]:
        """In Rowlock's own transaction: a deadlock is run again, a wait at its bound is `EnqueueBusy`."""
        try:
            yield
        except DBAPIError as error:
            dialect = self._db.dialect
            if dialect.is_lock_timeout(error):
                raise EnqueueBusy(
                    f"job {self.target.names[0]!r}: another transaction holds the same key, or the database's write "
                    f"lock, and did not end within {self._db.wait_ms} ms (E4, job.enqueue_wait_ms); nothing was "
                    f"written, try again"
                ) from error
            self._conflicts += 1
            if not dialect.is_conflict(error) or self._conflicts > OWN_RETRIES:
                raise
            self.forget()

    def answers(self) -> list[Enqueued]:
        """An answer for each request, in the order of the requests (E1)."""
        made = {row.key: row.nonce for row in self._rows if row.key is not None and row.nonce in self._ids}
        answers: list[Enqueued] = []
        for row in self._rows:
            if row.nonce in self._ids:
                answers.append(Enqueued(self._ids[row.nonce], True, State.PENDING))
            elif row.key in made:
                answers.append(Enqueued(self._ids[made[row.key]], False, State.PENDING))
            else:
                assert row.key is not None
                id_, state = self._found[row.key]
                answers.append(Enqueued(id_, False, state))
        return answers
