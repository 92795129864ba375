"""What statements read, as each database counts it: rows, pages, steps; and where they read without an index.

read = measure(conn, lambda: claim.claim(conn, db, source, 16))
assert read.rows <= 10 * len(read.answer) + 100
assert read.complaints == []
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

STEPS_OF_A_ROW = 120
"""SQLite's instructions for a row that is read, judged, changed and written to five indexes.

A scan takes few for each of very many rows."""


@dataclass
class Read:
    """What was read by the statements of one function, and what it answered."""

    answer: Any = None
    rows: int = 0
    pages: int = 0
    complaints: list[str] = field(default_factory=list)
    plans: list[str] = field(default_factory=list)


def measure(conn: sa.Connection, act: Callable[[], Any]) -> Read:
    """Runs `act`, whose statements are on `conn`. On PostgreSQL each runs twice: once for its plan, undone again."""
    ways = {"sqlite": _sqlite, "postgresql": _postgresql}
    return ways.get(conn.engine.name, _mariadb)(conn, act)


@contextmanager
def _before_each(conn: sa.Connection, look: Callable[[str, Any], None]) -> Iterator[None]:
    def note(_conn: Any, _cursor: Any, sql: str, params: Any, _context: Any, many: bool) -> None:
        if re.match(r"\s*(SELECT|WITH|UPDATE|DELETE)", sql) and "pg_sleep" not in sql:
            look(sql, params[0] if many else params)

    sa.event.listen(conn, "before_cursor_execute", note)
    try:
        yield
    finally:
        sa.event.remove(conn, "before_cursor_execute", note)


# --- PostgreSQL -------------------------------------------------------------------------------------------------------


def _postgresql(conn: sa.Connection, act: Callable[[], Any]) -> Read:
    read = Read()
    raw: Any = conn.connection.dbapi_connection

    def explain(sql: str, params: Any) -> None:
        inside = raw.info.transaction_status.name == "INTRANS"
        begin, undo = ("SAVEPOINT plan", "ROLLBACK TO SAVEPOINT plan") if inside else ("BEGIN", "ROLLBACK")
        with raw.cursor() as cursor:
            cursor.execute(begin)
            cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", params)
            plan = cursor.fetchone()[0]
            cursor.execute(undo)
        _of_node((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"], read)

    with _before_each(conn, explain):
        read.answer = act()
    return read


def _of_node(node: dict[str, Any], read: Read, *, top: bool = True) -> None:
    kind = node["Node Type"]
    if top:  # a node's pages include those of the nodes below it
        read.pages += node.get("Shared Hit Blocks", 0) + node.get("Shared Read Blocks", 0)
    if node.get("Relation Name") in {"rowlock_job", "rowlock_cancel", "rowlock_cursor"} and "Scan" in kind:
        gone = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
        read.rows += int((node["Actual Rows"] + gone) * node["Actual Loops"])
        read.plans.append(f"{kind} {node.get('Index Name', '')}")
        if kind == "Seq Scan":
            read.complaints.append(f"Seq Scan on {node['Relation Name']}")
    for child in node.get("Plans", []):
        _of_node(child, read, top=False)


# --- MariaDB ----------------------------------------------------------------------------------------------------------


def _mariadb(conn: sa.Connection, act: Callable[[], Any]) -> Read:
    own = _handler_reads(conn)
    own = _handler_reads(conn) - own  # to ask is a read of its own
    before = _handler_reads(conn)
    answer = act()
    return Read(answer, _handler_reads(conn) - before - own)


def _handler_reads(conn: sa.Connection) -> int:
    return sum(int(row[1]) for row in conn.exec_driver_sql("SHOW SESSION STATUS LIKE 'Handler_read%%'"))


# --- SQLite -----------------------------------------------------------------------------------------------------------


def _sqlite(conn: sa.Connection, act: Callable[[], Any]) -> Read:
    read = Read()
    raw: Any = conn.connection.dbapi_connection
    sent: list[tuple[str, Any]] = []
    steps = 0

    def ten() -> int:
        nonlocal steps
        steps += 10
        return 0

    raw.set_progress_handler(ten, 10)
    try:
        with _before_each(conn, lambda sql, params: sent.append((sql, params))):
            read.answer = act()
    finally:
        raw.set_progress_handler(None, 0)
    read.rows = steps // STEPS_OF_A_ROW
    for sql, params in sent:
        read.plans += [row[3] for row in conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", params)]
    read.complaints = [plan for plan in read.plans if not _is_search(plan)]
    return read


def _is_search(step: str) -> bool:
    """A step of a plan that reads the job table by a named index or by id; or does not read it at all."""
    if "TEMP B-TREE" in step:
        return False
    if step.startswith("SEARCH"):
        return bool(re.search(r"USING (COVERING INDEX rowlock_job_|INDEX rowlock_job_|INTEGER PRIMARY KEY)", step)) or (
            any(
                small in step
                for small in ("rowlock_program", "rowlock_meta", "rowlock_pause", "rowlock_cancel", "rowlock_cursor")
            )
        )
    return not re.match(r"SCAN (rowlock_job|rowlock_cancel|rowlock_cursor|t|k)\b", step)
