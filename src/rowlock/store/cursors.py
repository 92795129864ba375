"""Schedules' cursors, and the records that are made as they advance (T3-T7).

A cursor is locked, its minutes are inserted, it advances: one transaction, so that each minute is made at most once,
whoever makes it and whatever becomes of its record. A job that was renamed has a cursor under each of its names as
long as it lists them: they are locked and moved together, because programs of both names may run at the same time.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import ColumnElement, LargeBinary, column, literal_column, select
from sqlalchemy.engine import Connection

from rowlock.errors import NotFound
from rowlock.model.durations import whole_ms
from rowlock.model.job import Job
from rowlock.model.outcome import State
from rowlock.model.schedule import Schedule, floor_minute, plan
from rowlock.store import audit, schema
from rowlock.store.clock import database_now
from rowlock.store.dialects.base import Row, fetch
from rowlock.store.operate import Operation, Step

if TYPE_CHECKING:
    from rowlock.store.database import Database

AnyJob = Job[Any, Any]
ACTIVE = (State.PENDING.value, State.RUNNING.value)


class Cursor(NamedTuple):
    """One stored cursor. Times are aware and in UTC."""

    name: str
    fingerprint: str
    last_minute: datetime
    """Every minute of the schedule up to this one has been made, or left out for ever."""
    updated_at: datetime
    last_run_at: datetime | None
    """The minute of the occurrence that was made last."""
    last_id: int | None
    """Its record, which may be gone."""


class Look(NamedTuple):
    """All cursors, and the instant at which they were read."""

    now: datetime
    cursors: Mapping[str, Cursor]

    def of(self, job: AnyJob) -> list[Cursor]:
        """The cursors under a job's names, its own first."""
        return [self.cursors[name] for name in job.names if name in self.cursors]


class Made(NamedTuple):
    """What one pass did with one schedule."""

    ids: list[int]
    """The records that it made."""
    left_out: int
    """Minutes that were missed and are not made, by `catch_up` (T6)."""
    skipped: int
    """Minutes that are not made, since the previous occurrence was active: `overlap="skip"` (T6)."""
    since: datetime
    """Where the cursor stood."""


_COLUMNS = tuple(schema.cursor.c[name] for name in Cursor._fields)


def read(conn: Connection, db: Database) -> Look:
    """Every cursor, by name: one statement, however many schedules there are."""
    bound = bool(db.now_params())
    now: list[ColumnElement[Any]] = [] if bound else [literal_column(db.dialect.scan_now(db)).label("rowlock_now")]
    rows: list[Any] = fetch(conn, select(*_COLUMNS, *now))
    cursors = {row.name: Cursor(*row[: len(_COLUMNS)]) for row in rows}
    at = db.clock.host_now() if bound else db.dialect.from_db(rows[0].rowlock_now) if rows else database_now(conn, db)
    assert at is not None
    return Look(at, cursors)


def last_of(cursors: Iterable[Cursor]) -> Cursor:
    """The one that is the furthest: its minutes have been made, under whichever name."""
    return max(cursors, key=lambda cursor: cursor.last_minute)


def is_changed(job: AnyJob, cursors: Iterable[Cursor]) -> bool:
    """Whether a cursor is of another cron than the job's: nothing is made until somebody accepts it (T7)."""
    return any(cursor.fingerprint != _schedule(job).cron.fingerprint for cursor in cursors)


# --- first sight (T4) -----------------------------------------------------------------------------------------


def begin(conn: Connection, db: Database, jobs: Sequence[AnyJob], look: Look, *, at: datetime | None = None) -> None:
    """Makes the cursors that are missing: at the current minute, or where that of an alias is (J4).

    Two programs may do that at once. What has changed (T7) is left alone. `at`: another minute, for the test kit.
    """
    new = [job for job in jobs if not look.of(job)]
    renamed = [job for job in jobs if look.of(job) and job.name not in look.cursors]
    if new:
        with db.transaction(conn):
            now = database_now(conn, db)
            minute = floor_minute(at or now)
            _insert(conn, db, [_first(db, job, now, minute, None) for job in new])
    for job in renamed:
        with db.transaction(conn):
            there = _lock(conn, db, job, look)
            if there and not is_changed(job, there):
                of_alias = last_of(there)
                _insert(conn, db, [_first(db, job, database_now(conn, db), of_alias.last_minute, of_alias)])


def _first(db: Database, job: AnyJob, now: datetime, last_minute: datetime, of: Cursor | None) -> dict[str, Any]:
    last_run_at = None if of is None or of.last_run_at is None else db.dialect.to_db(of.last_run_at)
    return {
        "name": job.name,
        "fingerprint": _schedule(job).cron.fingerprint,
        "last_minute": db.dialect.to_db(last_minute),
        "updated_at": db.dialect.to_db(now),
        "last_run_at": last_run_at,
        "last_id": None if of is None else of.last_id,
    }


def _insert(conn: Connection, db: Database, rows: list[dict[str, Any]]) -> None:
    names = ", ".join(Cursor._fields)
    marks = ", ".join(f":{name}" for name in Cursor._fields)
    for row in rows:
        db.dialect.insert_new(conn, f"INSERT INTO rowlock_cursor ({names}) VALUES ({marks})", row)


# --- a pass (T5, T6) ------------------------------------------------------------------------------------------


