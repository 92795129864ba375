"""The hot statements read what they return, and little more, however large the table is (S5).

Rows examined are at most 10 times the rows returned, and 100: with rows of an unknown job in front, with future rows at
a better priority, and with statistics that were taken when the table was empty.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from rowlock.model.outcome import Settlement, State
from rowlock.model.table import JOBS
from rowlock.store import claim, migrations, programs, renew, settle
from rowlock.store.database import Database as Store
from support.databases import Database

ROWS = pytest.mark.parametrize("number", [100_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
LIMITS = [1, 16, 100, 256]
F = "f" * 64
SOURCE = claim.Source(
    JOBS, "default", (claim.Branch("a", F, 60_000), claim.Branch("b", F, 60_000)), "plans"
)  # fmt: skip
NUMBERS = {
    "sqlite": "(WITH RECURSIVE g(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM g WHERE i < {n}) SELECT i FROM g) AS g",
    "postgresql": "generate_series(1, {n}) AS g(i)",
    "mysql": "(SELECT seq AS i FROM seq_1_to_{n}) AS g",
}
PAST, FUTURE = "'2020-01-01 00:00:00.000000'", "'2090-01-01 00:00:00.000000'"


def family(engine: sa.Engine) -> str:
    return "mysql" if engine.name == "mariadb" else engine.name


def fill(engine: sa.Engine, number: int) -> None:
    """Unknown and future rows in front, history, and due rows; of a running kind a few hundred."""

    def rows(count: int, job: str, state: str, priority: int, due: str, key: str = "NULL", lease: str = "NULL") -> str:
        return (
            "INSERT INTO rowlock_job (job, fingerprint, payload, queue, priority, state, run_at, attempt, max_attempts,"
            f" timeout_ms, token, lease, created_at, {'`key`' if family(engine) == 'mysql' else 'key'})"
            f" SELECT '{job}', '{F}', '{{}}', 'default', {priority}, '{state}', {due}, 0, 3, 1000, 't', {lease},"
            f" {PAST}, {key} FROM {NUMBERS[family(engine)].format(n=count)}"
        )

    keyed = "CONCAT('k', i)" if family(engine) != "sqlite" else "'k' || i"
    with engine.begin() as conn:
        for statement in (
            rows(number, "unknown", "pending", 1, PAST),
            rows(number, "a", "pending", 5, FUTURE),
            rows(number, "a", "succeeded", 100, PAST),
            rows(2_000, "a", "pending", 100, PAST, key=keyed),
            rows(2_000, "b", "pending", 100, PAST),
            rows(600, "a", "running", 100, PAST, lease=FUTURE),
        ):
            conn.exec_driver_sql(statement)


@pytest.fixture(params=["fresh", "of an empty table"])
def table(request: pytest.FixtureRequest, database: Database, engine: sa.Engine) -> Iterator[Store]:
    number = request.node.callspec.params["number"]
    store = Store("default", database.url, wait_ms=60_000)
    store.run(migrations.migrate)
    if engine.name == "postgresql":
        with engine.begin() as conn:
            conn.exec_driver_sql("ANALYZE rowlock_job")
            conn.exec_driver_sql("ALTER TABLE rowlock_job SET (autovacuum_enabled = off)")
    fill(engine, number)
    if request.param == "fresh":
        with engine.begin() as conn:
            conn.exec_driver_sql({"mysql": "ANALYZE TABLE rowlock_job"}.get(family(engine), "ANALYZE rowlock_job"))
    yield store
    store.close()


# --- rows examined, as each database counts them ---------------------------------------------------------------------


class Meter:
    """How many rows the statements of a function read, and for SQLite how."""

    def __init__(self, conn: sa.Connection) -> None:
        self.conn = conn
        self.examined = 0
        self.plans: list[str] = []

    @contextmanager
    def reading(self) -> Iterator[None]:
        with self._sqlite() if self.conn.engine.name == "sqlite" else self._mysql():
            yield

    @contextmanager
    def _mysql(self) -> Iterator[None]:
        self.conn.exec_driver_sql("FLUSH STATUS")
        yield
        status = "SHOW SESSION STATUS WHERE variable_name LIKE 'Handler_read%' AND variable_name NOT LIKE '%rnd%'"
        self.examined = sum(int(row[1]) for row in self.conn.exec_driver_sql(status.replace("%", "%%")))

    @contextmanager
    def _sqlite(self) -> Iterator[None]:
        sent: list[tuple[str, Any]] = []

        def note(_conn: Any, _cursor: Any, sql: str, params: Any, _context: Any, many: bool) -> None:
            sent.append((sql, params[0] if many else params))

        sa.event.listen(self.conn, "before_cursor_execute", note)
        try:
            yield
        finally:
            sa.event.remove(self.conn, "before_cursor_execute", note)
        for sql, params in sent:
            if sql.lstrip().startswith(("SELECT", "UPDATE", "WITH")):
                rows = self.conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", params)
                self.plans += [row[3] for row in rows]


def examined_of(node: dict[str, Any]) -> int:
    """The rows that a PostgreSQL plan's scans of the table read, those that a filter removed included."""
    total = 0
    if node.get("Relation Name") == "rowlock_job" and "Scan" in node["Node Type"]:
        gone = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
        total += (node["Actual Rows"] + gone) * node["Actual Loops"]
    return int(total) + sum(examined_of(child) for child in node.get("Plans", []))


