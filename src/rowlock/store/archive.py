"""Moving rows into an archive: lock, copy, delete, commit; no target, no delete (N7).

Where source and target are two databases the source's rows stay locked over the copy, and are deleted after the copy is
committed. A crash in between leaves a row in both; the next sweep finds its copy, writes it anew and deletes the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from rowlock.store.dialects.aging import Key
from rowlock.store.subject import ArchiveTarget, Subject
from rowlock.store.sweep import delete_held, held_rows, key_of
from rowlock.store.turn import Turn, renew

if TYPE_CHECKING:
    from rowlock.store.database import Database


class TargetFailed(Exception):  # noqa: N818 - it tells what happened
    """The archive's database refused the copy; the cause says why. Nothing was deleted."""


class Moved(NamedTuple):
    """How many rows were moved, and how many stay because the archive has another row of their key."""

    moved: int
    taken: int


def move(
    conn: Connection, db: Database, subject: Subject, branch: int, keys: Sequence[Key], turn: Turn,
    elsewhere: Database | None,
) -> Moved:  # fmt: skip
    """Moves those of the rows that are due still. `elsewhere` is the target's database, None for the same one."""
    with db.transaction(conn):
        renew(conn, db, turn)
        rows = held_rows(conn, db, subject, branch, keys)
        if not rows:
            return Moved(0, 0)
        taken = copy(conn, db, subject, rows) if elsewhere is None else _copied(elsewhere, subject, rows)
        gone = [key for key in (key_of(subject, row) for row in rows) if key not in taken]
        return Moved(delete_held(conn, db, subject, gone) if gone else 0, len(taken))


def _copied(elsewhere: Database, subject: Subject, rows: Sequence[Any]) -> set[Key]:
    try:
        return elsewhere.run(copy, subject, rows)
    except DBAPIError as error:  # one that is not there is told apart already
        raise TargetFailed from error


def copy(conn: Connection, db: Database, subject: Subject, rows: Sequence[Any]) -> set[Key]:
    """Writes the rows into the archive; answers the keys that another row has there, which are left out."""
    archive = subject.archive
    assert archive is not None
    by_key = {key_of(subject, row): row for row in rows}
    with db.transaction(conn):
        taken = _replaced(conn, db, subject, archive, by_key)
        values = [
            {target.key: row._mapping[column] for column, target in archive.columns}  # noqa: SLF001 - public
            for key, row in by_key.items()
            if key not in taken
        ]
        if values:
            conn.execute(sa.insert(archive.table), values)
    return taken


def _replaced(
    conn: Connection, db: Database, subject: Subject, archive: ArchiveTarget, rows: dict[Key, Any]
) -> set[Key]:
    """Removes what an interrupted move left; a row of the same key and another age is another one (a key used anew)."""
    targets = dict(archive.columns)
    assert subject.time is not None
    keys = tuple(targets[column] for column in subject.keys)
    named = Subject(archive.database, archive.table, subject.lifecycle, keys, None, None)
    there = conn.execute(sa.select(targets[subject.time], *keys).where(named.in_keys(db, list(rows)))).all()
    left, taken = list[Key](), set[Key]()
    for at, *parts in there:
        key = tuple(parts)
        same = key in rows and _same_instant(rows[key]._mapping[subject.time], at)  # noqa: SLF001 - public
        left.append(key) if same else taken.add(key)
    if left:
        conn.execute(sa.delete(archive.table).where(named.in_keys(db, left)))
    return taken


def _same_instant(one: Any, other: Any) -> bool:
    """By the second: the two columns may keep other fractions, and other time zones."""
    if not (isinstance(one, datetime) and isinstance(other, datetime)):
        return one == other
    one, other = (each.replace(tzinfo=UTC) if each.tzinfo is None else each for each in (one, other))
    return abs(one - other) <= timedelta(seconds=1)
