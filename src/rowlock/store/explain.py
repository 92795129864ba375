"""Why a record is not running, or what became of it (H4). Reads only, and waits for nobody's lock."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sqlalchemy import Row, and_, func, or_, select
from sqlalchemy.engine import Connection

from rowlock.model.outcome import Category, State
from rowlock.store import schema
from rowlock.store.clock import database_now
from rowlock.store.pause import paused_since
from rowlock.store.programs import Pair, last_announced
from rowlock.store.records import Record, get
from rowlock.store.release import Program, why_not

if TYPE_CHECKING:
    from rowlock.store.database import Database

LIVELY = timedelta(seconds=150)
"""A worker announces what it knows each minute: after this silence there is none, or it can not reach the database."""
MOST_BEFORE = 1_000


class Reason(StrEnum):
    """Why a record is not running, or what became of it."""

    NOT_DUE = "not_due"
    PAUSED = "paused"
    """Due, and its queue is paused (O5)."""
    WAITING = "waiting"
    """Due; a worker that knows it runs, and has no free slot for it yet."""
    NO_WORKER = "no_worker"
    """Due; this program knows it, and no worker has said so of late."""
    NO_PROGRAM = "no_program"
    """Due; neither this program nor a running worker knows its job with its input (S7)."""
    EXHAUSTED = "attempts_exhausted"
    """Pending without an attempt left: it is about to be set aside (C5)."""
    CANCEL_ASKED = "cancel_asked"
    """Pending, and somebody asked to cancel it: the next look makes it cancelled (O4)."""
    HELD = "held"
    LEASE_EXPIRED = "lease_expired"
    """Its holder is gone; the next look for such records moves it on (L7)."""
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    BLOCKED = "blocked"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Explanation:
    """An answer: a fixed word, a sentence for people, and the facts in it by name. Times are aware and in UTC."""

    id: int
    state: State
    reason: Reason
    sentence: str
    facts: Mapping[str, object]


def explain(conn: Connection, db: Database, id: int, program: Program, unknown_ms: int) -> Explanation:
    """Why record `id` is not running. Raises `NotFound`."""
    record = get(conn, db, id)
    now = database_now(conn, db)
    asked = conn.execute(select(schema.cancel).where(schema.cancel.c.id == id)).first()
    if record.state is State.PENDING and asked is not None:
        sentence = f"{_asked(asked)}; a worker's next look makes it cancelled, at most 5 s apart"
        reason, facts = Reason.CANCEL_ASKED, _cancel(asked)
    elif record.state is State.PENDING:
        reason, sentence, facts = _pending(conn, db, record, now, program, unknown_ms)
    elif record.state is State.RUNNING:
        reason, sentence, facts = _running(record, now, asked)
    else:
        reason, sentence, facts = _ended(record, program)
    return Explanation(id, record.state, reason, sentence, facts)


_Answer = tuple[Reason, str, dict[str, object]]


def _pending(
    conn: Connection, db: Database, record: Record, now: datetime, program: Program, unknown_ms: int
) -> _Answer:
    if record.attempt >= record.max_attempts:
        facts: dict[str, object] = {"attempt": record.attempt, "max_attempts": record.max_attempts}
        sentence = f"its {record.attempt} attempts of {record.max_attempts} are used up; the next look sets it aside"
        return Reason.EXHAUSTED, sentence, facts
    if record.run_at > now:
        sentence = (
            f"it is not due before {_time(record.run_at)}, in {_span(record.run_at - now)}{_after_failure(record)}"
        )
        return Reason.NOT_DUE, sentence, {"until": record.run_at, **_failure(record)}
    since = paused_since(conn, record.queue)
    if since is not None:
        sentence = (
            f"it is due, and its queue {record.queue!r} is paused since {_time(since)}; "
            f"`rowlock queues resume {shlex.quote(record.queue)}`"
        )
        return Reason.PAUSED, sentence, {"due_since": record.run_at, "queue": record.queue, "paused_at": since}
    pair = Pair(record.job, record.fingerprint)
    announced = last_announced(conn, db, pair)
    here = pair in program
    facts = {"due_since": record.run_at, "known_here": here, "announced_at": announced}
    if announced is not None and now - announced <= LIVELY:
        before = _before(conn, record, now)
        sentence = (
            f"it is due, and waits for a worker with a free slot of queue {record.queue!r}: {_many(before)} before it"
        )
        return Reason.WAITING, sentence, {**facts, "queue": record.queue, "before": before}
    silence = "in the last 30 days" if announced is None else f"for {_span(now - announced)}"
    if here:
        sentence = f"it is due, and no worker has said {silence} that it knows job {record.job!r}; start `rowlock run`"
        return Reason.NO_WORKER, sentence, facts
    sentence = (
        f"it is due, and no program has said {silence} that it knows job {record.job!r} with its input, nor does this "
        f"one; a worker blocks it when nobody has known it for {_span(timedelta(milliseconds=unknown_ms))} (S7)"
    )
    return Reason.NO_PROGRAM, sentence, {**facts, "unknown_ms": unknown_ms}


def _cancel(asked: Row[Any]) -> dict[str, object]:
    return {"cancel_asked_at": asked.asked_at, "cancel_asked_by": asked.asked_by}


def _asked(asked: Row[Any]) -> str:
    return f"{asked.asked_by or 'somebody'} asked at {_time(asked.asked_at)} to cancel it"


def _running(record: Record, now: datetime, asked: Row[Any] | None) -> _Answer:
    assert record.lease is not None  # the table's CHECK
    facts: dict[str, object] = {"holder": record.claimed_by, "until": record.lease, "since": record.claimed_at}
    facts |= {"attempt": record.attempt, "max_attempts": record.max_attempts}
    facts |= {} if asked is None else _cancel(asked)
    attempt = f"attempt {record.attempt} of {record.max_attempts}"
    if record.lease > now:
        sentence = (
            f"{record.claimed_by} works on it, {attempt}, and holds it until {_time(record.lease)} or renews that"
            f"{'' if asked is None else f'; {_asked(asked)}'}"
        )
        return Reason.HELD, sentence, facts
    following = State.PENDING if record.attempt < record.max_attempts else State.DEAD
    if asked is not None:
        following = State.CANCELLED
    left = f"it becomes {following}{' again' if following is State.PENDING else ''}"
    sentence = (
        f"{record.claimed_by} held it until {_time(record.lease)} and did not renew that ({attempt}); {left} when a "
        f"worker next looks for such records, at most 5 s apart{'' if asked is None else f'; {_asked(asked)}'}"
    )
    return Reason.LEASE_EXPIRED, sentence, {**facts, "next": following.value}


def _ended(record: Record, program: Program) -> _Answer:
    facts: dict[str, object] = {"finished_at": record.finished_at}
    at = "" if record.finished_at is None else f" at {_time(record.finished_at)}"
    match record.state:
        case State.SUCCEEDED:
            return Reason.SUCCEEDED, f"it succeeded{at}", facts
        case State.CANCELLED:
            return Reason.CANCELLED, f"it was cancelled{at}", facts
        case State.DEAD:
            said = f"it died{at} after attempt {record.attempt} of {record.max_attempts}{_told(record)}"
            return (
                Reason.DEAD,
                f"{said}; `rowlock records replay {record.id}`, or purge it",
                {**facts, **_failure(record)},
            )
        case _:
            remedies, what = _remedy(record, program)
            said = f"it was blocked{at} as {record.error_category}, no attempt spent; {what}"
            return Reason.BLOCKED, said, {**facts, **_failure(record), "remedies": remedies}


def _remedy(record: Record, program: Program) -> tuple[list[str], str]:
    if record.error_category == Category.CORRUPT_PAYLOAD:
        return ["replay", "purge"], "its payload can not be decoded: replay it with a program that can, or purge it"
    why = why_not(program, record)
    if why is None:
        return ["release", "replay", "purge"], f"this program can run it: `rowlock records release {record.id}`"
    return ["replay", "purge"], why


def _before(conn: Connection, record: Record, now: datetime) -> int:
    c = schema.job.c
    same = and_(c.priority == record.priority, c.run_at == record.run_at, c.id < record.id)
    earlier = and_(c.priority == record.priority, c.run_at < record.run_at)
    found = (
        select(c.id)
        .where(c.queue == record.queue, c.state == State.PENDING.value, c.run_at <= now)
        .where(or_(c.priority < record.priority, earlier, same), c.attempt < c.max_attempts)
        .limit(MOST_BEFORE)
        .subquery()
    )
    return conn.execute(select(func.count()).select_from(found)).scalar_one()


def _failure(record: Record) -> dict[str, object]:
    told = {"category": record.error_category, "error_class": record.error_class, "summary": record.error_summary}
    return {name: value for name, value in told.items() if value is not None}


def _after_failure(record: Record) -> str:
    if not record.error_category:
        return ""
    if not record.attempt:  # replayed: no attempt of this round has ended, the failure is of the one before
        return f"; before it was replayed it ended{_told(record)}"
    return f"; attempt {record.attempt} of {record.max_attempts} ended{_told(record)}"


def _told(record: Record) -> str:
    parts = [part for part in (record.error_category, record.error_class, record.error_summary) if part]
    return f" ({': '.join(parts)})" if parts else ""


def _time(when: datetime) -> str:
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"


def _many(before: int) -> str:
    if before >= MOST_BEFORE:
        return f"{MOST_BEFORE:,} due records or more are"
    return {0: "no due record is", 1: "1 due record is"}.get(before, f"{before:,} due records are")


def _span(span: timedelta) -> str:
    seconds = span.total_seconds()
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
