"""What is accepted as a caller's `connection`, and which one an enqueue joins (E2)."""

from __future__ import annotations

import inspect
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

from sqlalchemy.engine import Connection
from sqlalchemy.exc import InvalidRequestError, UnboundExecutionError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from rowlock.errors import ConnectionTypeError, EnqueueValueError
from rowlock.store.failures import not_in_order

Sync: TypeAlias = Session | scoped_session[Any] | Connection
Async: TypeAlias = AsyncSession | async_scoped_session[Any] | AsyncConnection

_SYNC: tuple[type[Any], ...] = (Session, scoped_session, Connection)
_ASYNC: tuple[type[Any], ...] = (AsyncSession, async_scoped_session, AsyncConnection)
_ACCEPTED = (
    "accepted are a SQLAlchemy Session, scoped_session or Connection by enqueue, "
    "and an AsyncSession, async_scoped_session or AsyncConnection by aenqueue (E2)"
)


class _Bound:
    """One `bind` block. A task that was started inside keeps it in its context after the block: `ended` says so."""

    def __init__(self, connection: Sync | Async, outer: _Bound | None) -> None:
        self.connection = connection
        self.outer = outer
        self.ended = False


class Binding:
    """Which connection is bound in this context (a contextvar), for one application."""

    def __init__(self) -> None:
        self._variable: ContextVar[_Bound | None] = ContextVar("rowlock_bound", default=None)

    @contextmanager
    def bind(self, connection: Sync | Async) -> Generator[None]:
        """Bind for the block; nested blocks restore the outer one. Raises ConnectionTypeError."""
        if not isinstance(connection, _SYNC + _ASYNC):
            raise _refused(connection, "app.bind")
        outer = self._variable.get()
        bound = _Bound(connection, outer)
        self._variable.set(bound)
        try:
            yield
        finally:
            bound.ended = True
            # By value, not by token: a fixture's end may run in a copy of the context that it began in.
            self._variable.set(outer)

    def current(self) -> Sync | Async | None:
        """The innermost bound connection whose block has not ended."""
        bound = self._variable.get()
        while bound is not None and bound.ended:
            bound = bound.outer
        return None if bound is None else bound.connection

    def choose(self, connection: object, *, detached: bool, who: str) -> object:
        """The connection to join: the given one, else the bound one unless `detached`; None for none."""
        if connection is None:
            return None if detached else self.current()
        if detached:
            raise EnqueueValueError(
                f"{who}: connection and detached=True exclude each other (E2); "
                f"pass the connection to join it, or detached=True to join none"
            )
        return connection


def sync_connection(given: Any, *, who: str) -> Connection:
    """The Connection behind a caller's sync object, its transaction begun as SQLAlchemy does on use.

    Raises ConnectionTypeError for everything else, before anything is written.
    """
    if isinstance(given, _ASYNC):
        raise ConnectionTypeError(
            f"{who}: enqueue was given (or finds bound) an {type(given).__name__}, which only coroutines can use; "
            f"await .aenqueue(…) instead; {_ACCEPTED}"
        )
    if not isinstance(given, _SYNC):
        raise _refused(given, who)
    if isinstance(given, Connection):
        return _open(given, who)
    try:
        return _open(given.connection(), who)
    except UnboundExecutionError:
        raise _unbound(type(given).__name__, who) from None
    except InvalidRequestError as error:
        raise not_in_order(error, who) from error


async def async_connection(given: Any, *, who: str) -> AsyncConnection:
    """The same for `aenqueue`."""
    if isinstance(given, _SYNC):
        raise ConnectionTypeError(
            f"{who}: aenqueue was given (or finds bound) a {type(given).__name__}, which would block the event loop; "
            f"call .enqueue(…) instead; {_ACCEPTED}"
        )
    if not isinstance(given, _ASYNC):
        raise _refused(given, who)
    if isinstance(given, AsyncConnection):
        if given.sync_connection is None:
            raise ConnectionTypeError(
                f"{who}: the AsyncConnection is not started, or closed (E2); "
                f"use it inside `async with engine.connect() as connection:`"
            )
        _open(given.sync_connection, who)
        return given
    try:
        return await given.connection()
    except UnboundExecutionError:
        raise _unbound(type(given).__name__, who) from None
    except InvalidRequestError as error:
        raise not_in_order(error, who) from error


def _open(connection: Connection, who: str) -> Connection:
    if connection.closed:
        raise ConnectionTypeError(f"{who}: the connection is closed (E2); pass an open one, or none")
    return connection


def _unbound(kind: str, who: str) -> ConnectionTypeError:
    return ConnectionTypeError(
        f"{who}: the {kind} has no engine for tables that it does not map (E2); "
        f"pass a connection of the right database: session.connection(bind_arguments=…)"
    )


def _refused(given: object, who: str) -> ConnectionTypeError:
    kind = given if inspect.isclass(given) else type(given)
    return ConnectionTypeError(
        f"{who}: connection is of type {kind.__module__}.{kind.__qualname__}, which is not accepted: {_ACCEPTED}"
    )
