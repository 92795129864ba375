"""Finding rows that are due, and deleting them by a statement that asks again (N2, N3).

Between the look and the deletion anything may happen to a row: it is replayed, changed, locked. So the deleting
statement has every condition once more, by a clock that is read when the rows are held (L2).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import ColumnElement
from sqlalchemy.engine import Connection

from rowlock.store.clock import database_now
from rowlock.store.dialects.aging import Key
from rowlock.store.subject import Subject
from rowlock.store.turn import Turn, renew

if TYPE_CHECKING:
    from rowlock.store.database import Database

BATCH = 500
"""Rows of one deletion (N3)."""
LOOK = 5_000
"""Keys of one look: where no index helps, each look reads the whole table."""


class Place(NamedTuple):
    """Where a look ended: an instant as the database has it, and the last row there, if it is known."""

    at: Any
    key: Key | None


class Page(NamedTuple):
    """Due rows in order of their age."""

    keys: list[Key]
    places: list[Any]
    full: bool
    """There may be more."""

    def place(self, number: int) -> Place:
        """Where one goes on behind the first `number` rows."""
        return Place(self.places[number - 1], self.keys[number - 1])


def look(conn: Connection, db: Database, subject: Subject, branch: int, after: Place | None, limit: int = LOOK) -> Page:
    """The oldest due rows of one branch, behind `after`. Locks nothing, and waits for nobody."""
    time = subject.time
    assert time is not None
    due = _due(db, subject, branch, database_now(conn, db))
    if after is not None:
        due += _behind(db, subject, after)
    rows = conn.execute(
        sa.select(db.dialect.aging.place(time).label("rl_place"), *subject.keys)
        .where(*due)
        .order_by(time, *subject.keys)
        .limit(limit)
    ).all()
    return Page([tuple(row[1:]) for row in rows], [row[0] for row in rows], len(rows) == limit)


def rows_of(conn: Connection, db: Database, subject: Subject, branch: int, keys: Sequence[Key]) -> list[Any]:
    """Whole rows, those of them that are due still, in order of their age: for guards (N6)."""
    assert subject.time is not None
    due = _due(db, subject, branch, database_now(conn, db))
    statement = sa.select(subject.table).where(*subject.these(db, keys, due)).order_by(subject.time, *subject.keys)
    return list(conn.execute(statement))


def key_of(subject: Subject, row: Any) -> Key:
    """The key of a row of `rows_of`."""
    return tuple(row._mapping[column] for column in subject.keys)  # noqa: SLF001 - public, in spite of its name


def remove(conn: Connection, db: Database, subject: Subject, branch: int, keys: Sequence[Key], turn: Turn) -> int:
    """Deletes those of the rows that are due still and that nobody else holds; answers how many.

    Raises `TurnLost`, and what the database refuses: then nothing was deleted.
    """
    with db.transaction(conn):
        renew(conn, db, turn)
        held = hold(conn, db, subject, branch, keys)
        if not held:
            return 0
        due = _due(db, subject, branch, database_now(conn, db))
        return conn.execute(sa.delete(subject.table).where(*subject.these(db, held, due))).rowcount


def hold(conn: Connection, db: Database, subject: Subject, branch: int, keys: Sequence[Key]) -> list[Key]:
    """Locks those of the rows that are as they should be; passes over those that others have locked."""
    if db.dialect.one_writer:  # the transaction is the lock
        return list(keys)
    still = [*subject.branches[branch], *subject.when]
    statement = sa.select(*subject.keys).where(*subject.these(db, keys, still)).with_for_update(skip_locked=True)
    return [tuple(row) for row in conn.execute(statement)]


def held_rows(conn: Connection, db: Database, subject: Subject, branch: int, keys: Sequence[Key]) -> list[Any]:
    """The whole rows of those that are due by a clock that is read when they are held: for the archive (N7)."""
    held = hold(conn, db, subject, branch, keys)
    return rows_of(conn, db, subject, branch, held) if held else []


def delete_held(conn: Connection, db: Database, subject: Subject, keys: Sequence[Key]) -> int:
    """Deletes rows that this transaction holds and has judged."""
    return conn.execute(sa.delete(subject.table).where(subject.in_keys(db, keys))).rowcount


def count_due(conn: Connection, db: Database, subject: Subject) -> int:
    """How many rows would go now."""
    now = database_now(conn, db)
    total = 0
    for branch in range(len(subject.branches)):
        statement = sa.select(sa.func.count()).select_from(subject.table).where(*_due(db, subject, branch, now))
        total += conn.execute(statement).scalar_one()
    return total


def next_due(conn: Connection, db: Database, subject: Subject) -> Any:
    """The instant in the oldest row that is not due yet, as its column's type reads it; None if there is none."""
    time = subject.time
    assert time is not None
    assert subject.window is not None
    now = database_now(conn, db)
    old = subject.old(db, now)[0]
    found: list[Any] = []
    for fixed in subject.branches:
        statement = sa.select(time).where(*fixed, *subject.when, sa.not_(old)).order_by(time).limit(1)
        found += list(conn.execute(statement).scalars())
    return min(found, default=None)


def _due(db: Database, subject: Subject, branch: int, now: datetime) -> list[ColumnElement[bool]]:
    return [*subject.branches[branch], *subject.when, *subject.old(db, now)]


def _behind(db: Database, subject: Subject, after: Place) -> list[ColumnElement[bool]]:
    """Rows behind a place, in words whose first one is a range of the index."""
    time = subject.time
    assert time is not None
    at = db.dialect.aging.at_place(time, after.at)
    if after.key is None:
        return [time >= at]
    values = [sa.bindparam(None, value, type_=c.type) for c, value in zip(subject.keys, after.key, strict=True)]
    further = sa.tuple_(*subject.keys) > sa.tuple_(*values) if len(values) > 1 else subject.keys[0] > values[0]
    return [time >= at, sa.or_(time > at, further)]
