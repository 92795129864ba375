"""The one clock: the database's own, or under test the case's (L2, X1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sqlalchemy import text
from sqlalchemy.engine import Connection

if TYPE_CHECKING:
    from rowlock.store.database import Database


@dataclass(frozen=True, slots=True)
class Clock:
    """Where "now" in a statement comes from. `bound` is None for the database's own clock.

    With a bound clock every statement gets the instant as a parameter in place of the database's
    expression, so a test moves time for claims, leases and schedules at one place.
    """

    bound: Callable[[], datetime] | None = None

    def host_now(self) -> datetime:
        """Now, as an aware UTC datetime: of the bound clock, else of this host."""
        return self.bound() if self.bound is not None else datetime.now(UTC)


SYSTEM = Clock()


def database_now(conn: Connection, db: Database) -> datetime:
    """The instant by the clock of all workers: the database's, or the test's (L2). Also on a caller's connection."""
    if db.clock.bound is not None:
        return db.clock.bound()
    value = conn.execute(text(f"SELECT {db.dialect.callers_now(db)}"), db.now_params()).scalar_one()
    now = db.dialect.from_db(value)
    assert now is not None
    return now
