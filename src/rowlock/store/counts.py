"""How many records there are of each queue and state (O1).

What waits, runs, died or is blocked is counted by its index. Of ended records there may be millions: more of one state
than `EXACT` are estimated, by looking at some thousand ids between the first and the last one, in short runs: a read of
one row brings its neighbours with it.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import text
from sqlalchemy.engine import Connection

from rowlock.model.outcome import State
from rowlock.model.table import JOBS
from rowlock.store.dialects.base import fetch

if TYPE_CHECKING:
    from rowlock.store.database import Database

EXACT = 10_000
"""So many ended records of a state are still counted one by one."""
RUNS = 200
RUN = 20
"""Ids side by side. Of a share of one half 200 runs tell within 2 %, or 7 % where neighbours are all of one queue."""
_FEW = 50
_NEWEST = 1_000


@dataclass(frozen=True, slots=True)
class Count:
    """How many records of a queue are in a state; `future` of them are pending and not due yet.

    `estimated`: of more than 10,000 succeeded or cancelled records the count is an estimate, within a few percent.
    """

    queue: str
    state: State
    count: int
    future: int
    estimated: bool = False


def counts(conn: Connection, db: Database) -> list[Count]:
    """Counts by queue and state, due and future apart; one state after the other, not all of one instant."""
    found: list[Count] = _pending(conn, db)
    for state in (State.RUNNING, State.DEAD, State.BLOCKED):
        found += _exact(conn, db, state)
    for state in (State.SUCCEEDED, State.CANCELLED):
        found += _exact(conn, db, state) if _few(conn, db, state) else _estimated(conn, db, state)
    return sorted(found, key=lambda count: (count.queue, count.state))


def _pending(conn: Connection, db: Database) -> list[Count]:
    later = f"SUM(CASE WHEN run_at > {db.dialect.scan_now(db)} THEN 1 ELSE 0 END)"
    statement = f"SELECT queue, COUNT(*), {later} FROM {_table(db, State.PENDING)} GROUP BY queue"
    return [
        Count(queue, State.PENDING, int(count), int(future))
        for queue, count, future in fetch(conn, text(statement), db.now_params())
    ]


def _exact(conn: Connection, db: Database, state: State) -> list[Count]:
    rows = fetch(conn, text(f"SELECT queue, COUNT(*) FROM {_table(db, state)} GROUP BY queue"))
    return [Count(queue, state, int(count), 0) for queue, count in rows]


def _few(conn: Connection, db: Database, state: State) -> bool:
    statement = f"SELECT COUNT(*) FROM (SELECT 1 FROM {_table(db, state)} LIMIT {EXACT + 1}) AS few"
    return conn.exec_driver_sql(statement).scalar_one() <= EXACT


def _estimated(conn: Connection, db: Database, state: State) -> list[Count]:
    """From one run of ids in each of `RUNS` equal parts between the oldest and the newest of them, by creation."""
    ends = [*_end(conn, db, state, "ASC"), *_end(conn, db, state, "DESC")]
    if not ends:  # they were deleted meanwhile
        return []
    low, high = min(ends), max(ends)
    size = high - low + 1
    chance = random.Random(high)  # noqa: S311 - no secret; the same table gives the same answer
    part = size / RUNS
    starts = [low + int(part * (n + chance.random())) for n in range(RUNS)]
    ids = sorted({id_ for start in starts for id_ in range(start, min(start + RUN, high + 1))})
    found = Counter[str]()
    for start in range(0, len(ids), db.dialect.max_batch):
        chosen = db.dialect.in_ids(ids[start : start + db.dialect.max_batch])
        still = db.dialect.is_still(JOBS, state)
        rows = fetch(
            conn, text(f"SELECT queue, COUNT(*) FROM rowlock_job WHERE id {chosen} AND {still} GROUP BY queue")
        )
        found.update({queue: int(count) for queue, count in rows})
    total = size * found.total() / len(ids)
    if found.total() < _FEW:  # they lie scattered: the newest ones say whose they are
        found = _of_newest(conn, db, state)
    each = max(total, EXACT + 1) / max(found.total(), 1)
    return [Count(queue, state, round(count * each), 0, estimated=True) for queue, count in found.items()]


def _end(conn: Connection, db: Database, state: State, order: str) -> list[int]:
    statement = f"SELECT id FROM {_table(db, state)} ORDER BY created_at {order}, id {order} LIMIT 1"
    return list(conn.exec_driver_sql(statement).scalars())


def _of_newest(conn: Connection, db: Database, state: State) -> Counter[str]:
    newest = f"SELECT queue FROM {_table(db, state)} ORDER BY created_at DESC, id DESC LIMIT {_NEWEST}"
    rows = conn.exec_driver_sql(f"SELECT queue, COUNT(*) FROM ({newest}) AS newest GROUP BY queue")
    return Counter({row[0]: int(row[1]) for row in rows})


def _table(db: Database, state: State) -> str:
    """The job table and the condition, in the words that the state's index needs."""
    has_condition = db.dialect.looking.partial and state not in {State.PENDING, State.RUNNING}
    ended = " AND state NOT IN ('pending', 'running')" if has_condition else ""
    return f"rowlock_job {db.dialect.looking.by_state.get(state, '')} WHERE state = '{state}'{ended}"
