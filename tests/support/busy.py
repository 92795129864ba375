"""Who waits for SQLite's write lock, in this process. SQLite itself tells nobody: a waiter polls the file.

So statements that begin to write are counted while they are under way. Whoever holds the write lock meanwhile knows
that such a statement can only be waiting for it.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Engine, ExceptionContext

_WRITES = ("BEGIN IMMEDIATE", "BEGIN EXCLUSIVE", "INSERT", "UPDATE", "DELETE", "REPLACE", "CREATE", "DROP")
_under_way: dict[int, str] = {}  # thread -> file; a thread runs one statement at a time
_lock = threading.Lock()


def _before(connection: Connection, cursor: Any, statement: str, *others: Any) -> None:
    if connection.dialect.name == "sqlite" and statement.lstrip().upper().startswith(_WRITES):
        with _lock:
            _under_way[threading.get_ident()] = str(connection.engine.url.database)


def _after(*_: Any) -> None:
    with _lock:
        _under_way.pop(threading.get_ident(), None)


def _failed(context: ExceptionContext) -> None:
    _after()


def watch() -> None:
    """Begin to count, for all engines of this process; asking twice does no harm."""
    if not sa.event.contains(Engine, "before_cursor_execute", _before):
        sa.event.listen(Engine, "before_cursor_execute", _before)
        sa.event.listen(Engine, "after_cursor_execute", _after)
        sa.event.listen(Engine, "handle_error", _failed)


def waiting_on(path: Path) -> int:
    """How many threads have such a statement under way on this file. The caller holds the write lock."""
    me = threading.get_ident()
    with _lock:
        return sum(1 for thread, file in _under_way.items() if file == str(path) and thread != me)
