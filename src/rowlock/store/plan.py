"""What retention would do: for `rowlock retention` (N8). Reads only."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError

from rowlock.model.retention import Floor, Planned
from rowlock.model.texts import error_class
from rowlock.store.failures import is_outage
from rowlock.store.subject import Subject
from rowlock.store.sweep import count_due, next_due
from rowlock.store.turn import peek

if TYPE_CHECKING:
    from rowlock.store.database import Database


def plan(
    conn: Connection, db: Database, subjects: Sequence[tuple[Subject, Floor | None]], every: timedelta, *, dry_run: bool
) -> list[Planned]:
    """One value for each declared table of this database; `dry_run` counts the rows that are due."""
    next_at = peek(conn, db, every)[1]
    return [_planned(conn, db, subject, floor, next_at, dry_run=dry_run) for subject, floor in subjects]


def _planned(
    conn: Connection, db: Database, subject: Subject, floor: Floor | None, next_at: datetime | None, *, dry_run: bool
) -> Planned:
    kept = subject.window is None
    due, later, error = (None, None, None) if kept or not dry_run else _counted(conn, db, subject)
    return Planned(
        database=db.name,
        table=subject.name,
        kind=subject.lifecycle.kind,
        column=None if subject.time is None else f"{subject.time.name}",  # a plain str
        declared=subject.declared,
        window=subject.window,
        at_least=None if floor is None else floor.at_least,
        who=None if floor is None else floor.who,
        archive=None if subject.archive is None else subject.archive.table.fullname,
        violation=subject.violation,
        next_at=None if kept else next_at,
        due=due,
        oldest_goes_at=later,
        error=error,
    )


def _counted(conn: Connection, db: Database, subject: Subject) -> tuple[int | None, datetime | None, str | None]:
    try:
        return count_due(conn, db, subject), _goes_at(subject, next_due(conn, db, subject)), None
    except DBAPIError as error:
        if is_outage(db, error):
            raise
        return None, None, f"it can not be read: {error_class(error)}"
    except Exception as error:  # noqa: BLE001 - a type of the user's own that can not read a value
        return None, None, f"it can not be read: {error_class(error)}"


def _goes_at(subject: Subject, at: Any) -> datetime | None:
    if not isinstance(at, datetime) or subject.window is None:
        return None
    aware = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    try:
        return aware + subject.window
    except OverflowError:
        return None
