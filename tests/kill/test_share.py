"""Several processes on one database share its records; no one starts one twice, and nobody hears of it (C2, K1)."""

from __future__ import annotations

from collections import Counter

import pytest
import sqlalchemy as sa

from support.story import Table, complaints, logged


# contract: C2, C3, C4, K1, K5; case: C06
@pytest.mark.parametrize(("workers", "records"), [(4, 500), pytest.param(16, 2000, marks=pytest.mark.slow)])
def test_each_record_is_started_once(kill_kit, engine: sa.Engine, dialect: str, workers: int, records: int) -> None:
    kit = kill_kit(
        """
    def none(ctx: Context) -> None:
        note("start", ctx)

    queues = [jobs.job(name=f"none {n}", queue=f"q{n}", max_attempts=3, timeout=30)(none) for n in range(3)]
    """,
        job={"workers": 10, "poll_ms": 50},
    )
    queues, table = kit.module.queues, Table(engine)
    started = [kit.start() for _ in range(workers)]
    for worker in started:
        worker.ready(60)
    for n, job in enumerate(queues):
        job.enqueue_many([None] * len(range(n, records, 3)))
    table.wait(lambda rows: all(row.state == "succeeded" for row in rows), 120, kit.story)
    for worker in started:
        worker.term()
    assert [worker.wait() for worker in started] == [0] * workers
    assert Counter(one.record for one in kit.effects("start")) == {row.id: 1 for row in table.rows()}
    assert len(table.rows()) == records
    assert {row.attempt for row in table.rows()} == {1}
    assert len({one.pid for one in kit.effects("start")}) > 1
    assert not logged(started, "WARNING")
    assert not complaints(started)
