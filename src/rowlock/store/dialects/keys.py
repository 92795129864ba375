"""What differs between databases when records are enqueued: looking for a key, inserting, taking turns (E2, E4, E5)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy.engine import Connection

from rowlock.store.dialects.values import Inserted, Row

if TYPE_CHECKING:
    from rowlock.store.database import Database


class KeyHooks(ABC):
    """The hooks that `store/enqueue.py` and `store/batch.py` call."""

    @abstractmethod
    def insert(self, conn: Connection, db: Database, rows: Sequence[Row]) -> list[Inserted]:
        """Inserts job rows; rows whose key is taken are left out. Answers what was made, with its nonces."""

    @abstractmethod
    def find_active(self, conn: Connection, jobs: Sequence[str], keys: Sequence[str]) -> list[tuple[str, int, str]]:
        """(key, id, state) of the pending and running records of these jobs and keys, without a lock (E4)."""

    @abstractmethod
    def find_recent(
        self, conn: Connection, db: Database, jobs: Sequence[str], keys: Sequence[str], window_ms: int
    ) -> list[tuple[str, int, str]]:
        """(key, id, state) of the last succeeded record of each of these keys that is younger than the window (E5)."""

    def is_blind(self, conn: Connection) -> bool:
        """Whether a caller's transaction does not see what others commit meanwhile, however late it looks."""
        return False

    def commits_each(self, conn: Connection) -> bool:
        """Whether each statement on a caller's connection is a transaction of its own."""
        raw: Any = conn.connection.dbapi_connection
        return conn.dialect.detect_autocommit_setting(raw)

    looks_outside: ClassVar[bool] = False
    """A caller's snapshot can be blind to committed records here, so keys are looked up on a connection of
    Rowlock's own before a caller's transaction is touched (`look_outside`)."""

    def reserve_keys(  # noqa: B027 - most databases need none
        self, conn: Connection, db: Database, job: str, keys: Sequence[str]
    ) -> None:
        """In a caller's transaction, before inserting: waits, bounded, for uncommitted enqueues of these keys.

        Raises `EnqueueBusy`, and leaves the transaction usable.
        """

    def look_outside(
        self, conn: Connection, db: Database, jobs: Sequence[str], keys: Sequence[str]
    ) -> list[tuple[str, int, str]]:
        """`find_active` on a connection of Rowlock's own, having waited, bounded, for uncommitted enqueues."""
        return self.find_active(conn, jobs, keys)

    def look_once(
        self, conn: Connection, jobs: Sequence[str], keys: Sequence[str]
    ) -> list[tuple[str, int, str]] | None:
        """`look_outside` without waiting: None if an enqueue of one of the keys is not committed yet."""
        return self.find_active(conn, jobs, keys)

    def find_own(self, conn: Connection, jobs: Sequence[str], keys: Sequence[str]) -> list[tuple[str, int, str]]:
        """`find_active` for what the caller's own transaction made. Waits for nobody, in whatever isolation."""
        return self.find_active(conn, jobs, keys)

    @contextmanager
    def keys_in_turn(self, conn: Connection, db: Database, job: str, keys: Sequence[str]) -> Generator[None]:
        """Where looks are outside: of those that look and then insert one of these keys, one at a time.

        Held on a connection of Rowlock's own. Raises `EnqueueBusy`.
        """
        yield

    def place(self, conn: Connection) -> object:
        """What tells, by one cheap look, whether a caller's session still leads to the tables that it led to (E3)."""
        return None
