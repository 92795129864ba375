"""Finding records of one state, in order of id, however many of other states there are (O1, O2).

What is near in the table is read by primary key; the rest from the index of that state, sorted by id. So neither a
table of ended records nor a long backlog makes a page slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlalchemy import BigInteger, ColumnElement, TextClause, column, literal_column, select, text
from sqlalchemy.engine import Connection

from rowlock.model.outcome import State
from rowlock.model.table import JOBS

if TYPE_CHECKING:
    from rowlock.store.database import Database

NEAR = 5_000
"""Ids that are looked at by primary key."""

_id: ColumnElement[int] = column("id", BigInteger)
_sorted = _id + literal_column("0")
"""The id, in words by which no planner takes the primary key for the order."""
LETTERS = frozenset({State.DEAD, State.BLOCKED, State.CANCELLED})
"""The states of which an index has the ids, where an index can have a condition."""


def newest(
    conn: Connection, db: Database, state: State, wanted: Sequence[ColumnElement[bool]], *, before: int, limit: int
) -> list[int]:
    """The greatest `limit` ids below `before` of the records in a state that match."""
    if _in_order(db, state):
        return _by_state(conn, db, state, [_id < before, *wanted], _id.desc(), limit)
    top = _end(conn, _id < before, _id.desc())
    if top is None:
        return []
    floor = top - NEAR
    ids = _near(conn, db, state, [_id <= top, _id > floor, *wanted], _id.desc(), limit)
    if len(ids) < limit:
        ids += _by_state(conn, db, state, [_sorted <= floor, *wanted], _sorted.desc(), limit - len(ids))
    return ids


def oldest(
    conn: Connection, db: Database, state: State, wanted: Sequence[ColumnElement[bool]], *, after: int, limit: int
) -> list[int]:
    """The least `limit` ids above `after` of the records in a state that match."""
    if _in_order(db, state):
        return _by_state(conn, db, state, [_id > after, *wanted], _id.asc(), limit)
    bottom = _end(conn, _id > after, _id.asc())
    if bottom is None:
        return []
    ceiling = bottom + NEAR
    ids = _near(conn, db, state, [_id >= bottom, _id < ceiling, *wanted], _id.asc(), limit)
    if len(ids) < limit:
        ids += _by_state(conn, db, state, [_sorted >= ceiling, *wanted], _sorted.asc(), limit - len(ids))
    return ids


def _in_order(db: Database, state: State) -> bool:
    """Whether an index has them in order of id. Those that succeeded are most of the table, which has that order."""
    return state is State.SUCCEEDED or (db.dialect.looking.partial and state in LETTERS)


def _end(conn: Connection, condition: ColumnElement[bool], order: ColumnElement[int]) -> int | None:
    found = select(_id).select_from(text("rowlock_job")).where(condition).order_by(order).limit(1)
    return conn.execute(found).scalar_one_or_none()


def _near(
    conn: Connection,
    db: Database,
    state: State,
    wanted: Sequence[ColumnElement[bool]],
    order: ColumnElement[int],
    limit: int,
) -> list[int]:
    """By primary key."""
    table = f"rowlock_job {db.dialect.looking.by_id}"
    return _ids(conn, table, [text(db.dialect.is_still(JOBS, state)), *wanted], order, limit)


def _by_state(
    conn: Connection,
    db: Database,
    state: State,
    wanted: Sequence[ColumnElement[bool]],
    order: ColumnElement[int],
    limit: int,
) -> list[int]:
    """By the state's index. The state is written out: a bound one hides the partial indexes."""
    if state is State.SUCCEEDED:
        return _near(conn, db, state, wanted, order, limit)
    is_in: list[ColumnElement[bool] | TextClause] = [text(f"state = '{state}'")]
    if db.dialect.looking.partial and state in LETTERS:
        is_in.append(text("state IN ('dead', 'blocked', 'cancelled')"))  # as the index says it
    table = f"rowlock_job {db.dialect.looking.by_state.get(state, '')}"
    return _ids(conn, table, [*is_in, *wanted], order, limit)


def _ids(
    conn: Connection,
    table: str,
    wanted: Sequence[ColumnElement[bool] | TextClause],
    order: ColumnElement[int],
    limit: int,
) -> list[int]:
    found = select(_id).select_from(text(table)).where(*wanted).order_by(order).limit(literal_column(str(limit)))
    return list(conn.execute(found).scalars())
