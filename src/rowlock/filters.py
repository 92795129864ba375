"""Which records, queues and deeds an operator means: the arguments of `app.records`, `app.queues`, `app.audit`."""

from __future__ import annotations

from datetime import timedelta
from typing import TypedDict

from rowlock.errors import FilterError, FilterTypeError
from rowlock.model.durations import MAX_DELAY, SPANS, parsed
from rowlock.model.limits import QUEUE_BYTES, Refusals, check_int, check_span, check_text, shown
from rowlock.model.outcome import State
from rowlock.store.records import MAX_ID, Filter

LIMIT_MAX = 1_000
BY_BYTES = 255
_REFUSE = Refusals(FilterError, FilterTypeError)


class OperationFilter(TypedDict, total=False):
    """Which records an operation takes: every given argument must match (O2, O3)."""

    job: str | None
    queue: str | None
    category: str | None
    key: str | None
    older_than: timedelta | float | str | None
    """The least age since creation: a timedelta, seconds, or a text as "12h" or "1d"."""


class RecordFilter(OperationFilter, total=False):
    """Which records: every given argument must match (O1)."""

    state: State | str | None


def checked_filter(
    *,
    state: State | str | None = None,
    job: str | None = None,
    queue: str | None = None,
    category: str | None = None,
    key: str | None = None,
    older_than: timedelta | float | str | None = None,
) -> Filter:
    """The filter that these arguments say. Raises FilterError."""
    for name, value in (("state", state), ("job", job), ("queue", queue), ("category", category), ("key", key)):
        if value is not None and not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers need not be typed
            raise FilterTypeError(f"{name} is {shown(value)}, not a str (O1); give the text to look for")
        if value is not None and ("\0" in value or not _is_utf8(value)):  # one rule on every database
            raise FilterError(
                f"{name} is {shown(value)}, with a NUL or a lone surrogate in it (O1); no record has such"
            )
    if state is not None and state not in tuple(State):
        raise FilterError(f"state is {shown(state)} (S3); the states are {', '.join(State)}")
    age = None if older_than is None else _age(older_than)
    return Filter(
        state=None if state is None else State(state), job=job, queue=queue, category=category, key=key, older_than=age
    )


def _age(older_than: timedelta | float | str) -> timedelta:
    age = parsed(older_than) if isinstance(older_than, str) else older_than
    if age is None:
        raise FilterError(f"older_than is {shown(older_than)} (O1); give a timedelta, seconds, or a text of {SPANS}")
    return check_span(age, what="older_than", low=timedelta(0), high=MAX_DELAY, rule="O1", refuse=_REFUSE)


def _is_utf8(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def checked_after(after: int | None) -> int | None:
    """Where a page begins."""
    return None if after is None else check_int(after, what="after", low=0, high=MAX_ID, rule="O1", refuse=_REFUSE)


def checked_id(id: int) -> int:
    """An id as an enqueue answers it."""
    if type(id) is not int:
        raise FilterTypeError(f"id is {shown(id)}, not an int (O1); give the id that an enqueue answered")
    return id


def checked_limit(limit: int) -> int:
    """How many records a page has."""
    return check_int(limit, what="limit", low=1, high=LIMIT_MAX, rule="O1", refuse=_REFUSE)


def checked_most(limit: int | None) -> int | None:
    """How many records a change takes at most, None for all."""
    return None if limit is None else check_int(limit, what="limit", low=1, high=MAX_ID, rule="O2", refuse=_REFUSE)


def checked_by(by: str | None) -> str | None:
    """Who did it."""
    return None if by is None else check_text(by, what="by", high=BY_BYTES, rule="O6", refuse=_REFUSE)


def checked_queue(name: str) -> str:
    """A queue's name, as an enqueue takes it."""
    return check_text(name, what="queue", high=QUEUE_BYTES, rule="O5", refuse=_REFUSE)
