"""The transactions of handlers in a case of one connection, and in a unit test of a handler alone (L8, X1)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeAlias

from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from rowlock.errors import KitError, KitTypeError
from rowlock.store.handlers import Handlers
from rowlock.store.transactional import HandlerTransaction

if TYPE_CHECKING:
    from rowlock.store.database import Database

Given: TypeAlias = Connection | Session | AsyncConnection | AsyncSession


class CaseTransaction(HandlerTransaction):
    """A savepoint on the case's connection, which other statements of the case share."""

    def __init__(self, db: Database, conn: Connection) -> None:
        super().__init__(db, conn)
        self._savepoint = conn.begin_nested()

    def commit(self) -> None:
        """The savepoint's end; the case's transaction goes on."""
        self._ours = self._ended = True
        self._savepoint.commit()

    def abandon(self) -> None:
        """Undoes what the handler did."""
        self._ours = self._ended = True
        if self._savepoint.is_active:
            self._savepoint.rollback()

    def close(self) -> None:
        """The connection is the case's."""
        self.forget()
        self.quiet()


class CaseHandlers(Handlers):
    """All of them on the one connection of a case."""

    def __init__(self, db: Database, conn: Connection) -> None:
        super().__init__(db, 1)
        self._conn = conn

    def _made(self) -> HandlerTransaction:
        return CaseTransaction(self._db, self._conn)

    @asynccontextmanager
    async def aopen(self, patience_s: float) -> AsyncGenerator[HandlerTransaction]:
        """There is none for an async handler. Raises `KitError`."""
        raise KitError(
            f"database {self._db.name!r} of this case is one sync connection, and an async handler's transaction needs "
            f"an async one (X1, L8); give the case an engine= instead"
        )
        yield


class GivenTransaction:
    """What a unit test gives to `context(connection=…)`."""

    def __init__(self, given: Given) -> None:
        if not isinstance(given, Connection | Session | AsyncConnection | AsyncSession):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers need not be typed
            raise KitTypeError(
                f"connection is a {type(given).__name__} (X1); give a SQLAlchemy Connection, Session, AsyncConnection "
                f"or AsyncSession"
            )
        self._given = given

    def connection(self, what: str) -> Connection:
        """Of a sync kind."""
        if isinstance(self._given, Session):
            return self._given.connection()
        if not isinstance(self._given, Connection):
            raise self._wrong(what)
        return self._given

    def session(self, what: str) -> Session:
        """Of a sync kind."""
        return self._given if isinstance(self._given, Session) else Session(self.connection(what))

    def async_connection(self, what: str) -> AsyncConnection:
        """Of an async kind. A session's connection has to be waited for, so it is not accepted here."""
        if isinstance(self._given, AsyncSession):
            raise KitTypeError(f"{what}: the test gave an AsyncSession (X1); give an AsyncConnection")
        if not isinstance(self._given, AsyncConnection):
            raise self._wrong(what)
        return self._given

    def async_session(self, what: str) -> AsyncSession:
        """Of an async kind."""
        if isinstance(self._given, AsyncSession):
            return self._given
        return AsyncSession(self.async_connection(what))

    def _wrong(self, what: str) -> KitTypeError:
        return KitTypeError(f"{what}: the test gave a {type(self._given).__name__} (X1); give one of the other kind")
