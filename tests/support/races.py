"""Forcing the order of two steps: a second session that holds a lock, and a way to know that somebody waits for it.

with Blocker(database) as blocker:
    blocker.lock_row("rowlock_job", id=1)
    late = in_background(lambda: settle(...))
    wait_for_waiters(database)              # the settlement is at the row now, and waits
    blocker.execute("UPDATE rowlock_job SET token = 'other' WHERE id = 1")
    blocker.commit()                        # or rollback(), or nothing changed and commit(): it only locked
    assert late.result(5) == ...
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Self, TypeVar

import sqlalchemy as sa

from support import busy
from support.databases import Database
from support.waiting import BOUND, wait_until

T = TypeVar("T")


class Blocker:
    """A session of its own in one open transaction. Leaving the `with` rolls back what was not ended."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._sqlite = database.dialect == "sqlite"
        if self._sqlite:
            busy.watch()
        options = {"connect_args": {"isolation_level": None}} if self._sqlite else {}
        self._engine = sa.create_engine(database.sync_url, poolclass=sa.NullPool, **options)
        self._connection = self._engine.connect()
        self._open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.rollback()
        self._connection.close()
        self._engine.dispose()

    def begin(self) -> None:
        """Open the transaction; on SQLite this takes the write lock, the only lock that there is."""
        if self._sqlite and not self._open:
            self._connection.exec_driver_sql("BEGIN IMMEDIATE")
        self._open = True

    def lock_row(self, table: str, **key: object) -> sa.Row:
        """Lock the row that these columns name, as an operator's SELECT … FOR UPDATE does, and return it."""
        where = " AND ".join(f"{column} = :{column}" for column in key)
        return self.execute(f"SELECT * FROM {table} WHERE {where}{'' if self._sqlite else ' FOR UPDATE'}", **key)[0]

    def execute(self, sql: str, **values: object) -> list[sa.Row]:
        """Any statement within the transaction; a write locks what it writes."""
        self.begin()
        result = self._connection.execute(sa.text(sql), values)
        return list(result) if result.returns_rows else []

    def commit(self) -> None:
        self._end("COMMIT")

    def rollback(self) -> None:
        self._end("ROLLBACK")

    def _end(self, how: str) -> None:
        if not self._open:
            return
        self._open = False
        if self._sqlite:
            self._connection.exec_driver_sql(how)
        # SQLAlchemy's own view of the transaction ends too; on SQLite there is nothing left to do for the driver.
        self._connection.commit() if how == "COMMIT" else self._connection.rollback()


def wait_for_waiters(database: Database, count: int = 1, timeout: float = BOUND) -> None:
    """Return once `count` sessions wait for a lock in this database.

    PostgreSQL: pg_stat_activity. MariaDB: InnoDB's lock waits, GET_LOCK and waits for DDL. SQLite: writing statements
    of this process under way; the caller's Blocker holds the write lock and was made before they began.
    """
    wait_until(
        lambda: database.waiting() >= count,
        timeout,
        lambda: f"{count} waiting sessions; there are: {database.sessions()}",
    )


def in_background(function: Callable[[], T]) -> Future[T]:
    """Run the function on a thread of its own; `.result(timeout)` is its answer or failure."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as failure:
            future.set_exception(failure)

    threading.Thread(target=run, name="in_background", daemon=True).start()
    return future
