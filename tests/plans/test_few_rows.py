"""Where few records are in work: an optimizer that finds an index of all of them as good as the primary key would wait
for rows that others have locked (L4, L6), and lock rows that nobody asked for (C2).
"""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
import sqlalchemy as sa

from rowlock.model.outcome import Settlement, State
from rowlock.model.table import JOBS
from rowlock.store.renew import renew, renew_one
from rowlock.store.settle import settle
from support.databases import Database
from support.jobtable import JobTable


@pytest.mark.databases(
    "mariadb", reason="L4: InnoDB locks every row that a statement reads; the other plans are measured"
)
def test_rows_that_are_named_are_found_by_their_ids(database: Database, engine: sa.Engine) -> None:
    # contract: L4, C2
    sent: list[tuple[str, Any]] = []

    def note(_connection: Any, _cursor: Any, statement: str, params: Any, *_: Any) -> None:
        if re.search(r"rowlock_job\b.* IN \(\d", statement) and re.search("UPDATE", statement):
            sent.append((re.sub("^SET STATEMENT .* FOR (?=UPDATE)", "", statement), params))

    with JobTable(database) as jobs:
        sa.event.listen(jobs.db.engine(), "before_cursor_execute", note)
        for number, late in itertools.product(range(1, 4), range(3)):
            jobs.running(3, queue="others")
            jobs.add(number)
            jobs.claim(number)
            holds = jobs.running(number)
            jobs.db.run(renew, JOBS, holds)
            jobs.db.run(renew_one, JOBS, holds[0])
            jobs.db.run(settle, JOBS, [Settlement(h.id, h.token, State.PENDING, "retry", delay_ms=1) for h in holds])
            jobs.clock.move(seconds=30 * late)
            jobs.rescue()
        assert len(sent) > 30
        plans = set[str]()
        with engine.connect() as connection:
            for statement, params in sent:
                for row in connection.exec_driver_sql(f"EXPLAIN {statement}", params).mappings():
                    if row["table"] in ("t", "rowlock_job"):
                        plans.add(f"{row['key']}: {statement}")
    assert {plan for plan in plans if not plan.startswith("PRIMARY: ")} == set()
