"""Keeping what is held: renewal, and looking whether a hold still stands (L1, L3, L4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import text
from sqlalchemy.engine import Connection

from rowlock.model.table import QueueShape
from rowlock.store.dialects.base import Hold

if TYPE_CHECKING:
    from rowlock.store.database import Database

__all__ = ["Hold", "Renewal", "renew", "renew_one", "standing", "verify_holds"]


class Renewal(NamedTuple):
    """What a set-wise renewal came to. `busy` rows are locked by somebody: they are renewed singly."""

    renewed: set[int]
    lost: set[int]
    busy: set[int]


def renew(conn: Connection, db: Database, shape: QueueShape, holds: Sequence[Hold]) -> Renewal:
    """Moves the deadlines of all holds that still stand to now + lease; waits for nobody's lock (L4)."""
    renewed: set[int] = set()
    for start in range(0, len(holds), db.dialect.max_batch):
        part = [hold._asdict() for hold in holds[start : start + db.dialect.max_batch]]
        renewed |= db.dialect.fenced_update(conn, db, shape, _extend(db, shape), part)
    rest = [hold for hold in holds if hold.id not in renewed]
    if not rest:
        return Renewal(renewed, set(), set())
    busy = standing(conn, db, shape, [(hold.id, hold.token) for hold in rest])
    return Renewal(renewed, {hold.id for hold in rest} - busy, busy)


def renew_one(conn: Connection, db: Database, shape: QueueShape, hold: Hold) -> bool:
    """Renews one hold, waiting for its row; the clock is read after the wait. False: it is lost (L2)."""
    return bool(db.dialect.fenced_update(conn, db, shape, _extend(db, shape), [hold._asdict()], wait=True))


def verify_holds(conn: Connection, db: Database, shape: QueueShape, pairs: Sequence[tuple[int, str]]) -> set[int]:
    """The ids among (id, token) pairs whose hold does not stand any more. One plain read for each batch."""
    return {id_ for id_, _ in pairs} - standing(conn, db, shape, pairs)


def standing(conn: Connection, db: Database, shape: QueueShape, pairs: Sequence[tuple[int, str]]) -> set[int]:
    """The ids among (id, token) pairs that are running, with this token and an unexpired lease."""
    tokens = dict(pairs)
    found: set[int] = set()
    for start in range(0, len(pairs), db.dialect.max_batch):
        ids = [id_ for id_, _ in pairs[start : start + db.dialect.max_batch]]
        found |= {row[0] for row in _running(conn, db, shape, ids) if tokens[row[0]] == row[1]}
    return found


def _running(conn: Connection, db: Database, shape: QueueShape, ids: list[int]) -> list[Any]:
    q, c = db.dialect.quoted, shape.column
    statement = text(
        f"SELECT {q(c('id'))}, {q(c('token'))} FROM {q(shape.table)} WHERE {q(c('id'))} {db.dialect.in_ids(ids)}"
        f" AND {db.dialect.is_still(shape, 'running')} AND {q(c('lease'))} > {db.dialect.now(db)}"
    )
    return list(conn.execute(statement, db.now_params()).all())


def _extend(db: Database, shape: QueueShape) -> str:
    return f"{db.dialect.quoted(shape.column('lease'))} = {db.dialect.plus_ms('{now}', '{lease_ms}')}"
