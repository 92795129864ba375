"""Blocked records that this program can run again go back to pending (O3). Blocking spent no attempt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import select, text
from sqlalchemy.engine import Connection

from rowlock.errors import EnqueueBusy, InvalidState, KeyTaken
from rowlock.model.outcome import Category, State
from rowlock.model.policy import MAX_ATTEMPTS, TIMEOUT_MAX
from rowlock.store import schema
from rowlock.store.dialects.base import fetch
from rowlock.store.operate import Operation, Step
from rowlock.store.programs import Pair
from rowlock.store.records import Filter, conditions, no_record
from rowlock.store.revive import UNSEEN, Revival, Row, held_outside

if TYPE_CHECKING:
    from rowlock.store.database import Database

BATCH = 200
"""Records of one transaction."""
PAGE = 5_000
"""Records of one look."""
_CATEGORIES = (Category.UNKNOWN_JOB, Category.SCHEMA_MISMATCH, Category.INVALID_POLICY)
_TIMEOUT_MAX_MS = round(TIMEOUT_MAX.total_seconds() * 1000)
_COLUMNS = ("id", "job", "fingerprint", "key", "max_attempts", "timeout_ms", "state", "error_category")


class Known(NamedTuple):
    """A pair that this program knows: the names that share its keys, the first of them its own; and its lease."""

    names: tuple[str, ...]
    lease_ms: int | None
    """None where a lease need not cover the timeout (L5)."""


Program = Mapping[Pair, Known]


@dataclass(frozen=True, slots=True)
class Done:
    """How many records an operation changed (dry run: would change), and how many it left, their keys being taken."""

    count: int
    conflicts: int


def release_one(db: Database, program: Program, id: int, *, dry_run: bool = False) -> Operation[Done]:
    """One record. Raises `NotFound`, `InvalidState`, `KeyTaken`, `EnqueueBusy`."""
    yield Step(lambda conn: _check(conn, db, program, id))
    revived = yield from _batch(db, program, [id], {}, dry_run=dry_run)
    if id in revived.conflicts:
        if revived.conflicts[id] == UNSEEN:
            raise EnqueueBusy(f"record {id}: another transaction is just enqueueing its key (O2); try again")
        raise KeyTaken(id, revived.conflicts[id])
    if id not in revived.ids:
        raise InvalidState(f"record {id} is being changed by somebody else (O3); look at it again, then try again")
    return Done(1, 0)


def release_all(db: Database, program: Program, filter: Filter, *, dry_run: bool = False) -> Operation[Done]:
    """All that match, in order of id, 200 in one transaction; what somebody else has locked is passed over."""
    count = conflicts = 0
    after: int | None = 0
    would: dict[tuple[str, str], int] = {}
    while after is not None:
        page: tuple[list[int], int | None]
        page = yield _look_after(db, program, filter, after)
        ids, after = page
        for start in range(0, len(ids), BATCH):
            revived = yield from _batch(db, program, ids[start : start + BATCH], would, dry_run=dry_run)
            count, conflicts = count + len(revived.ids), conflicts + len(revived.conflicts)
            if dry_run:
                would |= revived.keys
    return Done(count, conflicts)


def _batch(
    db: Database, program: Program, ids: list[int], would: dict[tuple[str, str], int], *, dry_run: bool
) -> Operation[Revival]:
    held = dict(would)
    if db.dialect.looks_outside:
        rows: list[Row] = yield Step(lambda conn: _rows(conn, db, program, ids, lock=False))
        held |= yield from held_outside(db, rows)
    revival = Revival(db, held, dry_run=dry_run)
    yield Step(lambda conn: revival.run(conn, _rows(conn, db, program, ids, lock=not dry_run)))
    return revival


def _look_after(db: Database, program: Program, filter: Filter, after: int) -> Step:
    return Step(lambda conn: _page(conn, db, program, filter, after))


def _check(conn: Connection, db: Database, program: Program, id: int) -> None:
    row = conn.execute(select(*(schema.job.c[name] for name in _COLUMNS)).where(schema.job.c.id == id)).first()
    if row is None:
        raise no_record(db, id)
    if why := why_not(program, row):
        raise InvalidState(f"record {id} can not be released (O3): {why}")


def _page(conn: Connection, db: Database, program: Program, filter: Filter, after: int) -> tuple[list[int], int | None]:
    c = schema.job.c
    rows = conn.execute(
        select(*(c[name] for name in _COLUMNS))
        .where(c.state == State.BLOCKED.value, c.error_category.in_([each.value for each in _CATEGORIES]))
        .where(c.id > after, *conditions(conn, db, filter))
        .order_by(c.id)
        .limit(PAGE)
    ).all()
    return [row.id for row in rows if not why_not(program, row)], rows[-1].id if len(rows) == PAGE else None


def _rows(conn: Connection, db: Database, program: Program, ids: list[int], *, lock: bool) -> list[Row]:
    """Those that can be released still, locked if so wanted."""
    columns = ", ".join(db.dialect.quoted(name) for name in _COLUMNS)
    statement = f"SELECT {columns} FROM rowlock_job WHERE id {db.dialect.in_ids(ids)} AND state = 'blocked' ORDER BY id"
    rows = fetch(conn, text(f"{statement} {db.dialect.skip_locked() if lock else ''}"))
    return [
        (row.id, program[Pair(row.job, row.fingerprint)].names, row.key) for row in rows if not why_not(program, row)
    ]


def why_not(program: Program, row: Any) -> str | None:
    """Why this program can not run the record again; None if it can."""
    if row.state != State.BLOCKED.value:
        return f"it is {row.state}, not blocked"
    if row.error_category not in _CATEGORIES:
        return f"it is blocked as {row.error_category}, which no program cures; replay or purge it"
    known = program.get(Pair(row.job, row.fingerprint))
    if known is None:
        what = "with its input" if any(each.job == row.job for each in program) else "at all"
        return f"this program does not know job {row.job!r} {what}; deploy one that does, or purge the record"
    if not (1 <= row.max_attempts <= MAX_ATTEMPTS and 1 <= row.timeout_ms <= _TIMEOUT_MAX_MS):
        return f"its stored limits (max_attempts {row.max_attempts}, timeout {row.timeout_ms} ms) are out of bounds"
    if known.lease_ms is not None and known.lease_ms <= row.timeout_ms:
        return f"its lease of {known.lease_ms} ms does not cover its stored timeout of {row.timeout_ms} ms (L5)"
    return None
