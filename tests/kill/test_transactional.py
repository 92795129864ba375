"""Workers that die in the middle of a transactional handler: its effects happen exactly once."""

from __future__ import annotations

import random
import time

import sqlalchemy as sa

from support.story import Table
from support.waiting import wait_until


# contract: L8, L1, L7
def test_whatever_kills_a_worker_each_effect_happens_once(kill_kit, engine: sa.Engine, dialect: str) -> None:
    kit = kill_kit(
        """
    import sqlalchemy as sa
    from support.effects import effects

    insert = sa.text("INSERT INTO receipt (record) VALUES (:id)")

    @jobs.job(name="sync", max_attempts=50, timeout=1, lease=1.1, transactional=True)
    def sync(ctx: Context) -> None:
        ctx.connection.execute(insert, {"id": ctx.id})
        time.sleep(0.02)
        if ctx.id % 5 == 0 and ctx.attempt == 1:
            note("dies", ctx)
            os.kill(os.getpid(), 9)

    @jobs.job(name="async", max_attempts=50, timeout=1, lease=1.1, transactional=True)
    async def asynchronous(ctx: Context) -> None:
        await ctx.aconnection.execute(insert, {"id": ctx.id})
        await asyncio.sleep(0.02)
        if ctx.id % 7 == 0 and ctx.attempt == 1:
            note("dies", ctx)
            os.kill(os.getpid(), 9)
    """,
        job={"workers": 4, "poll_ms": 50},
    )
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE receipt (record int NOT NULL)")
    for job in kit.module.jobs.jobs:
        job.enqueue_many(None for _ in range(15))
    table, dice, worker = Table(engine), random.Random(dialect), None
    end = time.monotonic() + 60
    while not all(row.state == "succeeded" for row in table.rows()):
        assert time.monotonic() < end, kit.story()
        if worker is None or not worker.running:
            worker = kit.start()
            wait_until(lambda w=worker: not w.running or "ready:" in w.stderr, 20, kit.story)
        time.sleep(dice.uniform(0.1, 0.4))
        if dice.random() < 0.2 and worker.running and len(kit.effects("dies")) < 5:
            worker.kill()
    with engine.connect() as connection:
        written = sorted(connection.exec_driver_sql("SELECT record FROM receipt").scalars())
    assert written == sorted(row.id for row in table.rows())
    assert kit.effects("dies"), "nobody died"
