"""Space of deleted rows, given back to the file system where a database does not do that by itself (N10)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy.engine import Connection

if TYPE_CHECKING:
    from rowlock.store.database import Database

PAGES = 200
"""Of one step: a few milliseconds of the write lock."""


def reclaim(conn: Connection, db: Database) -> tuple[int, bool]:
    """One step: how many bytes it gave back, and whether there is more."""
    if not db.dialect.one_writer:
        return 0, False
    with db.transaction(conn):
        return db.dialect.aging.reclaim(conn, PAGES)
