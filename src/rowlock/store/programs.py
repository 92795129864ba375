"""What running programs know, and the records that none of them does (S4, S7, O3).

A worker claims only pairs of job and fingerprint that it knows, so an old program leaves a new one's records alone.
A pair is unknown only when nobody has announced it for `unknown_ms`, and its record has waited as long.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import and_, or_, select, text
from sqlalchemy.engine import Connection

from rowlock.model.outcome import Category, State
from rowlock.model.table import JOBS
from rowlock.store import schema
from rowlock.store.claim import Rescued
from rowlock.store.clock import database_now
from rowlock.store.dialects.base import fetch

if TYPE_CHECKING:
    from rowlock.store.database import Database


class Pair(NamedTuple):
    """What a program knows: a job's name (or alias) and the fingerprint of an input type."""

    job: str
    fingerprint: str


def announce(conn: Connection, db: Database, pairs: Collection[Pair]) -> None:
    """Says that a serving process knows these pairs now. Called at start and each minute (S7)."""
    if not pairs:
        return
    rows = [{"pair": _key(pair), "job": pair.job, "fingerprint": pair.fingerprint} for pair in sorted(pairs)]
    with db.transaction(conn):
        db.dialect.upsert_programs(conn, db, rows)


def block_unknown(
    conn: Connection, db: Database, known: Collection[Pair], unknown_ms: int, limit: int = 200
) -> list[Rescued]:
    """Sets due records aside whose pair nobody has announced for `unknown_ms`: blocked, kept whole (S4).

    The category is `unknown_job` if no program knows the job's name, `schema_mismatch` if one knows it with another
    input. At most `limit` of each pair in one call.
    """
    found = _not_known(conn, db, known)
    if not found:
        return []
    since = database_now(conn, db) - timedelta(milliseconds=unknown_ms)
    announced = _announced(conn, since, inclusive=unknown_ms > 0)
    names = {pair.job for pair in known} | {pair.job for pair in announced}
    blocked: list[Rescued] = []
    for queue, job, fingerprint in found:
        if Pair(job, fingerprint) not in announced:
            category = Category.SCHEMA_MISMATCH if job in names else Category.UNKNOWN_JOB
            blocked += _block(conn, db, (queue, job, fingerprint), since, category, limit)
    return blocked


def strangers(conn: Connection, db: Database, known: Collection[Pair], unknown_ms: int) -> set[Pair]:
    """The pairs of pending records, due or not, that are not `known` and that nobody has announced of late."""
    found = {Pair(job, fingerprint) for _, job, fingerprint in _not_known(conn, db, known)}
    if not found:
        return found
    since = database_now(conn, db) - timedelta(milliseconds=unknown_ms)
    return found - _announced(conn, since, inclusive=unknown_ms > 0)


def last_announced(conn: Connection, db: Database, pair: Pair) -> datetime | None:
    """When a serving process last said that it knows this pair; None if none has in the last 30 days."""
    row = conn.execute(select(schema.program.c.announced_at).where(schema.program.c.pair == _key(pair))).first()
    return None if row is None else row[0]


def runnable_blocked(conn: Connection, db: Database, known: Iterable[Pair], limit: int = 1_000) -> list[int]:
    """The ids of records that were blocked as unknown or mismatched and that this program can run (O3)."""
    c = schema.job.c
    same = [and_(c.job == pair.job, c.fingerprint == pair.fingerprint) for pair in known]
    if not same:
        return []
    categories = (Category.UNKNOWN_JOB.value, Category.SCHEMA_MISMATCH.value)
    rows = conn.execute(
        select(c.id)
        .where(c.state == State.BLOCKED.value, c.error_category.in_(categories), or_(*same))
        .order_by(c.id)
        .limit(limit)
    )
    return [row[0] for row in rows]


def _announced(conn: Connection, since: datetime, *, inclusive: bool) -> set[Pair]:
    c = schema.program.c
    recent = c.announced_at >= since if inclusive else c.announced_at > since
    return {Pair(row[0], row[1]) for row in conn.execute(select(c.job, c.fingerprint).where(recent))}


def _block(
    conn: Connection, db: Database, found: tuple[str, str, str], due: datetime, category: Category, limit: int
) -> list[Rescued]:
    queue, job, fingerprint = found
    pair, values = db.dialect.in_pair(queue, job, fingerprint)
    rows: list[Any] = []
    with db.transaction(conn):
        for priority in _priorities(conn, db, pair, values):  # of each a range of the index, however many wait
            condition = f"{pair} AND priority = :priority AND run_at <= :due"
            rows += fetch(
                conn,
                text(
                    f"SELECT id, attempt FROM rowlock_job {db.dialect.due_hint} WHERE {condition}"
                    f" ORDER BY run_at LIMIT {limit - len(rows)} {db.dialect.skip_locked()}"
                ),
                values | {"priority": priority, "due": db.dialect.to_db(due)} | db.now_params(),
            )
            if len(rows) >= limit:
                break
        if not rows:
            return []
        conn.execute(
            text(
                f"UPDATE rowlock_job {db.dialect.looking.by_id} SET state = 'blocked', error_category = '{category}',"
                f" error_class = NULL, error_summary = NULL, finished_at = {db.dialect.now(db)}"
                f" WHERE id {db.dialect.in_ids([row[0] for row in rows])} AND {db.dialect.is_still(JOBS, 'pending')}"
            ),
            db.now_params(),
        )
    return [Rescued(row[0], job, queue, row[1], State.BLOCKED, category) for row in rows]


def _priorities(conn: Connection, db: Database, pair: str, values: dict[str, Any]) -> Iterator[int]:
    """The priorities of a pair's pending records, best first: one probe for each, when it is asked for."""
    further, params = "", values
    while True:
        statement = (
            f"SELECT priority FROM rowlock_job {db.dialect.due_hint} WHERE {pair}{further} ORDER BY priority LIMIT 1"
        )
        rows = fetch(conn, text(statement), params)
        if not rows:
            return
        yield rows[0][0]
        further, params = " AND priority > :last", values | {"last": rows[0][0]}


def _not_known(conn: Connection, db: Database, known: Collection[Pair]) -> list[tuple[str, str, str]]:
    return [found for found in db.dialect.pending_pairs(conn) if Pair(found[1], found[2]) not in known]


def _key(pair: Pair) -> str:
    return hashlib.sha256(pair.job.encode() + b"\0" + pair.fingerprint.encode()).hexdigest()
