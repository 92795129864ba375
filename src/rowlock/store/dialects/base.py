"""What differs between databases, and nothing else: the hooks that the rest of the store calls.

A hook gets a `Connection` that is already in the right mode (see `Database.run`) and never commits.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from sqlalchemy import ColumnElement, Executable, literal, text
from sqlalchemy.engine import URL, Connection

from rowlock.store.dialects.aging import Aging
from rowlock.store.dialects.keys import KeyHooks
from rowlock.store.dialects.pooler import ThroughPooler
from rowlock.store.dialects.values import (
    CLAIMED_COLUMNS,
    PARAMETERS,
    Branch,
    Claimed,
    Hold,
    Inserted,
    Level,
    Looking,
    Row,
    Source,
    driver_error,
    is_cancelled,
    lease_of,
    not_paused,
    one_of,
)  # fmt: skip

if TYPE_CHECKING:
    from rowlock.model.table import QueueShape
    from rowlock.store.database import Database
    from rowlock.store.migrations.step import Step


__all__ = [
    "CLAIMED_COLUMNS", "PARAMETERS", "Branch", "Claimed", "Dialect", "Hold", "Inserted", "Level", "Row", "Source",
    "driver_error", "fetch", "is_cancelled", "lease_of", "not_paused", "one_of",
]  # fmt: skip


class Dialect(KeyHooks, ThroughPooler):
    """The hooks. One instance a process and kind of database; it keeps no state of a connection."""

    name: ClassVar[str]
    label: ClassVar[str]
    max_batch: ClassVar[int]
    """The most pairs that one statement takes."""
    transactional_ddl: ClassVar[bool]
    one_writer: ClassVar[bool] = False
    """One transaction at a time can write, so Rowlock's async work shares one thread and its transactions."""
    begin: ClassVar[str] = "BEGIN"
    renew_program: ClassVar[str] = "ON CONFLICT (pair) DO UPDATE SET announced_at = excluded.announced_at"
    aging: ClassVar[Aging] = Aging()  # how retention meets tables of any shape
    name_hash: ClassVar[str | None] = None  # of a cursor: its column, where names are too long for an index
    due_hint: ClassVar[str] = ""
    """Behind the job table's name where pending rows are looked for, for an optimizer that would take another index."""
    looking: ClassVar[Looking] = Looking()

    # --- connecting ---------------------------------------------------------------------------------------

    @abstractmethod
    def urls(self, url: URL) -> tuple[URL, URL]:
        """The sync and the async URL: the drivers are picked here. Raises `MissingDriver`."""

    @abstractmethod
    def connect_args(self, *, is_async: bool, wait_ms: int) -> dict[str, Any]: ...

    @abstractmethod
    def on_connect(self, cursor: Any, *, wait_ms: int) -> None:
        """Session settings of a connection of Rowlock's own: READ COMMITTED, UTC, a bound on lock waits (C7)."""

    handler_isolation: ClassVar[Literal["READ COMMITTED", "AUTOCOMMIT"]] = "READ COMMITTED"
    """Of a transaction that a handler works in (L8, C7)."""

    def handler_url(self, url: URL) -> URL:
        """The async URL for the transactions of async handlers."""
        return self.urls(url)[1]

    def on_handler_connect(self, cursor: Any, *, wait_ms: int) -> None:
        """Session settings of a connection that a handler works on: what its settlement relies on (L8)."""
        self.on_connect(cursor, wait_ms=wait_ms)

    def place_of_handlers(self, db: Database) -> Path | None:
        """The file that stands for the one place of a handler's transaction, where only one can write (L8)."""
        return None

    def add_functions(self, cursor: Any) -> None:
        """Functions that statements use and the server lacks; also for a connection that is not Rowlock's (X1)."""

    @abstractmethod
    def check_server(self, conn: Connection) -> None:
        """Raises `UnsupportedDatabase` for a server that is too old."""

    # --- time ---------------------------------------------------------------------------------------------

    @abstractmethod
    def now(self, db: Database) -> str:
        """SQL for the instant at which it is evaluated, so after a lock that was waited for (L2)."""

    @abstractmethod
    def scan_now(self, db: Database) -> str:
        """SQL for an instant that is fixed once a statement, so that an index can be used with it (L2)."""

    def callers_now(self, db: Database) -> str:
        """SQL for now, also on a caller's connection, whose session has a time zone of its own."""
        return self.now(db)

    @abstractmethod
    def plus_ms(self, instant: str, milliseconds: str) -> str:
        """SQL for `instant` moved by a number of milliseconds, itself SQL."""

    def to_db(self, moment: datetime) -> Any:
        """An aware instant as this database's parameter."""
        return moment

    def from_db(self, value: Any) -> datetime | None:
        """A stored instant as an aware UTC datetime."""
        return None if value is None else value.astimezone(UTC)

    # --- records ------------------------------------------------------------------------------------------

    @abstractmethod
    def levels(self, conn: Connection, db: Database, source: Source) -> list[Level]:
        """Each branch's priorities that have pending records, with their heads' waiting time; none of a paused queue.

        One read.
        """

    @abstractmethod
    def claim(self, conn: Connection, db: Database, source: Source, limit: int) -> list[Claimed]:
        """Takes ownership of at most `limit` due records, best first; skips what others have locked."""

    @abstractmethod
    def fenced_update(
        self,
        conn: Connection,
        db: Database,
        shape: QueueShape,
        assignments: str,
        records: Sequence[Mapping[str, Any]],
        *,
        wait: bool = False,
    ) -> set[int]:
        """Updates the records whose (id, token) pair holds an unexpired lease; answers their ids (L1).

        `assignments` is SQL in which `{now}` is the clock after the lock and `{name}` the value `name`
        of each record. Rows that others have locked are passed over unless `wait`.
        """

    @abstractmethod
    def quoted(self, name: str) -> str:
        """An identifier as this database quotes it."""

    def raw(self, column: str) -> str:
        """A text column as stored: where a driver decodes on fetching, as bytes."""
        return self.quoted(column)

    def is_still(self, shape: QueueShape, *states: str) -> str:
        """ "In one of these states", for rows that are named by id, in words that keep the primary key's index."""
        return f"{self.quoted(shape.column('state'))} {one_of(states)}"

    def exhausted(self, shape: QueueShape) -> str:
        """The condition for pending records without attempts left, in the words that its index needs (C5)."""
        state, attempt, most = (self.quoted(shape.column(role)) for role in ("state", "attempt", "max_attempts"))
        return f"{state} = 'pending' AND {attempt} >= {most}"

    def as_text(self, value: str) -> ColumnElement[str]:
        """A text as a value of a statement that SQLAlchemy builds, whole in whatever character set a caller's session
        speaks."""
        return literal(value)

    @abstractmethod
    def in_ids(self, ids: Sequence[int]) -> str:
        """SQL for membership in a list of ids that keeps the primary key's index at every length."""

    @abstractmethod
    def skip_locked(self) -> str:
        """What follows a SELECT that locks the rows which it returns and passes over locked ones."""

    def note_cancels(self, conn: Connection, db: Database, ids: Sequence[int], by: str | None) -> None:
        """Writes beside these records that somebody asked to cancel them; what was asked before stays as it is (O4).

        Also on a caller's connection. Waits only for an uncommitted cancel of one of the same records.
        """
        rows = ", ".join(f"({id_}, {self.callers_now(db)}, :by)" for id_ in ids)
        statement = f"INSERT INTO rowlock_cancel (id, asked_at, asked_by) VALUES {rows} ON CONFLICT (id) DO NOTHING"
        conn.execute(text(statement), {"by": by} | db.now_params())

    # --- programs and what they know (S7) ---------------------------------------------------------------

    @abstractmethod
    def pending_pairs(self, conn: Connection) -> list[tuple[str, str, str]]:
        """Each (queue, job, fingerprint) that has pending records, found by skipping through the claim's index."""

    def upsert_programs(self, conn: Connection, db: Database, rows: Sequence[Mapping[str, str]]) -> None:
        """Notes the pairs (`pair`, `job`, `fingerprint`) as announced now."""
        statement = text(
            "INSERT INTO rowlock_program (pair, job, fingerprint, announced_at)"
            f" VALUES (:pair, :job, :fingerprint, {self.now(db)}) {self.renew_program}"
        )
        conn.execute(statement, [dict(row) | db.now_params() for row in rows])

    @abstractmethod
    def in_pair(self, queue: str, job: str, fingerprint: str) -> tuple[str, dict[str, Any]]:
        """The condition for pending rows of a queue and one pair, as `pending_pairs` answers them, and its values."""

    def insert_new(self, conn: Connection, statement: str, params: Mapping[str, Any]) -> bool:
        """Sends an INSERT of one row, also in a caller's transaction, which goes on; False if its key is taken."""
        return conn.execute(text(f"{statement} ON CONFLICT DO NOTHING"), params).rowcount == 1

    # --- schema -------------------------------------------------------------------------------------------

    @abstractmethod
    def ddl(self, conn: Connection, step: Step) -> Mapping[str, str]:
        """The objects of a schema step, each with the one statement that makes it."""

    @abstractmethod
    def has_table(self, conn: Connection, table: str) -> bool:
        """Whether the table is there; never fails the caller's transaction."""

    @abstractmethod
    def lock_migration(self, conn: Connection) -> None:
        """Waits until no other process migrates this database; held until the transaction or session ends."""

    def unlock_migration(self, conn: Connection) -> None:
        """Gives the migration lock back where a session holds it."""

    # --- errors -------------------------------------------------------------------------------------------

    @abstractmethod
    def is_missing_table(self, error: BaseException) -> bool: ...

    def refusal(self, db: Database, error: BaseException) -> str | None:
        """What to look at, for a database that lets nobody in as long as nobody changes something (C24).

        For what a driver does not tell apart from a database that is not there.
        """
        return None

    def remedy(self, db: Database) -> str:
        """What to do about a database that can not be reached."""
        return "look whether it runs, and at its URL, user and password"

    @abstractmethod
    def is_conflict(self, error: BaseException) -> bool:
        """Deadlock or serialization failure: the transaction is gone, running it again may succeed."""

    def is_failed_transaction(self, error: BaseException) -> bool:
        """An earlier statement failed, and the transaction takes no other."""
        return False

    @abstractmethod
    def is_lock_timeout(self, error: BaseException) -> bool:
        """A wait for a lock ended at its bound."""

    @abstractmethod
    def is_statement_fault(self, error: BaseException) -> bool:
        """The statement was refused although the database works: to try again changes nothing."""


def fetch(conn: Connection, statement: Executable, params: Mapping[str, Any] | None = None) -> list[Any]:
    """The rows of a statement that is written as text, so that no type checker knows their columns."""
    return list(conn.execute(statement, params or {}))
