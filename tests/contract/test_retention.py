"""Retention of Rowlock's own tables: who goes, who stays, at which age (N2, N3, N5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from rowlock import App, Context, Jobs, State
from rowlock.store import schema
from rowlock.store.lifecycles import OWN, SWEPT_STATES
from rowlock.testing import TestApp
from support.rows import NOW

DAY, HOUR, MS = timedelta(days=1), timedelta(hours=1), timedelta(milliseconds=1)


@pytest.fixture
def case(app_factory: Callable[..., App], jobs: Jobs, ping: Any, engine: sa.Engine) -> Iterator[TestApp]:
    app = app_factory(jobs)
    with TestApp(app, engine=engine, now=NOW) as made:
        yield made


def add(case: TestApp, state: str, *, age: timedelta, ended: timedelta | None = None, **columns: Any) -> int:
    """A record as its row would be, created `age` ago and ended `ended` ago."""
    row: dict[str, Any] = {
        "job": "ping", "fingerprint": "f" * 64, "payload": "null", "queue": "default", "priority": 100, "state": state,
        "run_at": NOW - age, "attempt": 1, "max_attempts": 3, "timeout_ms": 1_000, "created_at": NOW - age,
        "handed_back": 0, "finished_at": None if ended is None else NOW - ended,
        "lease": NOW + HOUR if state == "running" else None,
    }  # fmt: skip
    with case.engine().begin() as conn:
        made = conn.execute(schema.job.insert().values(row | columns))
        return made.inserted_primary_key[0]


def left(case: TestApp) -> set[int]:
    with case.engine().connect() as conn:
        return set(conn.execute(sa.select(schema.job.c.id)).scalars())


def test_every_state_and_every_table_of_ones_own_has_its_place() -> None:
    # contract: N2, S3
    # case: C78
    never = {State.PENDING, State.RUNNING, State.DEAD, State.BLOCKED}
    assert set(SWEPT_STATES) | never == set(State)
    assert not set(SWEPT_STATES) & never
    assert set(schema.metadata.tables) <= set(OWN)


@pytest.mark.parametrize("state", list(State))
def test_ten_years_take_the_succeeded_and_cancelled_and_nobody_else(case: TestApp, state: State) -> None:
    # contract: N2
    # case: C78, C79
    ended = None if state in (State.PENDING, State.RUNNING) else 3_650 * DAY
    id_ = add(case, state, age=3_651 * DAY, ended=ended)
    report = case.sweep()
    assert left(case) == (set() if state in SWEPT_STATES else {id_})
    assert report.swept == len(SWEPT_STATES) - len([each for each in SWEPT_STATES if each is not state])
    assert (report.skipped, report.errors, report.violations, report.finished) == (0, (), (), True)


@pytest.mark.parametrize("state", SWEPT_STATES)
def test_a_record_goes_seven_days_after_its_creation_and_an_hour_after_its_finish(case: TestApp, state: State) -> None:
    # contract: N2
    # case: C78
    week = 7 * DAY
    gone = {
        add(case, state, age=week, ended=HOUR), add(case, state, age=week + MS, ended=week),
        add(case, state, age=30 * DAY, ended=HOUR),
    }  # fmt: skip
    stay = {
        add(case, state, age=week - MS, ended=HOUR + MS), add(case, state, age=week, ended=HOUR - MS),
        add(case, state, age=100 * DAY, ended=HOUR - MS), add(case, state, age=100 * DAY, ended=-DAY),
    }  # fmt: skip
    report = case.sweep()
    assert left(case) == stay
    assert report.swept == len(gone)
    case.advance(HOUR)
    case.sweep()
    assert len(left(case)) == 1  # the one that says that it ends tomorrow
    case.advance(days=8)
    case.sweep()
    assert left(case) == set()


def test_sixty_days_of_a_record_a_day_never_make_more_than_eight(case: TestApp, ping: Any) -> None:
    # contract: N2, N3
    most = 0
    for _ in range(60):
        ping.enqueue()
        assert case.drain() == 1
        case.sweep()
        most = max(most, len(left(case)))
        case.advance(DAY)
    assert most <= 8
    assert most >= 7


def test_a_replayed_record_is_not_swept_by_its_old_age_before_it_ran_again(case: TestApp, ping: Any) -> None:
    # contract: N2, O3
    done = ping.enqueue()
    with case.engine().begin() as conn:
        conn.execute(schema.job.update().values(state="dead", finished_at=NOW, attempt=3))
    case.advance(days=400)
    assert case.sweep().swept == 0
    case.records.replay(done.id)
    assert case.sweep().swept == 0
    assert case.drain() == 1
    assert case.records.get(done.id).state is State.SUCCEEDED
    assert case.sweep().swept == 0  # it ended just now
    case.advance(HOUR)
    assert case.sweep().swept == 1


def test_a_record_scheduled_far_ahead_is_not_swept_before_it_ran(case: TestApp, ping: Any) -> None:
    # contract: N2
    done = ping.enqueue(delay=timedelta(days=30))
    for _ in range(30):
        assert case.drain() == 0
        assert case.sweep().swept == 0
        case.advance(DAY)
    assert case.drain() == 1
    assert case.sweep().swept == 0
    case.advance(HOUR - MS)
    assert case.sweep().swept == 0
    case.advance(MS)
    assert case.sweep().swept == 1
    assert done.id not in left(case)


def test_what_ended_well_stays_so_whatever_is_swept(case: TestApp, jobs: Jobs) -> None:
    # contract: N2, L1
    # case: C07
    failed: list[Any] = []
    case.app.on_failure(lambda error, ctx: failed.append(error))
    done = [jobs_ping.id for jobs_ping in case.app.jobs["ping"].enqueue_many([None] * 50)]
    assert case.drain() == 50
    for _ in range(10):
        case.sweep()
        case.drain()
    assert {case.records.get(id_).state for id_ in done} == {State.SUCCEEDED}
    assert failed == []


def test_records_stand_at_an_instant_by_the_thousand(case: TestApp) -> None:
    # contract: N3
    row = {
        "job": "ping", "fingerprint": "f" * 64, "payload": "null", "queue": "default", "priority": 100,
        "state": "succeeded", "run_at": NOW - 8 * DAY, "attempt": 1, "max_attempts": 3, "timeout_ms": 1_000,
        "created_at": NOW - 8 * DAY, "handed_back": 0, "finished_at": NOW - 8 * DAY,
    }  # fmt: skip
    with case.engine().begin() as conn:
        for _ in range(12):
            conn.execute(schema.job.insert(), [row] * 1_000)
    keep = add(case, "succeeded", age=8 * DAY, ended=timedelta(0))
    report = case.sweep()
    assert report.swept == 12_000
    assert left(case) == {keep}


# --- the window of the settings ---------------------------------------------------------------------------------------


def retained(factory: Callable[..., App], database: Any, **overrides: str) -> App:
    settings = {"database": {"default": {"url": database.url}}, "retention": {"overrides": overrides}}
    return factory(settings=settings)


@pytest.mark.parametrize(("text", "days"), [("14d", 14), ("1d", 1), ("2w", 14), ("never", 7), ("0d", 7), ("-1d", 7)])
def test_an_override_changes_the_window_or_is_rejected(
    app_factory: Callable[..., App], database: Any, text: str, days: int
) -> None:
    # contract: N5
    app = retained(app_factory, database, rowlock_job=text)
    [planned] = [each for each in app.retention.plan() if each.table == "rowlock_job"]
    assert planned.window == timedelta(days=days)
    assert planned.declared == timedelta(days=7)
    rejected = days == 7
    assert (planned.violation is not None) == rejected
    assert len(app.retention.violations()) == rejected
    if rejected:
        assert text in str(planned.violation)


def test_an_override_of_a_table_without_a_life_cycle_is_a_violation(
    app_factory: Callable[..., App], database: Any
) -> None:
    # contract: N5
    app = retained(app_factory, database, nobody="7d", rowlock_meta="7d")
    [unknown, record] = app.retention.violations()
    assert "nobody" in unknown
    assert "for ever" in record


def test_old_announcements_go_by_the_sweep(case: TestApp) -> None:
    # contract: N3, S7
    rows = [
        {"pair": f"{n:064}", "job": "old", "fingerprint": "f", "announced_at": NOW - age}
        for n, age in enumerate((29 * DAY, 30 * DAY, 31 * DAY))
    ]
    with case.engine().begin() as conn:
        conn.execute(schema.program.insert(), rows)
    assert case.sweep().swept == 2
    with case.engine().connect() as conn:
        assert len(conn.execute(sa.select(schema.program)).all()) == 1


def test_what_operators_did_is_kept_for_ninety_days(case: TestApp) -> None:
    # contract: O6
    rows = [
        {"at": NOW - age, "action": "purge", "detail": "{}", "count": 1, "by": None}
        for age in (90 * DAY - MS, 90 * DAY, 91 * DAY)
    ]
    with case.engine().begin() as conn:
        conn.execute(schema.audit.insert(), rows)
    assert case.sweep().swept == 2


async def test_a_sweep_from_a_coroutine(case: TestApp) -> None:
    # contract: X1
    add(case, "succeeded", age=8 * DAY, ended=DAY)
    assert (await case.asweep()).swept == 1


def test_a_sweep_is_told_once_a_table(case: TestApp) -> None:
    # contract: H2, N8
    told: list[Any] = []
    case.app.on("swept")(told.append)
    case.sweep()
    assert told == []
    for _ in range(3):
        add(case, "succeeded", age=8 * DAY, ended=DAY)
    case.sweep()
    [event] = told
    assert (event.name, event.outcome, event.count) == ("swept", "rowlock_job", 3)


def test_a_handler_may_run_while_rows_are_swept(case: TestApp, jobs: Jobs) -> None:
    # contract: N2
    @jobs.job(max_attempts=1, timeout=30, name="looks")
    def looks(ctx: Context) -> None: ...

    add(case, "succeeded", age=8 * DAY, ended=DAY)
    looks.enqueue()
    assert case.drain() == 1
    assert case.sweep().swept == 1
