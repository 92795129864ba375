"""Durations on the command line."""

from __future__ import annotations

import re
from datetime import timedelta

from rowlock.cli.failing import CommandError

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800, "y": 31_536_000}
_SPAN = re.compile(r"(\d{1,12})\s*([smhdwy]?)", re.ASCII)


def span(text: str, what: str) -> timedelta:
    """`90`, `90s`, `15m`, `12h`, `7d`, `2w` or `1y` as a duration. Raises CommandError."""
    found = _SPAN.fullmatch(text.strip())
    try:
        if found:
            return timedelta(seconds=int(found[1]) * _UNITS[found[2]])
    except OverflowError:
        pass
    raise CommandError(f"{what} is {text[:60]!r}; write a whole number and s, m, h, d, w or y, as 12h")
