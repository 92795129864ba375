"""One numbered step of the schema."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """What one version adds: objects by name, each made by one statement.

    `oldest` is the least library level that may still use the schema once this step is done: a step that only
    adds leaves it, so that a deploy can be rolled back (S1).
    """

    number: int
    oldest: int
    postgresql: Mapping[str, str]
    mysql: Mapping[str, str]
    sqlite: Mapping[str, str]


_DIGITS = "[0-9][0-9]"
_FORM = f"{_DIGITS * 2}-{_DIGITS}-{_DIGITS} {_DIGITS}:{_DIGITS}:{_DIGITS}.{_DIGITS * 3}"


def instant(column: str) -> str:
    """SQLite's condition that a text is NULL or an instant in the one form, of a day that the calendar has."""
    seconds = f"substr({column}, 1, 19)"
    return (
        f"({column} IS NULL OR {column} GLOB '{_FORM}' AND {column} >= '0001'"
        f" AND {seconds} IS strftime('%Y-%m-%d %H:%M:%S', {seconds}, '+0 days'))"
    )
