"""What one enqueue asks for: checked where it is given (E4, E6), then a plain value that the store writes."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TypedDict, cast, get_type_hints

import msgspec

from rowlock.errors import EnqueueTypeError, EnqueueValueError
from rowlock.model.durations import MAX_DELAY, whole_ms
from rowlock.model.limits import (
    ENQUEUEING,
    KEY_BYTES,
    PRIORITY_MAX,
    QUEUE_BYTES,
    check_headers,
    check_int,
    check_span,
    check_text,
    shown,
)
from rowlock.model.outcome import State

# "In the past means now" (E6). Instants before this one are stored as it, because not every
# database has dates as early as Python's: MySQL's begin in the year 1000.
EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)


class Enqueued(msgspec.Struct, frozen=True, gc=False):
    """What an enqueue answers (E1): the record's id, whether this call created it, and its state.

    A duplicate is a value, not an exception: `created` is False and `id` is that of the record already there (E4).
    """

    id: int
    created: bool
    state: State


class EnqueueOptions(TypedDict, total=False):
    """The options of one enqueue, also the second half of a pair in `enqueue_many` (E1, E4, E6)."""

    key: str | None
    """1..1,024 bytes of UTF-8, not blank. Of one job and key at most one record is pending or running."""
    run_at: datetime | None
    """Aware; at most 9999-12-31; an instant in the past means now. Excludes `delay`."""
    delay: timedelta | float | None
    """A timedelta or seconds, 0..10 years. Excludes `run_at`."""
    priority: int | None
    """0..32,767, smaller first; the job's own if not given."""
    queue: str | None
    """1..128 bytes; the job's own if not given."""
    headers: Mapping[str, str] | None
    """A small map, for example a trace context: at most 32 entries and 8 KiB."""


class EnqueueRequest(msgspec.Struct, gc=False):
    """One record to be, all checks passed. `run_at` is UTC; of `run_at` and `delay_ms` at most one is given."""

    # A Struct that the collector does not look at: it walked the whole heap for each some ten thousand of them.

    payload: str
    fingerprint: str
    key: str | None
    run_at: datetime | None
    delay_ms: int | None
    priority: int
    queue: str
    headers: str | None


_OPTIONS = frozenset(get_type_hints(EnqueueOptions))


def request(
    payload: str, fingerprint: str, options: Mapping[str, object], *, priority: int, queue: str, who: str
) -> EnqueueRequest:
    """Check the options of one enqueue and complete them with the job's own `priority` and `queue`.

    Raises EnqueueValueError, or EnqueueTypeError for a wrong kind; `who` begins its sentence. (E4, E6)
    """
    made = EnqueueRequest(payload, fingerprint, None, None, None, priority, queue, None)
    if not options:
        return made
    if unknown := options.keys() - _OPTIONS:
        option = min(unknown, key=str)
        near = difflib.get_close_matches(str(option), _OPTIONS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"the options are {', '.join(sorted(_OPTIONS))}"
        raise EnqueueTypeError(f"{who}: unknown option {shown(option)} (E1); {hint}")
    run_at, delay = options.get("run_at"), options.get("delay")
    if run_at is not None and delay is not None:
        raise EnqueueValueError(f"{who}: run_at and delay exclude each other (E6); give one of them")
    if run_at is not None:
        made.run_at = instant(run_at, what=f"{who}: run_at")
    if delay is not None:
        made.delay_ms = _delay_ms(delay, what=f"{who}: delay")
    if (key := options.get("key")) is not None:
        made.key = check_text(key, what=f"{who}: key", high=KEY_BYTES, rule="E4", refuse=ENQUEUEING)
    if (own_priority := options.get("priority")) is not None:
        made.priority = check_int(
            own_priority, what=f"{who}: priority", low=0, high=PRIORITY_MAX, rule="J1", refuse=ENQUEUEING
        )
    if (own_queue := options.get("queue")) is not None:
        made.queue = check_text(own_queue, what=f"{who}: queue", high=QUEUE_BYTES, rule="J1", refuse=ENQUEUEING)
    if (headers := options.get("headers")) is not None:
        made.headers = _headers_text(headers, what=f"{who}: headers")
    return made


def instant(value: object, *, what: str) -> datetime:
    """An aware datetime as UTC, no later than 9999-12-31 and no earlier than 1970 (E6)."""
    if not isinstance(value, datetime):
        raise EnqueueTypeError(f"{what} is {shown(value)}, not a datetime (E6); give an aware datetime, or use delay")
    if value.utcoffset() is None:
        raise EnqueueValueError(
            f"{what} is {shown(value)}, which has no time zone (E6); give an aware datetime, "
            f"for example datetime(…, tzinfo=timezone.utc)"
        )
    try:
        return max(value.astimezone(UTC), EARLIEST)
    except OverflowError:  # beyond the first or the last day that UTC has in Python
        if value.year == 1:
            return EARLIEST
        raise EnqueueValueError(
            f"{what} is {shown(value)}, later than 9999-12-31 in UTC (E6); give an earlier instant"
        ) from None


def _delay_ms(value: object, *, what: str) -> int:
    return whole_ms(check_span(value, what=what, low=timedelta(0), high=MAX_DELAY, rule="E6", refuse=ENQUEUEING))


def _headers_text(value: object, *, what: str) -> str | None:
    headers = check_headers(value, what=what, rule="S2", refuse=ENQUEUEING)
    return json.dumps(headers, ensure_ascii=False, separators=(",", ":")) if headers else None


def split_item(item: object, *, who: str) -> tuple[object, Mapping[str, object]]:
    """One item of `enqueue_many`: an input, or a pair of an input and its options.

    No wire-safe record is a tuple (W1), so a tuple is always a pair.
    """
    if not isinstance(item, tuple):
        return item, {}
    pair = cast("tuple[object, ...]", item)
    if len(pair) != 2 or not isinstance(pair[1], Mapping):
        raise EnqueueTypeError(f"{who}: a tuple must be a pair of an input and a dict of options (E1)")
    return pair[0], cast("Mapping[str, object]", pair[1])
