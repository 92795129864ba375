"""A sweep's statements read what they return, whatever else the job table has (S5, N3)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from rowlock.store import migrations, sweep, turn
from rowlock.store.database import Database as Store
from rowlock.store.lifecycles import Lifecycles
from support.databases import Database
from support.plans import measure

NUMBERS = {
    "sqlite": "(WITH RECURSIVE g(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM g WHERE i < {n}) SELECT i FROM g) AS g",
    "postgresql": "generate_series(1, {n}) AS g(i)",
    "mysql": "(SELECT seq AS i FROM seq_1_to_{n}) AS g",
    "mariadb": "(SELECT seq AS i FROM seq_1_to_{n}) AS g",
}


@pytest.fixture
def store(database: Database) -> Iterator[Store]:
    made = Store("default", database.url, wait_ms=60_000)
    made.run(migrations.migrate)
    yield made
    made.close()


def fill(engine: sa.Engine, number: int) -> None:
    past, young = "'2020-01-01 00:00:00.000000'", "'2090-01-01 00:00:00.000000'"
    with engine.begin() as conn:
        for state, at in (("succeeded", past), ("succeeded", young), ("dead", past), ("pending", past)):
            conn.exec_driver_sql(
                "INSERT INTO rowlock_job (job, fingerprint, payload, queue, state, run_at, max_attempts, timeout_ms,"
                f" created_at, finished_at, attempt) SELECT 'a', '{'f' * 64}', '{{}}', 'default', '{state}', {past}, 3,"
                f" 1000, {at}, {at}, 1 FROM {NUMBERS[engine.dialect.name].format(n=number)}"
            )


@pytest.mark.parametrize("fresh", [False, True])
def test_a_sweep_reads_what_it_takes(store: Store, engine: sa.Engine, fresh: bool) -> None:
    # contract: S5, N3
    fill(engine, 20_000)
    if fresh:
        with engine.begin() as conn:
            names = {"mysql": "ANALYZE TABLE rowlock_job", "mariadb": "ANALYZE TABLE rowlock_job"}
            conn.exec_driver_sql(names.get(engine.dialect.name, "ANALYZE rowlock_job"))
    subjects = Lifecycles({}, lambda: ["default"]).subjects(store, {})
    subject = next(each for each in subjects if each.name == "rowlock_job")
    taken = store.run(turn.take, "plans", timedelta(hours=1), early=True)
    assert taken is not None

    def steps(conn: sa.Connection, db: Store) -> list[Any]:
        looked = measure(conn, lambda: sweep.look(conn, db, subject, 0, None, 500))
        page = looked.answer
        further = measure(conn, lambda: sweep.look(conn, db, subject, 0, page.place(500), 500))
        removed = measure(conn, lambda: sweep.remove(conn, db, subject, 0, page.keys[:100], taken))
        return [looked, further, removed]

    looked, further, removed = store.run(steps)
    assert len(looked.answer.keys) == len(further.answer.keys) == 500
    assert removed.answer == 100
    for read, rows in ((looked, 500), (further, 500), (removed, 200)):
        assert read.rows <= 10 * rows + 100, read.plans
        complaints = [each for each in read.complaints if "rowlock_sweep" not in each]
        assert complaints == []
