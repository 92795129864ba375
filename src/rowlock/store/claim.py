"""Taking ownership of due records, and giving back what dead workers held.

`look` is the idle read, `claim` the atomic step that counts the attempt (C4), `rescue` ends what leases no
longer cover (L7), `bury` sets aside what no claim may take (C5).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import text
from sqlalchemy.engine import Connection

from rowlock.model.outcome import Category, State
from rowlock.model.policy import MAX_ATTEMPTS
from rowlock.model.table import QueueShape
from rowlock.store.dialects.base import Branch, Claimed, Source

if TYPE_CHECKING:
    from rowlock.store.database import Database

__all__ = ["Branch", "Claimed", "Look", "Rescued", "Source", "bury", "claim", "look", "rescue"]

MOST_PAGES = 50


class Look(NamedTuple):
    """Whether something is due, and else in how many seconds the next known record will be (None: none waits)."""

    due: bool
    wait: float | None


class Rescued(NamedTuple):
    """A record that was moved on without its holder: what it is now."""

    id: int
    job: str
    queue: str
    attempt: int
    state: State
    category: Category | None


def look(conn: Connection, db: Database, source: Source) -> Look:
    """One read without a lock: is there something for this source to claim? (K3)"""
    if not source.branches:
        return Look(due=False, wait=None)
    waits = [level.wait for level in db.dialect.levels(conn, db, source)]
    return Look(due=any(wait <= 0 for wait in waits), wait=min((wait for wait in waits if wait > 0), default=None))


def claim(conn: Connection, db: Database, source: Source, limit: int) -> list[Claimed]:
    """Takes ownership of at most `limit` due records, in claim order: priority, run_at, id (C2).

    The attempt is counted in the same step. Only rows that are returned are locked, and those only until this
    returns. May answer less than there is; an empty list means that nothing could be had at this moment.
    """
    if not source.branches or limit < 1:
        return []
    return db.dialect.claim(conn, db, source, limit)


def rescue(conn: Connection, db: Database, shape: QueueShape, limit: int = 200) -> list[Rescued]:
    """Moves on running records whose lease has ended: back to pending, or to dead with no attempt left (L7).

    Whether this program knows their jobs does not matter: some worker can always move a record on (K2). The token is
    cleared, so a late holder can not take its own retry for this.
    """
    c = shape.column
    expired = f"{_q(db, c('lease'))} <= {db.dialect.scan_now(db)}"
    condition = f"{_q(db, c('state'))} = 'running' AND {expired}"
    still = f"{db.dialect.is_still(shape, 'running')} AND {expired}"
    for ids in _pages(conn, db, shape, condition, c("lease"), limit):
        with db.transaction(conn):
            # The clock is read after the rows are held; what was renewed or settled meanwhile is left alone (L2).
            rows = _lock(conn, db, shape, ids, still)
            back = [row for row in rows if row[3] < row[4]]
            dead = [row for row in rows if row[3] >= row[4]]
            _move(conn, db, shape, back, State.PENDING, None)
            _move(conn, db, shape, dead, State.DEAD, Category.ATTEMPTS_EXHAUSTED)
        if rows:
            return _rescued(back, State.PENDING, None) + _rescued(dead, State.DEAD, Category.ATTEMPTS_EXHAUSTED)
    return []


def bury(conn: Connection, db: Database, shape: QueueShape, limit: int = 200) -> list[Rescued]:
    """Sets aside pending records without attempts left: dead, or blocked if their limits make no sense (C5, S4)."""
    condition = db.dialect.exhausted(shape)
    attempt, most = (_q(db, shape.column(role)) for role in ("attempt", "max_attempts"))
    still = f"{db.dialect.is_still(shape, 'pending')} AND {attempt} >= {most}"
    for ids in _pages(conn, db, shape, condition, None, limit):  # in any order: one by id would invite a walk by id
        with db.transaction(conn):
            rows = _lock(conn, db, shape, ids, still)
            invalid = [row for row in rows if not 1 <= row[4] <= MAX_ATTEMPTS]
            dead = [row for row in rows if 1 <= row[4] <= MAX_ATTEMPTS]
            _move(conn, db, shape, invalid, State.BLOCKED, Category.INVALID_POLICY)
            _move(conn, db, shape, dead, State.DEAD, Category.ATTEMPTS_EXHAUSTED)
        if rows:
            return _rescued(invalid, State.BLOCKED, Category.INVALID_POLICY) + _rescued(
                dead, State.DEAD, Category.ATTEMPTS_EXHAUSTED
            )
    return []


def _q(db: Database, name: str) -> str:
    return db.dialect.quoted(name)


def _pages(
    conn: Connection, db: Database, shape: QueueShape, condition: str, order: str | None, limit: int
) -> Iterator[list[int]]:
    """The ids that match, `limit` at a time. A further page is for when others hold every row of the one before."""
    for page in range(MOST_PAGES):
        statement = text(
            f"SELECT {_q(db, shape.column('id'))} FROM {_q(db, shape.table)} WHERE {condition}"
            + (f" ORDER BY {_q(db, order)}" if order else "")
            + (f" LIMIT {limit} OFFSET {page * limit}" if page else f" LIMIT {limit}")
        )
        ids = [row[0] for row in conn.execute(statement, db.now_params())]
        if ids:
            yield ids
        if len(ids) < limit:
            return


def _lock(conn: Connection, db: Database, shape: QueueShape, ids: list[int], condition: str) -> list[Any]:
    columns = ", ".join(_q(db, shape.column(role)) for role in ("id", "job", "group", "attempt", "max_attempts"))
    statement = text(
        f"SELECT {columns} FROM {_q(db, shape.table)} {db.dialect.looking.by_id}"
        f" WHERE {_q(db, shape.column('id'))} {db.dialect.in_ids(ids)}"
        f" AND {condition} {db.dialect.skip_locked()}"
    )
    return list(conn.execute(statement, db.now_params()).all())


def _move(
    conn: Connection, db: Database, shape: QueueShape, rows: list[Any], state: State, category: Category | None
) -> None:
    """The rows are locked by this transaction, and what was read of them still holds."""
    if not rows:
        return
    c = {role: _q(db, shape.column(role)) for role in ("id", "state", "lease", "token", "finished_at")}
    ended = state is not State.PENDING
    changes = [f"{c['state']} = '{state}'", f"{c['lease']} = NULL", f"{c['token']} = NULL"]
    if ended:
        error = _q(db, shape.column("error_category"))
        changes += [f"{c['finished_at']} = {db.dialect.now(db)}", f"{error} = '{category}'"]
    statement = text(
        f"UPDATE {_q(db, shape.table)} {db.dialect.looking.by_id} SET {', '.join(changes)}"
        f" WHERE {c['id']} {db.dialect.in_ids([row[0] for row in rows])}"
        f" AND {db.dialect.is_still(shape, 'pending', 'running')}"
    )
    conn.execute(statement, db.now_params())


def _rescued(rows: list[Any], state: State, category: Category | None) -> list[Rescued]:
    return [Rescued(row[0], row[1], row[2], row[3], state, category) for row in rows]
