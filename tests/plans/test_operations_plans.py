"""What operators look at stays quick in a table with a long history: counts, pages, bulk changes, the audit (O1, O2).

A page may read what its index sorts; nothing reads the history.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
import sqlalchemy as sa

from rowlock.model.outcome import State
from rowlock.store import counts, listing, migrations, records
from rowlock.store.database import Database as Store
from rowlock.store.records import Filter
from support.databases import Database
from support.plans import measure

F = "f" * 64
HISTORY = pytest.mark.parametrize(
    "number", [100_000, pytest.param(1_000_000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
NUMBERS = {
    "sqlite": "(WITH RECURSIVE g(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM g WHERE i < {n}) SELECT i FROM g) AS g",
    "postgresql": "generate_series(1, {n}) AS g(i)",
    "mysql": "(SELECT seq AS i FROM seq_1_to_{n}) AS g",
}
PAST, FUTURE = "'2020-01-01 00:00:00.000000'", "'2090-01-01 00:00:00.000000'"


def family(engine: sa.Engine) -> str:
    return "mysql" if engine.name == "mariadb" else engine.name


def fill(engine: sa.Engine, number: int) -> None:
    """History with a few of the others at both ends of it and in its middle."""

    def rows(count: int, state: str) -> str:
        lease = FUTURE if state == "running" else "NULL"
        return (
            "INSERT INTO rowlock_job (job, fingerprint, payload, queue, priority, state, run_at, attempt, max_attempts,"
            " timeout_ms, token, created_at, lease)"
            f" SELECT 'a', '{F}', '1', CASE WHEN MOD(i, 4) = 0 THEN 'mail' ELSE 'web' END, 100, '{state}', {PAST}, 1,"
            f" 3, 1000, 't', {PAST}, {lease} FROM {NUMBERS[family(engine)].format(n=count)}"
        )

    with engine.begin() as conn:
        if family(engine) == "mysql":
            conn.exec_driver_sql("ALTER TABLE rowlock_job STATS_PERSISTENT = 1, STATS_AUTO_RECALC = 0")
            conn.exec_driver_sql("ANALYZE TABLE rowlock_job")
        for _ in range(2):
            for state, count in (("pending", 100), ("running", 30), ("dead", 600), ("blocked", 60), ("cancelled", 60)):
                conn.exec_driver_sql(rows(count, state))
            conn.exec_driver_sql(rows(number // 2, "succeeded"))
        conn.exec_driver_sql(rows(100, "pending"))
        conn.exec_driver_sql(rows(600, "dead"))


@pytest.fixture
def store(database: Database, engine: sa.Engine) -> Iterator[Store]:
    made = Store("default", database.url, wait_ms=60_000)
    made.run(migrations.migrate)
    yield made
    made.close()


def analyze(engine: sa.Engine) -> None:
    with engine.begin() as conn:
        conn.exec_driver_sql({"mysql": "ANALYZE TABLE rowlock_job"}.get(family(engine), "ANALYZE rowlock_job"))


def look(store: Store) -> None:
    for state in State:
        of_state = {"pending": 300, "running": 60, "dead": 1_800}.get(state, 120)
        for after in (None, 20_000, 700):
            page = judge(store, f"{state} {after}", _page(store, state, after), of_state + listing.NEAR)
            if after is None:
                assert page == 50
        judge(store, f"oldest {state}", _oldest(store, state), of_state + listing.NEAR)
    judge(store, "page of all", _page(store, None, None), 100)
    judge(
        store, "counts", lambda conn: len(counts.counts(conn, store)), 4_000 + counts.EXACT + counts.RUNS * counts.RUN
    )


def judge(store: Store, what: str, act: Callable[[sa.Connection], int], most: int) -> int:
    """At most so many rows read, as each is counted: in an index, and by its id."""
    with store.engine().connect() as conn:
        read = measure(conn, lambda: act(conn))
    assert read.rows <= 3 * most, (what, read)
    assert not [plan for plan in read.plans if plan.startswith("Seq Scan")], (what, read)
    return read.answer


def _page(store: Store, state: State | None, after: int | None) -> Callable[[sa.Connection], int]:
    def act(conn: sa.Connection) -> int:
        items = records.list_(conn, store, Filter(state=state), limit=50, after=after).items
        assert all(a.id > b.id for a, b in pairwise(items))
        return len(items)

    return act


def _oldest(store: Store, state: State) -> Callable[[sa.Connection], int]:
    return lambda conn: len(listing.oldest(conn, store, state, [], after=0, limit=100))


@HISTORY
def test_no_look_reads_the_history(store: Store, engine: sa.Engine, number: int) -> None:
    # contract: O1, S5
    # case: C84
    fill(engine, number)
    look(store)
    analyze(engine)
    store.close()  # plans of connections that saw the old statistics end with them
    look(store)
    if number == 1_000_000:
        assert _best(lambda: store.run(counts.counts)) < 0.2
        for state in State:
            for after in (None, 20_000):
                assert (
                    _best(lambda s=state, a=after: store.run(records.list_, Filter(state=s), limit=50, after=a)) < 0.05
                )


def _best(act: Callable[[], object]) -> float:
    times: list[float] = []
    for _ in range(5):
        start = time.perf_counter()
        act()
        times.append(time.perf_counter() - start)
    return min(times)
