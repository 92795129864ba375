"""Durations as a user gives them: a `timedelta`, or a number of seconds."""

from __future__ import annotations

import math
import re
from datetime import timedelta

from rowlock.errors import DeclarationError, DeclarationTypeError

MILLISECOND = timedelta(milliseconds=1)

MAX_DELAY = timedelta(days=3653)
"""The longest delay that can be asked for anywhere: ten years (E6), of which the longest have 3,653 days."""


def duration(
    value: object,
    *,
    what: str,
    low: timedelta,
    high: timedelta,
    error: type[Exception] = DeclarationError,
    kind_error: type[Exception] = DeclarationTypeError,
) -> timedelta:
    """Answer `value` (a `timedelta`, or seconds as int or float) as a `timedelta` within `low..high`, both inclusive.

    `what` names the parameter in the message. Raises `error` for a value out of bounds, NaN or infinite, and
    `kind_error` for another kind of thing; a bool is not a number of seconds (J1, E6).
    """
    if isinstance(value, timedelta):
        # A subclass (pandas has one) may compare and print in its own way.
        span = timedelta(value.days, value.seconds, value.microseconds)
        if low <= span <= high:
            return span
        raise error(f"{what}={show(span)} is out of bounds: it must be {show(low)} to {show(high)}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise kind_error(
            f"{what} must be a timedelta or a number of seconds, not {type(value).__name__}; "
            f"its bounds are {show(low)} to {show(high)}"
        )
    # Compared as a number first: a timedelta of 1e300 seconds would overflow.
    if isinstance(value, float) and not math.isfinite(value):
        raise error(f"{what}={value!r} is not a duration: it must be finite, {show(low)} to {show(high)}")
    if low.total_seconds() <= value <= high.total_seconds():
        return timedelta(seconds=value)
    raise error(f"{what}={_number(value)} s is out of bounds: it must be {show(low)} to {show(high)}")


_UNITS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800, "y": 31_536_000}
_SPAN = re.compile(r"(\d{1,12})\s*([smhdwy]?)", re.ASCII)
SPANS = "a whole number and s, m, h, d, w or y, as 12h"


def parsed(text: str) -> timedelta | None:
    """`90`, `90s`, `15m`, `12h`, `7d`, `2w` or `1y` as a duration; None if it is none."""
    found = _SPAN.fullmatch(text.strip())
    try:
        return timedelta(seconds=int(found[1]) * _UNITS[found[2]]) if found else None
    except OverflowError:
        return None


def show(span: timedelta) -> str:
    """Say a duration the way that messages do: in whole ms below a second, else in seconds or days."""
    if span == timedelta(0):
        return "0"
    if span % timedelta(days=1) == timedelta(0):
        return f"{span.days:,} d"
    if abs(span) < timedelta(seconds=1):
        return f"{span / MILLISECOND:g} ms"
    seconds = span.total_seconds()
    return f"{int(seconds):,} s" if seconds.is_integer() else f"{seconds:,} s"


def whole_ms(span: timedelta) -> int:
    """A duration in whole milliseconds, rounded up: who asked for a delay is never woken before it is over."""
    return -(-span // MILLISECOND)


def _number(value: float) -> str:
    # Python refuses to print integers of more than 4,300 digits, which would hide the refusal behind another one.
    if isinstance(value, int) and value.bit_length() > 64:
        return f"({'-' if value < 0 else ''}2**{value.bit_length() - 1} or more)"
    return repr(value)
