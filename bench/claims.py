"""What a claim and an idle look cost as history grows: the same statements with and without finished rows."""

from __future__ import annotations

import statistics
import time

import sqlalchemy as sa

from bench import program
from bench.places import Place, settle_down
from rowlock.model.table import JOBS
from rowlock.store.claim import Branch, Source, claim, look

HISTORY = {
    "postgresql": "generate_series(1, {n}) AS g(i)",
    "mariadb": "seq_1_to_{n}",
    "sqlite": "(WITH RECURSIVE g(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM g WHERE i < {n}) SELECT i FROM g)",
}
NOW = {"postgresql": "clock_timestamp()", "mariadb": "UTC_TIMESTAMP(6)", "sqlite": "'2026-01-01 00:00:00.000000'"}


def measure(place: Place, finished: int, rounds: int = 5, claims: int = 200) -> dict[str, float]:
    """Median milliseconds of a claim of one and of a look that finds nothing, before and after `finished` rows."""
    app, noop = program.application(place.url)
    app.migrate()
    db = app.databases["default"]
    source = Source(JOBS, "bench", (Branch("noop", noop.wire.fingerprint, 60_000),), "bench")
    found: dict[str, float] = {}
    for label, rows in (("empty", 0), ("full", finished)):
        place.execute("DELETE FROM rowlock_job")
        if rows:
            fill(place, rows, noop.wire.fingerprint)
        settle_down(place)
        claiming: list[float] = []
        looking: list[float] = []
        for _ in range(rounds):
            noop.enqueue_many([program.Input(n) for n in range(claims)])
            with db.engine().connect() as conn:
                for _ in range(claims):
                    begun = time.perf_counter()
                    assert claim(conn, db, source, 1)
                    claiming.append(time.perf_counter() - begun)
                for _ in range(claims):
                    begun = time.perf_counter()
                    assert not look(conn, db, source).due
                    looking.append(time.perf_counter() - begun)
        found[f"claim {label}"] = statistics.median(claiming) * 1_000
        found[f"look {label}"] = statistics.median(looking) * 1_000
    app.close()
    return found


def fill(place: Place, rows: int, fingerprint: str) -> None:
    """Finished records by plain SQL."""
    now = NOW[place.kind]
    statement = (
        "INSERT INTO rowlock_job (job, fingerprint, payload, queue, state, max_attempts, timeout_ms, attempt, run_at,"
        f" created_at, finished_at) SELECT 'noop', '{fingerprint}', '{{}}', 'bench', 'succeeded', 5,"
        f" 30000, 1, {now}, {now}, {now} FROM " + HISTORY[place.kind].format(n=rows)
    )
    engine = place.engine()
    with engine.connect() as conn:
        conn.execute(sa.text(statement.replace(":", "\\:")))
    engine.dispose()
