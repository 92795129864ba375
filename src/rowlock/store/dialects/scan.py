"""The claim's reading half where a claim takes several statements (SQLite, MySQL, MariaDB).

First each branch's priorities and their heads, found by skipping through the index; then the due records of
the best priority, a slice of each branch, merged in claim order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import text
from sqlalchemy.engine import Connection

from rowlock.model.table import QueueShape
from rowlock.store.dialects.base import fetch

SLICE = 16
"""The fewest candidates read of one branch, so that many branches with little each take few claims."""


class Words(NamedTuple):
    """How one database writes what the shared statements need."""

    table: str
    id: str
    priority: str
    run_at: str
    attempt: str
    max_attempts: str
    branches: str
    """A derived table `b(n, …)` of the branches."""
    columns: str
    """The branch's columns in it, comma separated."""
    in_branch: str
    """The condition that a waiting row `t` belongs to branch `{b}`."""


def levels_sql(words: Words) -> str:
    """Each branch's priorities with pending rows, and the earliest run_at of each. Reads one row a probe."""
    w = words
    probe = f"SELECT t.{w.priority} FROM {w.table} t WHERE {{where}} ORDER BY t.{w.priority} LIMIT 1"
    first = probe.format(where=w.in_branch.format(b="b"))
    later = probe.format(where=f"{w.in_branch.format(b='l')} AND t.{w.priority} > l.priority")
    carried = ", ".join(f"{{}}.{column.strip()}" for column in w.columns.split(","))
    return f"""
WITH RECURSIVE level(n, {w.columns}, priority) AS (
  SELECT b.n, {carried.replace("{}", "b")}, ({first}) FROM {w.branches} b
  UNION ALL
  SELECT l.n, {carried.replace("{}", "l")}, ({later}) FROM level l WHERE l.priority IS NOT NULL)
SELECT l.n, l.priority,
       (SELECT t.{w.run_at} FROM {w.table} t WHERE {w.in_branch.format(b="l")} AND t.{w.priority} = l.priority
         ORDER BY t.{w.run_at} LIMIT 1) AS head
  FROM level l WHERE l.priority IS NOT NULL"""


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


def words_of(shape: QueueShape, quote: str) -> dict[str, str]:
    """The quoted names that all statements share."""

    def quoted(name: str) -> str:
        return quote + name.replace(quote, quote * 2) + quote

    return {"table": quoted(shape.table)} | {
        role: quoted(shape.column(role)) for role in ("id", "priority", "run_at", "attempt", "max_attempts")
    }


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


UPSERT_PROGRAM = """
INSERT INTO rowlock_program (pair, job, fingerprint, announced_at) VALUES (:pair, :job, :fingerprint, {now})
    ON CONFLICT (pair) DO UPDATE SET announced_at = excluded.announced_at"""