def explained(conn: sa.Connection, act: Callable[[], Any]) -> int:
    """Runs `act` with every statement explained (PostgreSQL); what it answers is worth nothing."""
    found: list[int] = []

    def explain(_conn: Any, cursor: Any, sql: str, params: Any, *_: Any) -> tuple[str, Any]:
        if sql.lstrip().upper().startswith(("SELECT", "WITH", "UPDATE", "\nWITH")):
            probe = conn.connection.cursor()
            probe.execute("BEGIN")
            probe.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}", params)
            plan = probe.fetchone()[0]
            plan = json.loads(plan) if isinstance(plan, str) else plan
            probe.execute("ROLLBACK")
            probe.close()
            found.append(examined_of(plan[0]["Plan"]))
        return sql, params

    sa.event.listen(conn, "before_cursor_execute", explain, retval=True)
    try:
        act()
    finally:
        sa.event.remove(conn, "before_cursor_execute", explain)
    return sum(found)


def judge(store: Store, act: Callable[[sa.Connection], int]) -> None:
    """Runs `act`, which answers how many rows it returned, and holds what it read against that."""
    with store.engine().connect() as conn:
        if conn.engine.name == "postgresql":
            returned: list[int] = []
            examined = explained(conn, lambda: returned.append(act(conn)))
            assert examined <= 10 * returned[0] + 100, (examined, returned)
            return
        act(conn)  # once before: what a first look has to find out
        meter = Meter(conn)
        answer = 0
        with meter.reading():
            answer = act(conn)
        assert meter.examined <= 10 * answer + 100, (meter.examined, answer)
        # `pending_pairs` takes the first entry of the claim's index, which SQLite calls a scan of it.
        bad = [p for p in meter.plans if "TEMP B-TREE" in p or re.match(r"SCAN rowlock_job(?! USING .*_due$)", p)]
        assert bad == []
        if meter.plans:
            assert any(plan.startswith("SEARCH") for plan in meter.plans)


# --- the statements ---------------------------------------------------------------------------------------------------


@ROWS
def test_every_hot_statement(table: Store, number: int) -> None:
    # contract: S5
    db = table
    judge(db, lambda conn: 1 if claim.look(conn, db, SOURCE).due else 0)
    for limit in LIMITS:
        judge(db, lambda conn, limit=limit: len(claim.claim(conn, db, SOURCE, limit)))
    judge(db, lambda conn: len(claim.rescue(conn, db, JOBS)))
    judge(db, lambda conn: len(claim.bury(conn, db, JOBS)))
    judge(db, lambda conn: len(db.dialect.find_active(conn, ["a"], [f"k{n}" for n in range(1, 101)])))
    judge(db, lambda conn: len(db.dialect.find_active(conn, ["a"], ["nobody"])))
    judge(db, lambda conn: len(db.dialect.pending_pairs(conn)))
    judge(db, lambda conn: len(programs.block_unknown(conn, db, [programs.Pair("a", F), programs.Pair("b", F)], 0)))
    for limit in LIMITS:
        records = db.run(claim.claim, SOURCE, limit)
        assert len(records) == limit
        holds = [renew.Hold(record.id, record.token, 60_000) for record in records]
        judge(db, lambda conn, holds=holds: len(renew.renew(conn, db, JOBS, holds).renewed))
        pairs = [(hold.id, hold.token) for hold in holds]
        judge(db, lambda conn, pairs=pairs: len(pairs) - len(renew.verify_holds(conn, db, JOBS, pairs)))
        done = [Settlement(hold.id, hold.token, State.SUCCEEDED, "ack") for hold in holds]
        judge(db, lambda conn, done=done: len(settle.settle(conn, db, JOBS, done)))
