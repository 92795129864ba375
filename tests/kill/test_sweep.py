"""A worker that is killed in the middle of a sweep: another one goes on when its turn has ended (N3)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from rowlock.store import schema
from support.kill import KillKit
from support.story import mostly_slow
from support.waiting import wait_until

SOURCE = """
from rowlock.runtime import sweeper
from rowlock.store import turn

sweeper.FIRST_S = 0.1
turn.LEASE = timedelta(seconds=2)

@jobs.job(name="work", max_attempts=3, timeout=30)
async def work(ctx: Context) -> None:
    note("ran", ctx)
"""


@mostly_slow("mariadb")
def test_a_sweep_goes_on_after_a_kill(kill_kit: Callable[..., KillKit], engine: sa.Engine) -> None:
    # contract: N3, N2
    kit = kill_kit(SOURCE)
    kit.module.app.migrate()
    at = datetime.now(UTC) - timedelta(days=8)
    row: dict[str, Any] = {
        "job": "work", "fingerprint": "f" * 64, "payload": "null", "queue": "default", "priority": 100, "run_at": at,
        "state": "succeeded", "attempt": 1, "max_attempts": 3, "timeout_ms": 1_000, "created_at": at, "handed_back": 0,
        "finished_at": at,
    }  # fmt: skip

    def left(state: str) -> int:
        with engine.connect() as conn:
            c = schema.job.c
            return conn.execute(sa.select(sa.func.count()).select_from(schema.job).where(c.state == state)).scalar_one()

    with engine.begin() as conn:
        for _ in range(8):
            conn.execute(schema.job.insert(), [row] * 1_000)
        conn.execute(schema.job.insert(), [row | {"state": "dead"}] * 20)
    first = kit.start().ready()
    wait_until(lambda: left("succeeded") < 8_000, 20, kit.story)
    first.kill()
    remained = left("succeeded")
    assert remained > 0
    kit.start().ready()
    wait_until(lambda: left("succeeded") == 0, 30, kit.story)
    assert left("dead") == 20
    done = kit.module.work.enqueue()
    assert kit.wait_for("ran")[0].record == done.id
