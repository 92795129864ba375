"""Cancelling records, for operators (O4): at once what waits, beside the record what somebody holds.

A record in work is neither locked nor waited for. Which records those are is looked at without a lock; what waits is
then locked, passing over what somebody else has locked: that counts as running.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import text
from sqlalchemy.engine import Connection

from rowlock.errors import InvalidState
from rowlock.model.outcome import State
from rowlock.model.table import JOBS
from rowlock.store import audit
from rowlock.store.asked import AS_CANCELLED
from rowlock.store.audit import Action
from rowlock.store.change import BATCH, PAGE, Done, told_of
from rowlock.store.dialects.base import fetch
from rowlock.store.freed import remember
from rowlock.store.listing import oldest
from rowlock.store.operate import Operation, Step
from rowlock.store.records import MAX_ID, Filter, conditions, no_record

if TYPE_CHECKING:
    from rowlock.store.database import Database

ACTIVE = (State.PENDING, State.RUNNING)
"""What can be cancelled."""
States = dict[int, str]


class Left(NamedTuple):
    """One batch: the records that are cancelled now, those whose holder was asked, and what every one was seen as."""

    cancelled: set[int]
    asked: set[int]
    seen: States
    entry: int | None
    """Its row in the audit table."""


class Told(NamedTuple):
    """What the audit table says: of what, and by whom (O6)."""

    detail: Mapping[str, object]
    by: str | None


def cancel_one(db: Database, id: int, *, by: str | None = None, dry_run: bool = False) -> Operation[State]:
    """One record; answers the state that it left: cancelled, or running until its worker ends it.

    Raises `NotFound`, `InvalidState`.
    """
    if not 0 <= id <= MAX_ID:
        raise no_record(db, id)
    left = yield from _batch(db, [id], Told({"id": id}, by), None, dry_run=dry_run)
    if id in left.cancelled:
        return State.CANCELLED
    if id in left.asked:
        return State.RUNNING
    if id not in left.seen:
        raise no_record(db, id)
    raise InvalidState(
        f"record {id} can not be cancelled (O4): it is {left.seen[id]}, and only what is pending or running can be"
    )


def cancel_all(
    db: Database, filter: Filter, *, limit: int | None = None, by: str | None = None, dry_run: bool = False
) -> Operation[Done]:
    """All pending and running ones that match, or the `limit` oldest of them, in order of id, 200 in one transaction.

    Raises `InvalidState` for a filter by another state.
    """
    if filter.state is not None and filter.state not in ACTIVE:
        raise InvalidState(
            f"records that are {filter.state} can not be cancelled (O4): only {' or '.join(ACTIVE)} ones"
        )
    told = Told(told_of(filter), by)
    entry: int | None = None
    count = 0
    after: int | None = 0
    while after is not None:
        page: tuple[list[int], int | None]
        page = yield _look_after(db, filter, after)
        ids, after = page
        while ids:
            size = BATCH if limit is None else min(BATCH, limit - count)
            if size <= 0:
                return Done(count, 0)
            left = yield from _batch(db, ids[:size], told, entry, dry_run=dry_run)
            del ids[:size]
            entry = left.entry
            count += len(left.cancelled) + len(left.asked)
    return Done(count, 0)


def _look_after(db: Database, filter: Filter, after: int) -> Step:
    return Step(lambda conn: _page(conn, db, filter, after))


def _page(conn: Connection, db: Database, filter: Filter, after: int) -> tuple[list[int], int | None]:
    wanted = conditions(conn, db, replace(filter, state=None))
    found: list[int] = []
    for state in ACTIVE if filter.state is None else (filter.state,):
        found += oldest(conn, db, state, wanted, after=after, limit=PAGE)
    ids = sorted(found)[:PAGE]
    return ids, ids[-1] if len(ids) == PAGE else None


def _batch(db: Database, ids: list[int], told: Told, entry: int | None, *, dry_run: bool) -> Operation[Left]:
    inside: States = yield Step(lambda conn: _states(conn, db, ids))
    seen = dict(inside)
    if db.dialect.looks_outside:
        # A caller's snapshot may be old; but what its own transaction made or changed only it shows.
        outside: list[tuple[int, str]] = yield Step(lambda conn: list(_states(conn, db, ids).items()), outside=True)
        seen |= {id_: state for id_, state in outside if state == State.RUNNING or inside.get(id_) != State.PENDING}
    running = {id_ for id_, state in seen.items() if state == State.RUNNING}
    waiting = {id_ for id_, state in seen.items() if state == State.PENDING}
    if dry_run or not (running or waiting):
        return Left(waiting, running, seen, entry)
    left: Left = yield Step(lambda conn: at_once_or_beside(conn, db, waiting, running, told, entry))
    return left._replace(seen=seen | left.seen)


def _states(conn: Connection, db: Database, ids: Sequence[int]) -> States:
    statement = text(f"SELECT id, state FROM rowlock_job WHERE id {db.dialect.in_ids(ids)}")
    return {row[0]: row[1] for row in fetch(conn, statement)}


def at_once_or_beside(
    conn: Connection, db: Database, waiting: set[int], running: set[int], told: Told, entry: int | None
) -> Left:
    """Ends what waits, and writes beside what is running or locked. `entry` is the deed's row in the audit table."""
    found = _locked(conn, db, waiting)
    ending = {id_ for id_, state in found.items() if state == State.PENDING}
    if ending and _end(conn, db, sorted(ending)) < len(ending):
        # A caller's connection in autocommit mode holds no lock from one statement to the next.
        found = _states(conn, db, sorted(waiting))
        ending = {id_ for id_ in ending if found.get(id_) == State.CANCELLED}
    remember(conn, db, ending)
    # What is waiting and could not be had, somebody has locked: an operator, or its holder where a lock is the hold.
    beside = running | {id_ for id_ in waiting if found.get(id_, State.RUNNING) == State.RUNNING}
    if beside:
        db.dialect.note_cancels(conn, db, sorted(beside), told.by)
    count = len(ending) + len(beside)
    if count and entry is None:
        entry = audit.note(conn, db, Action.CANCEL, count=count, detail=told.detail, by=told.by)
    elif count and entry is not None:
        audit.add(conn, db, entry, count)
    return Left(ending, beside, found, entry)


def _locked(conn: Connection, db: Database, ids: set[int]) -> States:
    """Those that nobody else has locked, as they are now."""
    if not ids:
        return {}
    condition = f"id {db.dialect.in_ids(sorted(ids))} ORDER BY id {db.dialect.skip_locked()}"
    return {
        row[0]: row[1]
        for row in fetch(conn, text(f"SELECT id, state FROM rowlock_job {db.dialect.looking.by_id} WHERE {condition}"))
    }


def _end(conn: Connection, db: Database, ids: Sequence[int]) -> int:
    """They are locked by this transaction, so the clock is read after the locks (L2). Answers how many it were."""
    change = AS_CANCELLED.format(now=db.dialect.callers_now(db))
    condition = f"id {db.dialect.in_ids(ids)} AND {db.dialect.is_still(JOBS, 'pending')}"
    return conn.execute(
        text(f"UPDATE rowlock_job {db.dialect.looking.by_id} SET {change} WHERE {condition}"), db.now_params()
    ).rowcount
