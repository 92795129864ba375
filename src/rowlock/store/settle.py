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

from rowlock.model.outcome import Category, Settlement, State, success
from rowlock.model.table import JOB_TABLE, QueueShape
from rowlock.store.asked import asked
from rowlock.store.dialects.base import Dialect
from rowlock.store.renew import standing

if TYPE_CHECKING:
    from rowlock.store.database import Database

HAND_BACKS_FREE = 9
"""So many hand-backs at shutdown give the attempt back; from the next one on they count (M6)."""


class Verdict(StrEnum):
    """What became of one settlement."""

    SETTLED = "settled"
    CANCELLED = "cancelled"
    """Settled, and not as it said: somebody had asked to cancel the record, and the attempt did not complete it."""
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
    cancelled = _cancelled(conn, db, shape, settlements)
    done = _write(conn, db, shape, _as_cancelled(settlements, cancelled), wait=False)
    if len(done) == len(settlements) and not cancelled:
        return [Verdict.SETTLED] * len(settlements)
    return _explain(conn, db, shape, settlements, done, cancelled, repeated=repeated)


def settle_one(
    conn: Connection, db: Database, shape: QueueShape, settlement: Settlement, *, repeated: bool = False
) -> Verdict:
    """Writes one settlement, waiting for its row; the clock is read after the wait (L2)."""
    cancelled = _cancelled(conn, db, shape, [settlement])
    done = _write(conn, db, shape, _as_cancelled([settlement], cancelled), wait=True)
    return _explain(conn, db, shape, [settlement], done, cancelled, repeated=repeated)[0]


def _cancelled(conn: Connection, db: Database, shape: QueueShape, settlements: Sequence[Settlement]) -> set[int]:
    """Those that somebody asked to cancel, and whose attempt did not complete the work (O4).

    Asked only for such attempts: where all goes well this costs no statement. What is asked for behind this look is
    carried out by the next claim, or by `carry_out`.
    """
    if shape.table != JOB_TABLE:
        return set()
    ids = [s.id for s in settlements if s.state is not State.SUCCEEDED and not _is_decided(s)]
    found: set[int] = set()
    for start in range(0, len(ids), db.dialect.max_batch):
        found |= asked(conn, db, ids[start : start + db.dialect.max_batch])
    return found


def _is_decided(settlement: Settlement) -> bool:
    """Ended by the handler's own word, or cancelled already."""
    return settlement.state is State.CANCELLED or settlement.category == Category.REJECTED


def _as_cancelled(settlements: Sequence[Settlement], cancelled: set[int]) -> Sequence[Settlement]:
    if not cancelled:
        return settlements
    return [
        Settlement(s.id, s.token, State.CANCELLED, "cancelled", refund=s.refund, category=Category.CANCELLED)
        if s.id in cancelled
        else s
        for s in settlements
    ]


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
    cancelled: set[int],
    *,
    repeated: bool,
) -> list[Verdict]:
    rest = [(s.id, s.token) for s in settlements if s.id not in done]
    busy = standing(conn, db, shape, rest) if rest else set[int]()
    own = _own_effects(conn, db, shape, [pair for pair in rest if pair[0] not in busy]) if repeated else {}
    verdicts: list[Verdict] = []
    for settlement in settlements:
        id_ = settlement.id
        if id_ in done or id_ in own:
            turned = id_ in cancelled if id_ in done else own[id_] == State.CANCELLED
            verdicts.append(Verdict.CANCELLED if turned and not _is_decided(settlement) else Verdict.SETTLED)
        else:
            verdicts.append(Verdict.BUSY if id_ in busy else Verdict.LOST)
    return verdicts


def _own_effects(conn: Connection, db: Database, shape: QueueShape, pairs: Sequence[tuple[int, str]]) -> dict[int, str]:
    """The records that left "running" with this token on them, with what they are now: the earlier try worked (L1)."""
    if not pairs:
        return {}
    q, c = db.dialect.quoted, shape.column
    tokens = dict(pairs)
    statement = text(
        f"SELECT {q(c('id'))}, {q(c('token'))}, {q(c('state'))} FROM {q(shape.table)}"
        f" WHERE {q(c('id'))} {db.dialect.in_ids(list(tokens))} AND {q(c('state'))} <> 'running'"
    )
    return {row[0]: row[2] for row in conn.execute(statement) if tokens[row[0]] == row[1]}
