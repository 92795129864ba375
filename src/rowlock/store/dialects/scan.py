"""The claim's reading half where a claim takes several statements (SQLite, MySQL, MariaDB).

The due records of the best priority are read, a slice of each branch, and merged in claim order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import text
from sqlalchemy.engine import Connection

from rowlock.store.dialects.base import fetch

SLICE = 16
"""The fewest candidates read of one branch, so that many branches with little each take few claims."""


class Candidate(NamedTuple):
    """A record that may be claimed, in an order that is the claim order within one priority."""

    run_at: Any
    id: int


def slice_of(limit: int, branches: int) -> int:
    """How many candidates of each of `branches` to read for a claim of `limit`."""
    return min(limit, max(SLICE, -(-2 * limit // branches)))


def merge(slices: Sequence[Sequence[Candidate]], per_branch: int, limit: int) -> list[Candidate]:
    """The first `limit` candidates over all slices, in claim order.

    Behind a slice that was cut off at `per_branch` more may follow, so nothing later than its last row is taken:
    a claim may return less than it was asked for, never out of order.
    """
    ends = [rows[-1] for rows in slices if len(rows) >= per_branch]
    merged = sorted(row for rows in slices for row in rows)
    if ends:
        last = min(ends)
        merged = [row for row in merged if row <= last]
    return merged[:limit]


def due_levels(levels: Sequence[tuple[int, int, float]]) -> list[tuple[int, list[int]]]:
    """(priority, branches with due rows there), best first."""
    by_priority: dict[int, list[int]] = {}
    for branch, priority, wait in levels:
        if wait <= 0:
            by_priority.setdefault(priority, []).append(branch)
    return sorted(by_priority.items())


def skip(
    conn: Connection, columns: Sequence[str], prefix: tuple[Any, ...] = (), *, hint: str = ""
) -> list[tuple[Any, ...]]:
    """The distinct values of an index's leading columns among pending rows: one probe for each, however many rows."""
    done, column = columns[: len(prefix)], columns[len(prefix)]
    equal = "".join(f" AND {name} = :v{n}" for n, name in enumerate(done))
    found: list[tuple[Any, ...]] = []
    last: Any = None
    while True:
        further = "" if last is None else f" AND {column} > :last"
        condition = f"state = 'pending'{equal}{further}"
        statement = f"SELECT {column} FROM rowlock_job {hint} WHERE {condition} ORDER BY {column} LIMIT 1"
        params = {f"v{n}": value for n, value in enumerate(prefix)} | ({} if last is None else {"last": last})
        rows = fetch(conn, text(statement), params)
        if not rows:
            return found
        last = rows[0][0]
        if len(prefix) + 1 == len(columns):
            found.append((*prefix, last))
        else:
            found += skip(conn, columns, (*prefix, last), hint=hint)
