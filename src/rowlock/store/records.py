"""Reading records for operators (O1). Nothing here claims, waits for a lock, or shows a payload unasked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy import ColumnElement, Row, column, literal_column, select, text
from sqlalchemy.engine import Connection

from rowlock.errors import NotFound
from rowlock.model.outcome import State
from rowlock.store import schema
from rowlock.store.clock import database_now
from rowlock.store.dialects.instant import Instant
from rowlock.store.listing import newest

if TYPE_CHECKING:
    from rowlock.store.database import Database

_SHOWN = [column for column in schema.job.c if column.name not in {"payload", "token", "handed_back"}]


MAX_ID = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Record:
    """One record as its row has it, without the payload and the token. Times are aware and in UTC."""

    id: int
    job: str
    fingerprint: str
    key: str | None
    queue: str
    priority: int
    state: State
    run_at: datetime
    attempt: int
    max_attempts: int
    timeout_ms: int
    headers: str | None
    lease: datetime | None
    claimed_by: str | None
    error_category: str | None
    error_class: str | None
    error_summary: str | None
    created_at: datetime
    claimed_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class Page:
    """Some records, newest first. `next` is what to pass as `after` for the following page, None on the last."""

    items: list[Record]
    next: int | None


@dataclass(frozen=True, slots=True)
class Filter:
    """Which records: every given field must match. `older_than` is the least age since creation."""

    state: State | None = None
    job: str | None = None
    queue: str | None = None
    category: str | None = None
    key: str | None = None
    older_than: timedelta | None = None


def no_record(db: Database, id: int) -> NotFound:
    """The error for an id that no record has."""
    return NotFound(f"no record has the id {id} in database {db.name!r}; ids are those that enqueue answers")


def get(conn: Connection, db: Database, id: int) -> Record:
    """One record. Raises `NotFound`."""
    if not 0 <= id <= MAX_ID:  # a driver could not even send it
        raise no_record(db, id)
    row = conn.execute(select(*_SHOWN).where(schema.job.c.id == id)).first()
    if row is None:
        raise no_record(db, id)
    return _record(row)


def payload(conn: Connection, db: Database, id: int) -> bytes:
    """A record's stored payload, as it is. Raises `NotFound`."""
    if not 0 <= id <= MAX_ID:
        raise no_record(db, id)
    statement = f"SELECT {db.dialect.raw('payload')} FROM rowlock_job WHERE id = {int(id)}"
    value = conn.exec_driver_sql(statement).scalar_one_or_none()
    if value is None:
        raise no_record(db, id)
    return value.encode() if isinstance(value, str) else bytes(value)


def list_(conn: Connection, db: Database, filter: Filter, *, limit: int = 50, after: int | None = None) -> Page:
    """Records that match, newest first, at most `limit` (1..1,000); `after` is the `next` of the page before."""
    before = MAX_ID if after is None else after
    wanted = conditions(conn, db, filter)
    following: int | None = None
    if filter.state is None:
        query = select(*_SHOWN).where(schema.job.c.id < before, *wanted).order_by(schema.job.c.id.desc())
        rows = list(conn.execute(query.limit(limit + 1)).all())
        following = rows[limit - 1].id if len(rows) > limit else None
    else:
        rest = conditions(conn, db, replace(filter, state=None))
        ids = newest(conn, db, filter.state, rest, before=before, limit=limit + 1)
        following = ids[limit - 1] if len(ids) > limit else None
        rows = _shown(conn, db, ids[:limit], wanted)
    return Page([_record(row) for row in rows[:limit]], following)


def _shown(conn: Connection, db: Database, ids: Sequence[int], wanted: Sequence[ColumnElement[bool]]) -> list[Any]:
    rows: list[Any] = []
    for start in range(0, len(ids), db.dialect.max_batch):
        part = text(f"id {db.dialect.in_ids(ids[start : start + db.dialect.max_batch])}")
        rows += conn.execute(select(*_SHOWN).where(part, *wanted).order_by(schema.job.c.id.desc())).all()
    return rows


def conditions(conn: Connection, db: Database, filter: Filter) -> list[ColumnElement[bool]]:
    """What a filter asks of a record of the one table of a query."""
    equal = {"job": filter.job, "queue": filter.queue, "error_category": filter.category, "key": filter.key}
    wanted = [column(name) == db.dialect.as_text(value) for name, value in equal.items() if value is not None]
    if filter.state is not None:  # written out: a bound one hides the partial indexes
        wanted.append(column("state") == literal_column(f"'{filter.state.value}'"))
    if filter.older_than is not None:
        wanted.append(column("created_at", Instant) <= database_now(conn, db) - filter.older_than)
    return wanted


def _record(row: Row[Any]) -> Record:
    values = dict(row._mapping)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - public, in spite of its name
    values["state"] = State(values["state"])
    return Record(**values)
