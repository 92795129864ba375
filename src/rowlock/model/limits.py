"""Checks of single values, shared by declaring (J1) and enqueueing (E4, E6).

A check takes the sentence's beginning (`what`: who and which parameter), and the pair of errors to raise: the
same bound is a refused declaration in one place and a refused enqueue in the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple, cast

from rowlock.errors import (
    DeclarationError,
    DeclarationTypeError,
    EnqueueTypeError,
    EnqueueValueError,
    RowlockError,
)
from rowlock.model.durations import duration

KEY_BYTES = 1024
NAME_BYTES = 1024
QUEUE_BYTES = 128
PRIORITY_MAX = 32_767
HEADERS_MAX = 32
HEADERS_BYTES = 8 * 1024


class Refusals(NamedTuple):
    """The two errors of a place: of a value outside its bounds, and of a wrong kind of value."""

    value: type[RowlockError]
    kind: type[RowlockError]


DECLARING = Refusals(DeclarationError, DeclarationTypeError)
ENQUEUEING = Refusals(EnqueueValueError, EnqueueTypeError)


def shown(value: object) -> str:
    """A value as an error message may show it: short, and never the inside of an object that may hide a secret."""
    if value is None or isinstance(value, str | bool | int | float | timedelta | datetime):
        text = repr(value)
        return text if len(text) <= 80 else f"{text[:76]}… ({len(text)} characters)"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"an object of type {type(value).__name__}"


def check_text(value: object, *, what: str, high: int, rule: str, refuse: Refusals) -> str:
    """A text of 1 to `high` bytes of UTF-8, not blank, storable everywhere: no NUL, no lone surrogate."""
    if not isinstance(value, str):
        raise refuse.kind(f"{what} is {shown(value)}, not a str ({rule}); give text of 1..{high} bytes")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise refuse.value(
            f"{what} is {shown(value)}, which has a lone surrogate and so no UTF-8 form ({rule}); give valid text"
        ) from None
    if not value.strip():
        raise refuse.value(f"{what} is {shown(value)}, which is blank ({rule}); give text of 1..{high} bytes")
    if "\0" in value:
        raise refuse.value(f"{what} is {shown(value)}, which has a NUL character ({rule}); remove it")
    if size > high:
        raise refuse.value(f"{what} has {size:,} bytes of UTF-8, more than {high:,} ({rule}); shorten it")
    return value


def check_int(value: object, *, what: str, low: int, high: int, rule: str, refuse: Refusals) -> int:
    """A whole number in `low..high`; a bool is no number here."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise refuse.kind(f"{what} is {shown(value)}, not an int ({rule}); give a whole number in {low:,}..{high:,}")
    if not low <= value <= high:
        raise refuse.value(f"{what} is {shown(value)}, outside {low:,}..{high:,} ({rule}); give a number inside")
    return value


def check_span(value: object, *, what: str, low: timedelta, high: timedelta, rule: str, refuse: Refusals) -> timedelta:
    """A duration, as a `timedelta` or in seconds, in `low..high`."""
    try:
        return duration(value, what=what, low=low, high=high, error=refuse.value, kind_error=refuse.kind)
    except refuse.kind as exc:
        raise refuse.kind(f"{exc} ({rule})") from None
    except refuse.value as exc:
        raise refuse.value(f"{exc} ({rule})") from None


def check_headers(value: object, *, what: str, rule: str, refuse: Refusals) -> dict[str, str]:
    """A small map of text to text: at most 32 entries, 8 KiB together, no NUL, no lone surrogate."""
    if not isinstance(value, Mapping):
        raise refuse.kind(f"{what} is {shown(value)}, not a mapping of str to str ({rule})")
    headers: dict[str, str] = {}
    size = 0
    for name, text in cast("Mapping[object, object]", value).items():
        if not isinstance(name, str) or not isinstance(text, str):
            bad = text if isinstance(name, str) else name
            raise refuse.kind(f"{what} has {shown(bad)} in it ({rule}); names and values are str")
        if not name:
            raise refuse.value(f"{what} has an empty name ({rule}); name the header")
        if "\0" in name or "\0" in text:
            raise refuse.value(f"{what} has a NUL character under {shown(name)} ({rule}); remove it")
        try:
            size += len(name.encode()) + len(text.encode())
        except UnicodeEncodeError:
            raise refuse.value(f"{what} has a lone surrogate under {shown(name)} ({rule}); give valid text") from None
        headers[name] = text
    if len(headers) > HEADERS_MAX:
        raise refuse.value(f"{what} has {len(headers)} entries, more than {HEADERS_MAX} ({rule}); headers are small")
    if size > HEADERS_BYTES:
        raise refuse.value(f"{what} has {size:,} bytes, more than {HEADERS_BYTES:,} ({rule}); put data in the input")
    return headers
