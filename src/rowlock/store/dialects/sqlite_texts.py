"""Texts that are none: SQLite stores any bytes as text, and anything as a BLOB, in a column of either (W5).

One such value must fail its own record, and no statement that meets it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import text
from sqlalchemy.engine import Connection

from rowlock.store.dialects.base import fetch

PAIR = ("queue", "job", "fingerprint")


def shown(value: bytes) -> str:
    """A stored text; bytes that are not UTF-8 are shown escaped."""
    return value.decode("utf-8", "backslashreplace")


def pending_pairs(conn: Connection, prefix: tuple[Any, ...] = ()) -> list[tuple[str, str, str]]:
    """As `scan.skip`; a text with such bytes has them as surrogates, and a BLOB is bytes: both lead back to the row."""
    column = PAIR[len(prefix)]
    condition, params = equal(dict(zip(PAIR, prefix, strict=False)))
    found: list[Any] = []
    further = f" AND {column} >= ''"  # all there are; with a bound the first one is searched, too
    while True:
        rows = fetch(
            conn,
            text(
                f"SELECT typeof({column}), CAST({column} AS BLOB) FROM rowlock_job WHERE {condition}{further}"
                f" ORDER BY {column} LIMIT 1"
            ),
            params,
        )
        if not rows:
            return found
        kind, stored = rows[0]
        value = stored if kind == "blob" else stored.decode("utf-8", "surrogateescape")
        here = (*prefix, value)
        found += [here] if len(here) == len(PAIR) else pending_pairs(conn, here)
        given, params["last"] = _bound("last", value)
        further = f" AND {column} > {given}"


def equal(values: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The condition for pending rows with these values in their columns, and its parameters."""
    parts, params = ["state = 'pending'"], dict[str, Any]()
    for column, value in values.items():
        given, params[column] = _bound(column, value)
        parts.append(f"{column} = {given}")
    return " AND ".join(parts), params


def _bound(name: str, value: Any) -> tuple[str, Any]:
    # A driver encodes a str itself, and refuses surrogates.
    if isinstance(value, str):
        return f"CAST(:{name} AS TEXT)", value.encode("utf-8", "surrogateescape")
    return f":{name}", value
