"""A pass of one schedule reads its own cursor and its own last record, however many there are of both (S5, T5, T6)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
import sqlalchemy as sa

from rowlock import Jobs
from rowlock.store import cursors, schema
from support.databases import Database
from support.jobtable import NOON, JobTable
from support.plans import measure

CURSORS = 5_000
RECORDS = 2_000


@pytest.fixture
def table(database: Database) -> Iterator[JobTable]:
    with JobTable(database) as made:
        yield made


def analyze(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        for table in ("rowlock_job", "rowlock_cursor"):
            mysql = engine.name in {"mysql", "mariadb"}
            connection.exec_driver_sql(f"ANALYZE TABLE {table}" if mysql else f"ANALYZE {table}")


@pytest.mark.parametrize("fresh", [False, True], ids=["old statistics", "fresh statistics"])
def test_a_pass_reads_one_cursor_and_one_record(table: JobTable, engine: sa.Engine, fresh: bool) -> None:
    # contract: S5, T5, T6
    jobs = Jobs()

    @jobs.job(max_attempts=1, timeout=1, name="n" * 1_000, aliases=("older",), schedule="* * * * *", overlap="skip")
    def tick() -> None: ...

    analyze(engine)
    table.db.run(cursors.begin, [tick], table.db.run(cursors.read))
    with engine.begin() as connection:
        row = {"fingerprint": "f" * 64, "last_minute": NOON, "updated_at": NOON}
        connection.execute(schema.cursor.insert(), [{"name": f"job {n}", **row} for n in range(CURSORS)])
    table.add(RECORDS, job="n" * 1_000)
    table.clock.move(minutes=1)
    assert table.db.run(cursors.materialise, tick, table.db.run(cursors.read)) is not None
    if fresh:
        analyze(engine)
    table.db.close()
    table.clock.move(minutes=1)
    look = table.db.run(cursors.read)
    assert len(look.cursors) == CURSORS + 1
    assert look.now == NOON + timedelta(minutes=2)
    with table.db.engine().connect() as conn:
        read = measure(conn, lambda: cursors.materialise(conn, table.db, tick, look))
    assert read.answer.skipped == 1
    assert read.rows <= 100, read
    assert read.complaints == [], read
