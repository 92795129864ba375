"""What a sweep does in a second, and what it costs claims that go on beside it, in the worker's own loop."""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from bench import program
from bench.claims import HISTORY
from bench.places import Place, settle_down
from rowlock import App
from rowlock.model.table import JOBS
from rowlock.runtime.events import Events
from rowlock.runtime.health import Health
from rowlock.runtime.outage import Guard, Outage
from rowlock.runtime.sweeper import Sweeper
from rowlock.store.claim import Branch, Source, claim

PAST = "'2020-01-01 00:00:00.000000'"
AT_REST_S = 0.002
"""Between two claims, as a worker with something to do has it."""


def measure(place: Place, backlog: int, rounds: int) -> dict[str, float]:
    """Rows a second of a sweep alone; milliseconds of a claim at the 99th percentile, alone and beside a sweep."""
    return asyncio.run(_measure(place, backlog, rounds))


async def _measure(place: Place, backlog: int, rounds: int) -> dict[str, float]:
    app, noop = program.application(place.url)
    app.migrate()
    source = Source(JOBS, "bench", (Branch("noop", noop.wire.fingerprint, 60_000),), "bench")
    rates: list[float] = []
    alone: list[float] = []
    beside: list[float] = []
    for _ in range(rounds):
        place.execute("DELETE FROM rowlock_job")
        _fill(place, backlog, noop.wire.fingerprint)
        settle_down(place)
        begun = time.perf_counter()
        await _sweep(app)
        rates.append(backlog / (time.perf_counter() - begun))
        _fill(place, backlog, noop.wire.fingerprint)
        await noop.aenqueue_many([program.Input(n) for n in range(20_000)])
        settle_down(place)
        alone.append(await _p99(app, source, asyncio.create_task(asyncio.sleep(2.0))))
        beside.append(await _p99(app, source, asyncio.create_task(_sweep(app))))
    await app.aclose()
    return {
        "rate": statistics.median(rates), "alone": statistics.median(alone), "beside": statistics.median(beside),
    }  # fmt: skip


async def _sweep(app: App) -> None:
    events, db = Events(app.hooks), app.databases["default"]
    sweeper = Sweeper(app, db, Guard("sweeper", Outage(db, events), Health().beat("sweeper")), events)
    finished = False
    while not finished:
        report = await sweeper.run_once()
        assert report is not None
        finished = report.finished


async def _p99(app: App, source: Source, until: asyncio.Task[Any]) -> float:
    db = app.databases["default"]
    took: list[float] = []
    while not until.done():
        begun = time.perf_counter()
        try:
            await db.arun(claim, source, 1)
        except DBAPIError as error:
            if not db.dialect.is_conflict(error):
                raise
            continue  # as a worker does it: MariaDB's deadlocks are tried again
        took.append(time.perf_counter() - begun)
        await asyncio.sleep(AT_REST_S)
    await until
    return statistics.quantiles(took, n=100)[98] * 1_000


def _fill(place: Place, rows: int, fingerprint: str) -> None:
    """Records that ended long ago, by plain SQL."""
    statement = (
        "INSERT INTO rowlock_job (job, fingerprint, payload, queue, state, max_attempts, timeout_ms, attempt, run_at,"
        f" created_at, finished_at) SELECT 'noop', '{fingerprint}', '{{}}', 'bench', 'succeeded', 5,"
        f" 30000, 1, {PAST}, {PAST}, {PAST} FROM " + HISTORY[place.kind].format(n=rows)
    )
    engine = place.engine()
    with engine.connect() as conn:
        conn.execute(sa.text(statement.replace(":", "\\:")))
    engine.dispose()
