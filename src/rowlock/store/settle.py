"""Ending attempts in the database. Only this module writes what a `Settlement` says.

Set-wise, one statement for each kind of outcome; each record is checked on its own by id, token, state and
unexpired lease (L1, L6).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import text
from sqlalchemy.engine import Connection

from rowlock.model.outcome import Settlement, State, success
from rowlock.model.table import QueueShape
from rowlock.store.dialects.base import Dialect
from rowlock.store.renew import standing

if TYPE_CHECKING:
    from rowlock.store.database import Database

HAND_BACKS_FREE = 9
"""So many hand-backs at shutdown give the attempt back; from the next one on they count (M6)."""


class Verdict(StrEnum):
    """What became of one settlement."""

    SETTLED = "settled"
    LOST = "lost"
    """The attempt did not own the record any more; nothing was changed."""
    BUSY = "busy"
    """Somebody has the row locked; it is settled singly, so that it delays only itself."""


def settle(
    conn: Connection, db: Database, shape: QueueShape, settlements: Sequence[Settlement], *, repeated: bool = False
) -> list[Verdict]:
    """Writes settlements, answering a verdict for each, in their order. Waits for nobody's lock.

    `repeated`: the answer to an earlier try was lost, so a record that has left "running" with its token still
    on it was settled by that try.
    """
    done = _write(conn, db, shape, settlements, wait=False)
    if len(done) == len(settlements):
        return [Verdict.SETTLED] * len(settlements)
    return _explain(conn, db, shape, settlements, done, repeated=repeated)


def settle_one(
    conn: Connection, db: Database, shape: QueueShape, settlement: Settlement, *, repeated: bool = False
) -> Verdict:
    """Writes one settlement, waiting for its row; the clock is read after the wait (L2)."""
    done = _write(conn, db, shape, [settlement], wait=True)
    return _explain(conn, db, shape, [settlement], done, repeated=repeated)[0]


def _write(
    conn: Connection, db: Database, shape: QueueShape, settlements: Sequence[Settlement], *, wait: bool
) -> set[int]:
    kinds: dict[_Kind, list[Settlement]] = {}
    for settlement in settlements:
        kind = _SUCCEEDED if settlement.state is State.SUCCEEDED else _kind(settlement)
        kinds.setdefault(kind, []).append(settlement)
    if len(kinds) > 1 and db.dialect.one_writer:
        with db.transaction(conn):  # one commit for all kinds: commits are the limit there
            return _write_kinds(conn, db, shape, kinds, wait=wait)
    return _write_kinds(conn, db, shape, kinds, wait=wait)


def _write_kinds(
    conn: Connection, db: Database, shape: QueueShape, kinds: dict[_Kind, list[Settlement]], *, wait: bool
) -> set[int]:
    done: set[int] = set()
    for kind, of_kind in kinds.items():
        assignments = _assignments(db.dialect, shape, kind)
        for start in range(0, len(of_kind), db.dialect.max_batch):
            records = [_values(db, settlement) for settlement in of_kind[start : start + db.dialect.max_batch]]
            done |= db.dialect.fenced_update(conn, db, shape, assignments, records, wait=wait)
    return done


def _values(db: Database, settlement: Settlement) -> dict[str, Any]:
    if settlement.state is State.SUCCEEDED:  # nearly all: nothing else is written of one
        return {"id": settlement.id, "token": settlement.token}
    at: datetime | None = settlement.at
    return {
        "id": settlement.id,
        "token": settlement.token,
        "delay_ms": settlement.delay_ms,
        "at": None if at is None else db.dialect.to_db(at),
        "refund": int(settlement.refund),
        "back": int(settlement.handed_back),
        "category": settlement.category,
        "klass": settlement.error_class,
        "summary": settlement.summary,
    }


class _Kind(NamedTuple):
    """What the SET clause of a settlement depends on. It has no values of a record, so one statement serves many."""

    state: State
    refund: bool
    handed_back: bool
    tells_error: bool
    at: bool
    delay: bool


def _kind(settlement: Settlement) -> _Kind:
    s = settlement
    return _Kind(
        s.state,
        s.refund,
        s.handed_back,
        s.outcome not in {"snooze", "returned"},  # these say nothing about the work: an earlier failure stays in sight
        s.at is not None,
        s.delay_ms is not None,
    )


_SUCCEEDED = _kind(success(0, ""))


@lru_cache(maxsize=256)
def _assignments(dialect: Dialect, shape: QueueShape, kind: _Kind) -> str:
    q, c = dialect.quoted, shape.column
    parts = [f"{q(c('state'))} = '{kind.state}'", f"{q(c('lease'))} = NULL"]
    if kind.state is State.SUCCEEDED:
        parts += [f"{q(c(role))} = NULL" for role in ("error_category", "error_class", "error_summary")]
    elif kind.tells_error:
        named = (("error_category", "category"), ("error_class", "klass"), ("error_summary", "summary"))
        parts += [f"{q(c(role))} = {{{value}}}" for role, value in named]
    if kind.refund:
        parts += _refund(dialect, shape, handed_back=kind.handed_back)
    if kind.state is not State.PENDING:
        parts.append(f"{q(c('finished_at'))} = {{now}}")
    elif kind.at:
        parts.append(f"{q(c('run_at'))} = CASE WHEN {{at}} > {{now}} THEN {{at}} ELSE {{now}} END")
    elif kind.delay:
        parts.append(f"{q(c('run_at'))} = {dialect.plus_ms('{now}', '{delay_ms}')}")
    return ", ".join(parts)


def _refund(dialect: Dialect, shape: QueueShape, *, handed_back: bool) -> list[str]:
    attempt, times = dialect.quoted(shape.column("attempt")), dialect.quoted(shape.column("handed_back"))
    if not handed_back:
        return [f"{attempt} = {attempt} - 1"]
    # In this order: MySQL's assignments see the values that earlier ones made.
    return [
        f"{attempt} = {attempt} - CASE WHEN {times} < {HAND_BACKS_FREE} THEN 1 ELSE 0 END",
        f"{times} = {times} + 1",
    ]


def _explain(
    conn: Connection,
    db: Database,
    shape: QueueShape,
    settlements: Sequence[Settlement],
    done: set[int],
    *,
    repeated: bool,
) -> list[Verdict]:
    rest = [(s.id, s.token) for s in settlements if s.id not in done]
    busy = standing(conn, db, shape, rest) if rest else set[int]()
    own = _own_effects(conn, db, shape, [pair for pair in rest if pair[0] not in busy]) if repeated else set[int]()
    verdicts: list[Verdict] = []
    for settlement in settlements:
        if settlement.id in done or settlement.id in own:
            verdicts.append(Verdict.SETTLED)
        else:
            verdicts.append(Verdict.BUSY if settlement.id in busy else Verdict.LOST)
    return verdicts


def _own_effects(conn: Connection, db: Database, shape: QueueShape, pairs: Sequence[tuple[int, str]]) -> set[int]:
    """The records that left "running" with this token on them: the earlier try took effect (L1)."""
    if not pairs:
        return set()
    q, c = db.dialect.quoted, shape.column
    tokens = dict(pairs)
    statement = text(
        f"SELECT {q(c('id'))}, {q(c('token'))} FROM {q(shape.table)}"
        f" WHERE {q(c('id'))} {db.dialect.in_ids(list(tokens))} AND {q(c('state'))} <> 'running'"
    )
    return {row[0] for row in conn.execute(statement) if tokens[row[0]] == row[1]}
