"""Durations on the command line."""

from __future__ import annotations

from datetime import timedelta

from rowlock.cli.failing import CommandError
from rowlock.model.durations import SPANS, parsed


def span(text: str, what: str) -> timedelta:
    """`90`, `90s`, `15m`, `12h`, `7d`, `2w` or `1y` as a duration. Raises CommandError."""
    found = parsed(text)
    if found is None:
        raise CommandError(f"{what} is {text[:60]!r}; write {SPANS}")
    return found
