"""The sweeper: one at a time over all processes, in pieces, through failures; what it gives back (N3, N8-N10)."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from rowlock import App, Jobs, Lifecycle, Retention, SweepReport
from rowlock.runtime import faults, sweep, sweeper
from rowlock.runtime.events import Events
from rowlock.runtime.health import Health
from rowlock.runtime.outage import Guard, Outage
from rowlock.store import schema, turn
from rowlock.store.database import Database as Store
from support.databases import Database
from support.jobtable import JobTable
from support.races import Blocker
from support.rows import count, insert
from support.waiting import wait_until

DAY, HOUR = timedelta(days=1), timedelta(hours=1)
EVERY = sweeper.EVERY
NUMBERS = {
    "sqlite": "(WITH RECURSIVE g(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM g WHERE i < {n}) SELECT i FROM g) AS g",
    "postgresql": "generate_series(1, {n}) AS g(i)",
    "mysql": "(SELECT seq AS i FROM seq_1_to_{n}) AS g",
    "mariadb": "(SELECT seq AS i FROM seq_1_to_{n}) AS g",
}


def backlog(engine: sa.Engine, number: int, state: str = "succeeded", payload: str = "{}") -> None:
    """Records that ended long ago, by plain SQL."""
    past = "'2020-01-01 00:00:00.000000'"
    statement = (
        "INSERT INTO rowlock_job (job, fingerprint, payload, queue, state, run_at, max_attempts, timeout_ms, token,"
        f" created_at, finished_at, attempt) SELECT 'a', '{'f' * 64}', '{payload}', 'default', '{state}', {past}, 3,"
        f" 1000, 't', {past}, {past}, 1 FROM {NUMBERS[engine.dialect.name].format(n=number)}"
    )
    with engine.begin() as conn:
        conn.exec_driver_sql(statement)


def made(app: App, name: str = "default", *, paced: bool = False) -> sweeper.Sweeper:
    """A sweeper as a worker has one; `paced`: it rests as well."""
    events, db = Events(app.hooks), app.databases[name]
    return sweeper.Sweeper(app, db, Guard("sweeper", Outage(db, events), Health().beat("sweeper")), events, paced=paced)


def run(app: App, name: str = "default", *, paced: bool = False) -> SweepReport | None:
    async def once() -> SweepReport | None:
        try:
            return await made(app, name, paced=paced).run_once()
        finally:
            await app.aclose()

    return asyncio.run(once())


@pytest.fixture
def app(app_factory: Callable[..., App], jobs: Jobs, ping: Any) -> App:
    return app_factory(jobs)


# --- whose turn it is -------------------------------------------------------------------------------------------------


@pytest.fixture
def table(database: Database) -> Iterator[JobTable]:
    with JobTable(database) as opened:
        yield opened


def take(table: JobTable, token: str, db: Store | None = None, *, early: bool = False) -> turn.Turn | None:
    return (db or table.db).run(turn.take, token, EVERY, early=early)


def test_one_sweeps_at_a_time_and_the_next_sweep_is_an_hour_later_for_all(table: JobTable) -> None:
    # contract: N3
    other = table.another()
    first = take(table, "one")
    assert first is not None
    assert take(table, "two", other) is None
    assert take(table, "two", other, early=True) is None
    assert take(table, "one") is not None  # its own, taken up again after a failure
    table.db.run(turn.give_back, first, EVERY, {"t#0": "2020"})
    assert take(table, "two", other) is None
    assert other.run(turn.peek, EVERY)[0] == EVERY.total_seconds()
    table.clock.move(hours=1)
    assert other.run(turn.peek, EVERY)[0] == 0
    second = take(table, "two", other)
    assert second is not None
    assert second.position == {"t#0": "2020"}


def test_the_turn_of_a_killed_sweeper_is_free_when_its_lease_ends(table: JobTable) -> None:
    # contract: N3
    killed = take(table, "killed")
    assert killed is not None
    table.clock.move(seconds=turn.LEASE.total_seconds() - 1)
    assert take(table, "two") is None
    table.db.run(turn.renew, killed)
    table.clock.move(seconds=2)
    assert take(table, "two") is None
    table.clock.move(seconds=turn.LEASE.total_seconds())
    assert take(table, "two") is not None
    with pytest.raises(turn.TurnLost):
        table.db.run(turn.renew, killed)
    table.db.run(turn.give_back, killed, EVERY, {})  # changes nothing: it is another's
    assert table.db.run(turn.peek, EVERY)[0] > 0


def test_a_clock_that_was_wrong_keeps_nobody_out(table: JobTable) -> None:
    # contract: N3
    table.clock.move(days=3_650)
    ahead = take(table, "ahead")
    assert ahead is not None
    table.clock.time -= timedelta(days=3_650)
    assert table.db.run(turn.peek, EVERY)[0] == 0
    second = take(table, "two")
    assert second is not None
    table.clock.time += timedelta(days=3_650)
    table.db.run(turn.give_back, second, EVERY, {})
    table.clock.time -= timedelta(days=3_650)
    assert table.db.run(turn.peek, EVERY)[0] == 0
    assert take(table, "three") is not None


def test_what_somebody_wrote_into_the_position_is_no_trap(table: JobTable) -> None:
    # contract: N3
    first = take(table, "one")
    assert first is not None
    table.db.run(turn.give_back, first, timedelta(0), {})
    for text in ("nonsense", "[1]", "[" * 9_999, "null"):
        with table.db.engine().connect() as conn:
            conn.execute(schema.sweep.update().values(position=text))
        again = take(table, "one", early=True)
        assert again is not None
        assert again.position == {}


# --- in bounded pieces ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [5_000, pytest.param(100_000, marks=[pytest.mark.slow, pytest.mark.timeout(300)])])
def test_a_backlog_goes_at_its_rate(app: App, engine: sa.Engine, number: int) -> None:
    # contract: N3
    # case: C80
    backlog(engine, number)
    backlog(engine, 100, "dead")
    begun = time.monotonic()
    swept, finished = 0, False
    while not finished:
        report = run(app, paced=True)
        assert report is not None
        swept, finished = swept + report.swept, report.finished
    assert swept == number
    assert count(engine, schema.job) == 100
    assert (
        number / (time.monotonic() - begun) >= 100
    )  # ten times looser than the contract's rate: bench/ has the figure


def test_a_sweep_whose_time_is_up_goes_on_where_it_was(
    app: App, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # contract: N3, N6
    message = sa.Table("message", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True),
                       sa.Column("created_at", sa.DateTime, index=True))  # fmt: skip
    message.create(engine)
    insert(engine, message, [{"id": n, "created_at": datetime_of(n)} for n in range(1, 1_201)])
    app.lifecycle(message, Lifecycle("transient", retention=Retention("7d")))
    asked: list[int] = []

    @app.retention_guard(message)
    def never(rows: Sequence[Any]) -> list[Any]:
        asked.extend(row.id for row in rows)
        monkeypatch.setattr(sweep, "monotonic", lambda: time.monotonic() + 3_600)  # the time is used up
        return []

    for finished in (False, False, True):
        monkeypatch.setattr(sweep, "monotonic", time.monotonic)
        report = run(app)
        assert report is not None
        assert report.finished == finished
    assert sorted(set(asked)) == list(range(1, 1_201))  # the vetoed ones in front hid nobody
    assert len(asked) <= 1_200 + 3


def datetime_of(number: int) -> datetime:
    return datetime(2020, 1, 1, tzinfo=UTC).replace(tzinfo=None) + timedelta(seconds=number)


def test_a_large_table_does_not_keep_a_small_one_waiting(
    app: App, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # contract: N3
    backlog(engine, 3_000)
    small = sa.Table("small", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True),
                     sa.Column("created_at", sa.DateTime, index=True))  # fmt: skip
    small.create(engine)
    insert(engine, small, [{"id": 1, "created_at": datetime_of(1)}])
    app.lifecycle(small, Lifecycle("transient", retention=Retention("7d")))

    @app.retention_guard(small)
    def then_time_is_up(rows: Sequence[Any]) -> Sequence[Any]:
        for module in (sweep, sweeper):
            monkeypatch.setattr(module, "monotonic", lambda: time.monotonic() + 1_800)
        return rows

    report = run(app)
    assert report is not None
    assert not report.finished
    pause, _ = app.databases["default"].run(turn.peek, EVERY)
    assert 1_700 < pause <= 1_900  # as long as its run
    assert count(engine, small) == 0
    assert count(engine, schema.job) == 2_500


def test_the_first_sweep_is_a_minute_after_the_start(
    app: App, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # contract: N3
    backlog(engine, 3)
    slept: list[tuple[float, int]] = []

    class EnoughError(Exception): ...

    async def sleeps(seconds: float) -> None:
        slept.append((seconds, count(engine, schema.job)))
        if len(slept) == 2:
            raise EnoughError

    async def serve() -> None:
        try:
            await made(app).run()
        finally:
            await app.aclose()

    monkeypatch.setattr(sweeper, "asyncio", SimpleNamespace(sleep=sleeps))
    with pytest.raises(EnoughError):
        asyncio.run(serve())
    assert slept == [(60.0, 3), (sweeper.LONGEST_PAUSE_S, 0)]  # then it looks whose turn it is, within the hour


# --- through failures -------------------------------------------------------------------------------------------------


def test_a_sweep_that_is_stopped_at_any_step_goes_on_with_the_next(
    app: App, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # contract: N3, N8
    hit = faults.hit
    stopped = 0
    while True:
        backlog(engine, 530)
        backlog(engine, 3, "dead")
        left = stopped

        def at_the_next(point: str) -> None:
            nonlocal left
            if point == "sweeper":
                left -= 1
                if left < 0:
                    raise OSError("cut off")

        monkeypatch.setattr(faults, "hit", at_the_next)
        try:
            report = run(app)
        except OSError:
            stopped += 1
            monkeypatch.setattr(faults, "hit", hit)
            with engine.begin() as conn:  # a killed one's lease ends by itself
                conn.execute(schema.sweep.update().values(lease=None))
            assert run(app) is not None
        else:
            assert report is not None
            break
        with engine.begin() as conn:
            assert conn.execute(sa.select(schema.job.c.state).distinct()).scalars().all() == ["dead"]
            conn.execute(schema.job.delete())
    assert stopped >= 6


def test_a_worker_sweeps_and_says_that_it_does(
    app: App, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # contract: N3, N8, H1
    # case: C22
    monkeypatch.setattr(sweeper, "FIRST_S", 0.01)
    whole, failures = sweeper.peek, [OperationalError("x", {}, Exception("gone")), TimeoutError(), OSError()] * 2
    monkeypatch.setattr(sweeper, "peek", lambda *args: whole(*args) if not failures else raises(failures.pop()))
    backlog(engine, 700)
    with caplog.at_level(logging.INFO, "rowlock"), app.worker_thread():
        wait_until(lambda: count(engine, schema.job) == 0, 20, lambda: "the backlog to go")
        wait_until(lambda: "swept" in caplog.text, 10, lambda: caplog.text)
        loops = app.health()["loops"]
        assert loops["sweeper"]["beat"] is not None
        wait_until(lambda: app.health()["loops"]["sweeper"]["working"], 10, lambda: str(app.health()))
    assert caplog.text.count("swept") == 1
    assert "700 of rowlock_job" in caplog.text


def raises(error: BaseException) -> Any:
    raise error


def test_nothing_to_do_is_nothing_to_say_and_a_violation_is_said_once(
    app_factory: Callable[..., App], database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    # contract: N5, N8
    settings = {"database": {"default": {"url": database.url}}, "retention": {"overrides": {"rowlock_job": "never"}}}
    app = app_factory(settings=settings)

    async def thrice() -> list[SweepReport | None]:
        one = made(app)
        try:
            return [await one.run_once() for _ in range(3)]
        finally:
            await app.aclose()

    with caplog.at_level(logging.INFO, "rowlock"):
        reports = asyncio.run(thrice())
    assert [len(report.violations) for report in reports if report is not None] == [1, 1, 1]
    assert len(caplog.records) == 1
    assert "retention.overrides.rowlock_job" in caplog.text


@pytest.mark.databases("sqlite", reason="C32: one file, one lock")
def test_a_locked_file_is_waited_for(
    app_factory: Callable[..., App], database: Database, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # contract: K2, N3
    # case: C32
    monkeypatch.setattr(sweeper, "FIRST_S", 0.01)
    settings = {"database": {"default": {"url": database.url}}, "job": {"enqueue_wait_ms": 50}}
    app = app_factory(settings=settings)
    backlog(engine, 10)
    jobs = Jobs()
    jobs.job(max_attempts=1, timeout=5, name="any")(anything)
    app.include(jobs)
    with app.worker_thread():
        with Blocker(database) as blocker:
            blocker.begin()
            wait_until(lambda: app.health()["loops"]["sweeper"]["error"] is not None, 20, lambda: str(app.health()))
        wait_until(lambda: count(engine, schema.job) == 0, 20, lambda: str(app.health()))


def anything() -> None: ...


# --- what comes back --------------------------------------------------------------------------------------------------


def size(path: Path) -> int:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return path.stat().st_size


@pytest.mark.databases("sqlite", reason="N10: a file")
def test_a_file_that_rowlock_made_shrinks(app: App, database: Any, engine: sa.Engine) -> None:
    # contract: N10
    empty = size(database.path)
    backlog(engine, 4_000, payload="x" * 1_000)
    full = size(database.path)
    assert full > empty + 4_000_000
    report = run(app)
    assert report is not None
    assert report.reclaimed > 4_000_000
    assert size(database.path) < empty + 500_000


@pytest.mark.databases("sqlite", reason="N10: a file")
@pytest.mark.parametrize("mode", [0, 1])
def test_a_file_of_somebody_elses_is_left_as_it_is(
    app_factory: Callable[..., App], database: Any, engine: sa.Engine, mode: int
) -> None:
    # contract: N10
    connection = sqlite3.connect(database.path)
    connection.execute(f"PRAGMA auto_vacuum = {mode}")
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    app = app_factory()
    backlog(engine, 2_000)
    report = run(app)
    assert report is not None
    assert (report.swept, report.reclaimed) == (2_000, 0)
    connection = sqlite3.connect(database.path)
    assert connection.execute("PRAGMA auto_vacuum").fetchone()[0] == mode
    connection.close()


def test_rows_that_the_telemetry_database_holds_by_now_are_reported(
    app_factory: Callable[..., App], database: Database, engine: sa.Engine, tmp_path: Path
) -> None:
    # contract: N9
    app = App(databases={"default": database.url, "telemetry": f"sqlite:///{tmp_path / 'telemetry.db'}"})
    try:
        app.migrate()
        with engine.begin() as conn:
            conn.execute(
                schema.audit.insert().values(at=sa.func.now(), action="purge", detail="{}", count=1)
                if engine.dialect.name == "postgresql"
                else sa.text(
                    "INSERT INTO rowlock_audit (at, action, detail, count)"
                    " VALUES ('2090-01-01 00:00:00.000000', 'purge', '{}', 1)"
                )
            )
        report, other = run(app), run(app, "telemetry")
        assert report is not None
        assert other is not None
        [sentence] = report.violations
        assert "rowlock_audit of database 'default' has 1 rows that were left behind" in sentence
        assert other.violations == ()
    finally:
        app.close()
