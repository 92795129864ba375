"""How an attempt ended, and what that means for its record (R1, R2, R6, S4)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import msgspec

from rowlock.model.answer import Ack, Dead, Drop, Outcome, OutcomeError, OutcomeTypeError, Retry, Snooze
from rowlock.model.backoff import Backoff
from rowlock.model.durations import whole_ms
from rowlock.model.texts import class_path, clean_summary, error_class, safe_summary

__all__ = [
    "Ack",
    "Blocked",
    "Cancelled",
    "Category",
    "Dead",
    "Drop",
    "End",
    "GivenBack",
    "Outcome",
    "OutcomeError",
    "OutcomeTypeError",
    "Raised",
    "Retry",
    "Returned",
    "Settlement",
    "Snooze",
    "State",
    "TimedOut",
    "clean_summary",
    "decide",
    "error_class",
    "is_outcome",
    "not_an_outcome",
    "safe_summary",
    "success",
]


class State(StrEnum):
    """The states of a record (S3)."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    DEAD = "dead"
    BLOCKED = "blocked"
    CANCELLED = "cancelled"


class Category(StrEnum):
    """Why a record failed, died or is blocked (R2, S4)."""

    FAILED = "failed"
    TIMED_OUT = "timed_out"
    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    CANCELLED = "cancelled"
    REJECTED = "rejected"
    UNKNOWN_JOB = "unknown_job"
    SCHEMA_MISMATCH = "schema_mismatch"
    CORRUPT_PAYLOAD = "corrupt_payload"
    INVALID_POLICY = "invalid_policy"


# --- what ended the attempt, and what becomes of the record --------------------------------------------------


@dataclass(frozen=True, slots=True)
class Returned:
    """The handler returned this value."""

    value: object


@dataclass(frozen=True, slots=True)
class Raised:
    """The handler, a hook or a decoder raised this."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The deadline passed before the handler ended (R3), however it ended after that."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """The record must not be run by this program as it is (S4)."""

    category: Category


@dataclass(frozen=True, slots=True)
class Cancelled:
    """A person cancelled the record, and its handler did not complete the work all the same (O4).

    `started` says whether it was given to its handler at all: else its attempt was not spent.
    """

    started: bool = True


@dataclass(frozen=True, slots=True)
class GivenBack:
    """The attempt is given back, not spent; the record keeps its place (C3).

    `shutdown` says that its handler had started and was ended by a shutdown: those are counted (M6).
    """

    shutdown: bool = False


End = Returned | Raised | TimedOut | Blocked | Cancelled | GivenBack


class Settlement(msgspec.Struct, frozen=True, gc=False):
    """What one settlement writes. A value: only the store carries it out.

    A `pending` one with neither `delay_ms` nor `at` keeps the record's `run_at`.
    """

    # A Struct, since one is made for every record: it costs a tenth of a frozen dataclass.

    id: int
    token: str
    state: State
    outcome: str
    """For events and metrics: ack drop retry snooze dead failed timed_out blocked cancelled returned."""
    delay_ms: int | None = None
    """run_at = the database's now + this."""
    at: datetime | None = None
    """run_at = this instant, or the database's now if it has passed."""
    refund: bool = False
    """The attempt was not spent: the record gets it back."""
    handed_back: bool = False
    """Given back by a shutdown; from the 10th time on the store does not refund it (M6)."""
    category: Category | None = None
    error_class: str | None = None
    summary: str | None = None


def success(id: int, token: str) -> Settlement:
    """The settlement of a handler that returned nothing: `decide` without the questions, for the hot path."""
    return Settlement(id, token, State.SUCCEEDED, "ack")


def decide(
    end: End, *, id: int, token: str, attempt: int, max_attempts: int | None, backoff: Backoff, jitter: float = 0.0
) -> Settlement:
    """The settlement of the attempt that ended in `end` (R1, R2, R6, S4).

    `attempt` counts this execution; without `max_attempts` (a queue table, Q6) no attempt is the last; `jitter` is a
    random sample in 0..1 (R1). Never raises, whatever the handler did.
    """
    last = max_attempts is not None and attempt >= max_attempts
    match end:
        case Returned(None):
            return success(id, token)
        case Returned(answer) | Raised(answer):
            said = _say(answer, id, token, last=last)
            if said is not None:
                return said
            error = end.error if isinstance(end, Raised) else not_an_outcome(answer)
            delay_ms = None if last else backoff.delay_ms(attempt, jitter)
            return _failed(id, token, Category.FAILED, delay_ms=delay_ms, error=error)
        case TimedOut():
            delay_ms = None if last else backoff.delay_ms(attempt, jitter)
            return _failed(id, token, Category.TIMED_OUT, delay_ms=delay_ms, error=None)
        case Blocked(category):
            return Settlement(id, token, State.BLOCKED, "blocked", refund=True, category=category)
        case Cancelled(started):
            return Settlement(id, token, State.CANCELLED, "cancelled", refund=not started, category=Category.CANCELLED)
        case GivenBack(shutdown):
            return Settlement(id, token, State.PENDING, "returned", refund=True, handed_back=shutdown)


def is_outcome(value: object) -> bool:
    """Whether this is an outcome. Asks the type: a proxy's `__class__` can raise."""
    return issubclass(type(value), Outcome)


def not_an_outcome(value: object) -> OutcomeTypeError:
    """The error by which an attempt fails whose handler returned something else than nothing or an outcome."""
    return OutcomeTypeError(
        f"a handler returned a {class_path(type(value))}; return nothing, or an outcome: "
        f"Ack, Retry, Snooze, Dead, Drop (R6)"
    )


def _say(value: object, id: int, token: str, *, last: bool) -> Settlement | None:
    """What the outcome `value` says, or None if it is none (or an unfinished one)."""
    if not is_outcome(value):
        return None
    match value:
        case Ack():
            return success(id, token)
        case Drop():
            return Settlement(id, token, State.SUCCEEDED, "drop")
        case Dead(reason=reason):
            return Settlement(id, token, State.DEAD, "dead", category=Category.REJECTED, summary=reason or None)
        case Snooze(delay=delay):
            return Settlement(id, token, State.PENDING, "snooze", delay_ms=whole_ms(delay), refund=True)
        case Retry() if last:
            return Settlement(id, token, State.DEAD, "retry", category=Category.ATTEMPTS_EXHAUSTED)
        case Retry(at=datetime() as at):
            return Settlement(id, token, State.PENDING, "retry", at=at)
        case Retry(after=after):
            return Settlement(id, token, State.PENDING, "retry", delay_ms=whole_ms(after) if after else 0)
        case _:
            return None


def _failed(
    id: int, token: str, category: Category, *, delay_ms: int | None, error: BaseException | None
) -> Settlement:
    return Settlement(
        id,
        token,
        State.DEAD if delay_ms is None else State.PENDING,
        category.value,
        delay_ms=delay_ms,
        category=category,
        error_class=None if error is None else error_class(error),
        summary=None if error is None else safe_summary(error),
    )
