"""What an enqueue, a claim and an idle look cost as history grows: the same, with and without finished rows."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack

import sqlalchemy as sa

from bench import program
from bench.places import Place, place, settle_down
from rowlock.model.table import JOBS
from rowlock.store.claim import Branch, Source, claim, look

HISTORY = {
    "postgresql": "generate_series(1, {n}) AS g(i)",
    "mariadb": "seq_1_to_{n}",
    "sqlite": "(WITH RECURSIVE g(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM g WHERE i < {n}) SELECT i FROM g)",
}
NOW = {"postgresql": "clock_timestamp()", "mariadb": "UTC_TIMESTAMP(6)", "sqlite": "'2026-01-01 00:00:00.000000'"}


WHAT = ("enqueue", "claim", "look")


def measure(kind: str, finished: int, rounds: int = 5, times: int = 200) -> dict[str, float]:
    """Median milliseconds of an enqueue, a claim of one and a look that finds nothing, with and without history.

    Two databases, one empty and one with `finished` rows, in turn: what else the machine does meets both.
    """
    with ExitStack() as ending:
        sides: list[_Side] = []
        for label, rows in (("empty", 0), ("full", finished)):
            side = _Side(label, ending.enter_context(place(kind, f"_{label}")))
            ending.callback(side.app.close)
            if rows:
                fill(side.place, rows, side.job.wire.fingerprint)
            settle_down(side.place)
            sides.append(side)
        for number in range(rounds):
            for side in sides if number % 2 else reversed(sides):
                side.round(times)
        return {f"{what} {side.label}": statistics.median(side.took[what]) * 1_000 for side in sides for what in WHAT}


class _Side:
    def __init__(self, label: str, place: Place) -> None:
        self.label = label
        self.place = place
        self.app, self.job = program.application(place.url)
        self.app.migrate()
        self.took: dict[str, list[float]] = {what: [] for what in WHAT}
        """Of each round the median."""

    def round(self, times: int) -> None:
        db = self.app.databases["default"]
        source = Source(JOBS, "bench", (Branch("noop", self.job.wire.fingerprint, 60_000),), "bench")
        self._time("enqueue", times, lambda: self.job.enqueue(program.Input(1)))
        with db.engine().connect() as conn:
            self._time("claim", times, lambda: claim(conn, db, source, 1))
            assert not look(conn, db, source).due, "not everything was claimed"
            self._time("look", times, lambda: look(conn, db, source))

    def _time(self, what: str, times: int, act: Callable[[], object]) -> None:
        found: list[float] = []
        for _ in range(times):
            begun = time.perf_counter()
            act()
            found.append(time.perf_counter() - begun)
        self.took[what].append(statistics.median(found))


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