def materialise(
    conn: Connection, db: Database, job: AnyJob, look: Look, advanced: Callable[[], None] = lambda: None
) -> Made | None:
    """One pass of one schedule, whose cursors were seen in `look`; `advanced` is called before it is committed.

    None: somebody else is at it, or it has changed or gone meanwhile, or there is nothing to do.
    """
    with db.transaction(conn):
        cursors = _lock(conn, db, job, look)
        if not cursors or is_changed(job, cursors):
            return None
        last = last_of(cursors)
        now = database_now(conn, db)
        planned = plan(_schedule(job), last.last_minute, now)
        if planned is None:
            return None
        minutes = planned.minutes
        if _schedule(job).overlap == "skip" and minutes:
            minutes = [] if _is_active(conn, last.last_id) else minutes[:1]
        ids = [made.id for made in db.dialect.insert(conn, db, _rows(job, minutes))] if minutes else []
        _advance(conn, db, cursors, planned.cursor, now, (minutes[-1], ids[-1]) if minutes else None)
        advanced()
    return Made(ids, planned.left_out, len(planned.minutes) - len(minutes), last.last_minute)


def _lock(conn: Connection, db: Database, job: AnyJob, look: Look) -> list[Cursor]:
    """The job's cursors, locked; none unless all that were seen can be had at once."""
    statement = select(*_COLUMNS).where(_named(db, job.names)).order_by(schema.cursor.c.name)
    found = [Cursor(*row) for row in conn.execute(statement.with_for_update(skip_locked=True))]
    return found if {cursor.name for cursor in found} >= {cursor.name for cursor in look.of(job)} else []


def _is_active(conn: Connection, id: int | None) -> bool:
    if id is None:
        return False
    return conn.execute(select(schema.job.c.state).where(schema.job.c.id == id)).scalar() in ACTIVE


def _rows(job: AnyJob, minutes: Sequence[datetime]) -> list[Row]:
    payload, nonce = job.wire.encode(None), secrets.token_hex(12)
    return [
        Row(
            job.name, job.wire.fingerprint, payload, None, job.queue, job.priority, minute, None, job.max_attempts,
            whole_ms(job.timeout), None, f"{nonce}{n:08x}", exact=True,
        )
        for n, minute in enumerate(minutes)
    ]  # fmt: skip


def _advance(
    conn: Connection, db: Database, cursors: Sequence[Cursor], minute: datetime, now: datetime,
    last: tuple[datetime, int] | None,
) -> None:  # fmt: skip
    values: dict[str, Any] = {"last_minute": minute, "updated_at": now}
    if last is not None:
        values |= {"last_run_at": last[0], "last_id": last[1]}
    names = [cursor.name for cursor in cursors]
    conn.execute(schema.cursor.update().where(_named(db, names)).values(values))


# --- what an operator says (T7) -------------------------------------------------------------------------------


def accept(db: Database, job: AnyJob, by: str | None) -> Operation[bool]:
    """The job's cron is the one that counts from this minute on; False: it was. Raises NotFound: it has no cursor."""
    accepted: bool = yield Step(lambda conn: _accept(conn, db, job, by))
    return accepted


def forget(db: Database, name: str, by: str | None) -> Operation[None]:
    """Deletes the cursor of this name. Raises NotFound."""
    yield Step(lambda conn: _forget(conn, db, name, by))


def _accept(conn: Connection, db: Database, job: AnyJob, by: str | None) -> bool:
    there = _locked(conn, db, job.names)
    if not is_changed(job, there):
        return False
    now = database_now(conn, db)
    # The minutes before this one were never the new cron's, so that none of them is made.
    minute = max(floor_minute(now), last_of(there).last_minute)
    values = {"fingerprint": _schedule(job).cron.fingerprint, "last_minute": minute, "updated_at": now}
    conn.execute(schema.cursor.update().where(_named(db, job.names)).values(values))
    audit.note(conn, db, audit.Action.ACCEPT, detail={"schedule": job.name}, by=by)
    return True


def _forget(conn: Connection, db: Database, name: str, by: str | None) -> None:
    _locked(conn, db, [name])
    conn.execute(schema.cursor.delete().where(_named(db, [name])))
    audit.note(conn, db, audit.Action.FORGET, detail={"schedule": name}, by=by)


def _locked(conn: Connection, db: Database, names: Sequence[str]) -> list[Cursor]:
    statement = select(*_COLUMNS).where(_named(db, names)).order_by(schema.cursor.c.name)
    found = [Cursor(*row) for row in conn.execute(statement.with_for_update())]
    if not found:
        raise NotFound(
            f"no schedule {names[0]!r} has a cursor in database {db.name!r} (T7); `rowlock schedules list` shows them"
        )
    return found


def _named(db: Database, names: Sequence[str]) -> ColumnElement[bool]:
    """The cursors of these names, in words that keep the index."""
    if db.dialect.name_hash is None:
        return schema.cursor.c.name.in_(names)
    # In hexadecimal digits, which no session's character set changes.
    hashes: list[ColumnElement[Any]] = [
        literal_column(f"X'{sha256(name.encode()).hexdigest()}'", LargeBinary) for name in names
    ]
    return column(db.dialect.name_hash).in_(hashes)


def _schedule(job: AnyJob) -> Schedule:
    assert job.schedule is not None
    return job.schedule
