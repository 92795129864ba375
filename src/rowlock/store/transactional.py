"""The transaction that a handler works in, and that its settlement commits with, or not at all (L8).

One code path: everything here takes the sync `Connection`, which an async handler's connection has inside. Whoever
holds the handler (a thread, a task) calls these functions and waits between them.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from sqlalchemy import event
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from rowlock.errors import TransactionMisuse
from rowlock.model.outcome import Settlement
from rowlock.model.table import JOBS
from rowlock.store.settle import Verdict, settle

if TYPE_CHECKING:
    from rowlock.store.database import Database

_OWNER = "rowlock_handler"
"""In a session's `info`: the `HandlerTransaction` that it works in."""
JOINED = "rowlock_transaction"
"""In a connection's `info`: somebody else ends its transaction (`Database.transaction`)."""


class HandlerTransaction:
    """What `ctx.connection` and its like lead to. `begin` first; then `finish`, `settle` and `commit`, or `abandon`."""

    def __init__(self, db: Database, sync: Connection, aconnection: AsyncConnection | None = None) -> None:
        self.sync = sync
        self.aconnection = aconnection
        self._db = db
        self._mark = f"rowlock_{secrets.token_hex(8)}"
        self._raw: Any = None
        """The driver's connection, as long as it is this transaction's."""
        self._ours = False
        """Set while it is Rowlock that ends the transaction."""
        self._ended = False
        self._flushes = 0
        """How many flushes are under way. One that fails rolls back, and `finish` finds the mark gone."""
        self.dropped = False
        """Its connection must not be used again: the handler was stopped while a reply may have been on its way."""
        self._listeners: dict[str, Callable[[Connection], None]] = {}
        self._session: Session | None = None
        self._asession: AsyncSession | None = None

    # --- for the handler ----------------------------------------------------------------------------------

    def connection(self, what: str) -> Connection:
        """The connection, for a sync handler. Raises `TransactionMisuse`."""
        self._require(what, is_async=False)
        return self.sync

    def session(self, what: str) -> Session:
        """The one session on it, for a sync handler. Raises `TransactionMisuse`."""
        self._require(what, is_async=False)
        if self._session is None:
            self._session = _Session(self.sync, join_transaction_mode="rollback_only", info={_OWNER: self})
        return self._session

    def async_connection(self, what: str) -> AsyncConnection:
        """The connection, for an async handler. Raises `TransactionMisuse`."""
        self._require(what, is_async=True)
        assert self.aconnection is not None
        return self.aconnection

    def async_session(self, what: str) -> AsyncSession:
        """The one session on it, for an async handler. Raises `TransactionMisuse`."""
        self._require(what, is_async=True)
        if self._asession is None:
            self._asession = _AsyncSession(
                self.aconnection, sync_session_class=_Session, join_transaction_mode="rollback_only",
                info={_OWNER: self},
            )  # fmt: skip
        return self._asession

    def _require(self, what: str, *, is_async: bool) -> None:
        if self._ended:
            raise TransactionMisuse(f"{what}: the attempt has ended, and its transaction with it (L8)")
        if is_async is not (self.aconnection is not None):
            usage = "a sync handler uses ctx.connection and ctx.session()"
            if self.aconnection is not None:
                usage = "an async handler uses ctx.aconnection and ctx.asession()"
            raise TransactionMisuse(f"{what} is of the other kind of handler (L8); {usage}")

    # --- for the worker -----------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begins, and sets the mark by which an end that Rowlock did not make is told. Raises what databases raise."""
        self._raw = self.sync.connection.driver_connection
        if self._db.pooler and (settings := self._db.dialect.handler_session):
            self.sync.exec_driver_sql(settings)
        self.sync.exec_driver_sql(f"SAVEPOINT {self._mark}")
        self._listeners = {"commit": self._refuse_commit, "rollback": self._refuse_rollback}
        for name, refuse in self._listeners.items():
            event.listen(self.sync, name, refuse)

    def finish(self) -> None:
        """Writes what the handler left in its session, and looks whether the transaction is still the one of `begin`.

        Raises `TransactionMisuse`, and whatever the handler's last writes raise.
        """
        session = self._handed_out()
        if session is not None:
            session.flush()
        try:
            self.sync.exec_driver_sql(f"RELEASE SAVEPOINT {self._mark}")
        except Exception as error:
            raise TransactionMisuse(
                "the handler's transaction was ended or broken from inside: by a COMMIT or ROLLBACK of its own, by DDL "
                "where that commits, or by a statement that failed (L8); leave its end to Rowlock, and use a savepoint "
                "around what may fail"
            ) from error

    def settle(self, settlement: Settlement) -> Verdict:
        """Writes the settlement, not committed yet. `BUSY`: somebody else has the row locked, ask again."""
        self.sync.info[JOINED] = True
        try:
            return settle(self.sync, self._db, JOBS, [settlement])[0]
        finally:
            self.sync.info.pop(JOINED, None)

    def commit(self) -> None:
        """Commits the handler's work and the settlement as one."""
        self._ours = self._ended = True
        self.sync.commit()

    def abandon(self) -> None:
        """Undoes everything. Does not raise; a connection that can not even do that is thrown away."""
        self._ours = self._ended = True
        try:
            if not self.sync.closed and not self.sync.invalidated:
                self.sync.rollback()
        except Exception:  # noqa: BLE001 - whatever keeps it from ending, it must not be used again
            self.sync.invalidate()

    def forget(self) -> None:
        """Nothing more comes of it; its connection is thrown away by whoever has it."""
        self._raw = None
        self._ours = self._ended = True
        session = self._handed_out()
        if session is not None:
            session.expunge_all()

    def cut_off(self) -> None:
        """Ends the network's part of its connection, from another thread: who waits for an answer there gets an error.

        For a sync handler whose hold is gone, so that nothing of it can commit any more. Does nothing to a file.
        """
        if self._db.dialect.one_writer or self.aconnection is not None or self._raw is None:
            return
        try:
            link: Any = getattr(self._raw, "_sock", None) or self._raw  # PyMySQL's socket; psycopg's connection has it
            with socket.socket(fileno=os.dup(link.fileno())) as copy:
                copy.shutdown(socket.SHUT_RDWR)
        except Exception:  # noqa: BLE001 - it is closed already
            return

    def quiet(self) -> None:
        """The connection is used on, by others."""
        for name, refuse in self._listeners.items():
            event.remove(self.sync, name, refuse)
        self._listeners = {}

    def close(self) -> None:
        """Gives the connection back. Does not raise."""
        self.forget()
        try:
            self.sync.info.pop(JOINED, None)
            self.sync.close()
        except Exception:  # noqa: BLE001 - its end was decided before this
            self.sync.invalidate()

    def _handed_out(self) -> Session | None:
        return self._session if self._asession is None else self._asession.sync_session

    # --- what a handler must not do -------------------------------------------------------------------------

    @contextmanager
    def flushing(self) -> Generator[None]:
        """A session writes: what it raises is the handler's to see, not the refusal of the rollback that it makes."""
        self._flushes += 1
        try:
            yield
        finally:
            self._flushes -= 1

    def _refuse_commit(self, _conn: Connection) -> None:
        if not self._ours:
            _refuse("commit")

    def _refuse_rollback(self, _conn: Connection) -> None:
        if not self._ours and not self._flushes:
            _refuse("rollback")


def _refuse(what: str) -> NoReturn:
    raise TransactionMisuse(
        f"{what} of the attempt's transaction (L8): it commits together with the settlement when the handler returns, "
        f"and is rolled back when it raises; use begin_nested() for a part that may fail"
    )


class _Session(Session):
    """A session in the attempt's transaction: it ends with the attempt, and by nothing else."""

    def commit(self) -> None:
        _refuse("commit")

    def rollback(self) -> None:
        _refuse("rollback")

    def begin(self, nested: bool = False) -> Any:
        if not nested:
            _refuse("begin, and so a commit,")
        return super().begin(nested=True)

    def flush(self, objects: Sequence[Any] | None = None) -> None:
        owner: HandlerTransaction = self.info[_OWNER]
        with owner.flushing():
            super().flush(objects)

    def __exit__(
        self, type_: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """`with ctx.session() as session:` writes what was added: closing alone would forget it without a word."""
        if type_ is None:
            self.flush()
        super().__exit__(type_, value, traceback)


class _AsyncSession(AsyncSession):
    async def __aexit__(
        self, type_: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if type_ is None:
            await self.flush()
        await super().__aexit__(type_, value, traceback)
