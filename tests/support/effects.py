"""What handlers in worker processes did, and points at which they stop until the test lets them go on.

A SQLite file of its own, on connections of its own in autocommit: it is there whatever happens to the worker, its
transactions and its database. Worker processes write to it, the test reads it.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

FILE = "ROWLOCK_TEST_EFFECTS"
_PAUSE = 0.01


class Effect(NamedTuple):
    """One line: `what` happened in attempt `attempt` of `record`, in process `pid`, at `at` (seconds since 1970)."""

    what: str
    record: int | None
    job: str | None
    attempt: int | None
    pid: int
    at: float


@contextmanager
def _open() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(os.environ[FILE], timeout=30, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous=OFF")  # survives the death of processes, which is what is tested
        yield connection
    finally:
        connection.close()


def create(path: Path) -> None:
    """Make the file, and tell this process and its children of it."""
    os.environ[FILE] = str(path)
    with _open() as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS effects"
            " (n INTEGER PRIMARY KEY, what TEXT, record INT, job TEXT, attempt INT, pid INT, at REAL)"
        )
        connection.execute("CREATE TABLE IF NOT EXISTS released (point TEXT PRIMARY KEY)")


# --- in a handler --------------------------------------------------------------------------------------------


def note(what: str, ctx: Any = None) -> None:
    """Append one effect. With the handler's context it says which record and attempt."""
    row = (what, getattr(ctx, "id", None), getattr(ctx, "job", None), getattr(ctx, "attempt", None), os.getpid())
    with _open() as connection:
        connection.execute(
            "INSERT INTO effects (what, record, job, attempt, pid, at) VALUES (?, ?, ?, ?, ?, ?)", (*row, time.time())
        )


def hold(point: str, ctx: Any = None) -> None:
    """Say that this point is reached, and go on only when the test releases it."""
    note(point, ctx)
    while not _released(point):
        time.sleep(_PAUSE)


async def ahold(point: str, ctx: Any = None) -> None:
    """`hold` for a handler on the event loop."""
    note(point, ctx)
    while not _released(point):
        await asyncio.sleep(_PAUSE)


def _released(point: str) -> bool:
    with _open() as connection:
        return connection.execute("SELECT 1 FROM released WHERE point = ?", (point,)).fetchone() is not None


# --- in the test ---------------------------------------------------------------------------------------------


def effects(what: str | None = None, record: int | None = None) -> list[Effect]:
    """All effects so far in the order in which they happened, or those of one kind or record."""
    with _open() as connection:
        rows = connection.execute("SELECT what, record, job, attempt, pid, at FROM effects ORDER BY n")
        found = [Effect(*row) for row in rows]
    return [one for one in found if what in (None, one.what) and record in (None, one.record)]


def release(point: str) -> None:
    """Let everybody who is, or will be, at this point go on."""
    with _open() as connection:
        connection.execute("INSERT OR IGNORE INTO released VALUES (?)", (point,))


def listen(name: str, listener: Callable[..., object]) -> None:
    """Listens to every engine of a worker. A test that imports the same program enqueues with it, and is left alone."""
    if "_pytest" not in sys.modules:
        import sqlalchemy as sa

        sa.event.listen(sa.Engine, name, listener)
