"""Schedules on every database: first sight, catching up, overlap, renames, changes, and what operators do (T3-T8)."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from rowlock import (
    App,
    Context,
    Cron,
    Dead,
    FilterError,
    InvalidState,
    Jobs,
    NotFound,
    ScheduleInfo,
    ScheduleState,
    StartRefused,
)
from rowlock.runtime import start
from rowlock.store import cursors, schema
from rowlock.store.database import Database
from rowlock.testing import TestApp, fault
from support.races import Blocker
from support.waiting import wait_until_async

MINUTE = timedelta(minutes=1)
START = datetime(2027, 3, 1, 12, 0, 20, tzinfo=UTC)
POLICY: dict[str, Any] = {"max_attempts": 3, "timeout": 30}


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"2027-03-{text}").replace(tzinfo=UTC)


class Office:
    """An application with scheduled jobs, its open case, and the minutes for which their handlers ran."""

    def __init__(self, engine: sa.Engine, now: datetime = START) -> None:
        self.engine = engine
        self.ran: list[tuple[str, datetime]] = []
        self.jobs = Jobs()
        self.app = App("sqlite:////nowhere/at/all.db", include=[self.jobs])
        self.case = TestApp(self.app, engine=engine, now=now)

    def schedule(self, cron: str, name: str = "tick", **options: Any) -> Any:
        ran = self.ran

        @self.jobs.job(**{**POLICY, **options}, name=name, schedule=cron)
        async def tick(ctx: Context) -> None:
            ran.append((ctx.job, ctx.run_at))

        return tick

    @property
    def db(self) -> Database:
        return self.case.databases["default"]

    def look(self) -> cursors.Look:
        return self.db.run(cursors.read)

    def cursor(self, name: str = "tick") -> cursors.Cursor:
        return self.look().cursors[name]

    def rows(self) -> list[Any]:
        with self.engine.connect() as connection:
            return list(connection.execute(sa.select(schema.job).order_by(schema.job.c.id)))

    def minutes(self) -> list[datetime]:
        return [row.run_at for row in self.rows()]

    def make(self, job: Any) -> cursors.Made | None:
        """One pass of one schedule."""
        return self.db.run(cursors.materialise, job, self.look())


@pytest.fixture
def office(engine: sa.Engine) -> Iterator[Office]:
    made = Office(engine)
    with made.case:
        yield made


def another(office: Office, *jobs: tuple[str, str, dict[str, Any]]) -> Office:
    """Another program on the same database, as it is, at the same time."""
    made = Office(office.engine, now=office.case.now)
    made.case._databases = {"default": office.db}
    for cron, name, options in jobs:
        made.schedule(cron, name, **options)
    return made


async def starts(office: Office) -> None:
    """What a start looks at, on the case's database."""
    with office.app._swap({"default": office.db}, office.app.settings):
        await start._refuse_changed(office.app, office.db)


# --- first sight, and each minute once (T3-T5) ------------------------------------------------------------------------


def test_the_first_sight_replays_nothing_not_even_the_current_minute(office: Office) -> None:
    # contract: T4, T3
    office.schedule("* * * * *")
    assert office.case.drain() == 0
    cursor = office.cursor()
    assert cursor.last_minute == at("01 12:00")
    assert cursor.updated_at == START
    assert cursor.fingerprint == Cron("* * * * *").fingerprint
    assert (cursor.last_run_at, cursor.last_id) == (None, None)
    office.case.advance(39)
    assert office.case.drain() == 0
    office.case.advance(1)
    assert office.case.drain() == 1
    assert office.ran == [("tick", at("01 12:01"))]


def test_a_record_is_due_at_its_minute_and_has_the_jobs_policy(office: Office) -> None:
    # contract: T5, S2, R7; case: C75 (the width of a stored minute)
    tick = office.schedule("30 12 * * *", queue="cron", priority=7, max_attempts=9, timeout=2.5)
    office.case.drain()
    office.case.advance(hours=1)
    assert office.make(tick) is not None
    [row] = office.rows()
    assert (row.job, row.queue, row.priority, row.max_attempts, row.timeout_ms) == ("tick", "cron", 7, 9, 2_500)
    assert (row.run_at, row.created_at, row.state, row.key) == (at("01 12:30"), office.case.now, "pending", None)
    assert (row.fingerprint, row.payload) == (tick.wire.fingerprint, "null")
    with office.engine.connect() as connection:
        by_hand = connection.exec_driver_sql("SELECT run_at FROM rowlock_job").scalar_one()
    if isinstance(by_hand, str):
        assert by_hand == "2027-03-01 12:30:00.000000"
    assert office.case.drain() == 1
    assert office.ran == [("tick", at("01 12:30"))]


def test_the_cursors_are_plain_rows(office: Office) -> None:
    # contract: T3, S1
    office.schedule("0 9 * * *", "daily")
    office.case.drain()
    with office.engine.connect() as connection:
        statement = "SELECT name, fingerprint, last_minute, updated_at FROM rowlock_cursor"
        name, fingerprint, last, updated = connection.exec_driver_sql(statement).one()
    assert (name, len(fingerprint)) == ("daily", 64)
    if isinstance(last, str):
        assert (last, updated) == ("2027-03-01 12:00:00.000000", "2027-03-01 12:00:20.000000")
    else:
        assert last.replace(tzinfo=UTC) == at("01 12:00") or last == at("01 12:00")


@pytest.mark.parametrize("name", ["n" * 1024, "é" * 512, "Tick", "tick ", "日本語"])
def test_a_name_of_any_shape_has_a_cursor_of_its_own(office: Office, name: str) -> None:
    # contract: J4, T3: at most 1,024 bytes, told apart byte for byte
    office.schedule("* * * * *", name)
    office.schedule("* * * * *", "tick")
    office.case.drain()
    assert set(office.look().cursors) == {name, "tick"}
    office.case.advance(60)
    assert office.case.drain() == 2
    assert office.cursor(name).last_minute == office.cursor("tick").last_minute == at("01 12:01")


def test_a_pass_judges_256_minutes_and_the_rest_follows(office: Office) -> None:
    # contract: T5
    every = office.schedule("* * * * *", "every")
    some = office.schedule("*/5 * * * *", "some")
    office.case.drain()
    office.case.advance(minutes=600)
    made = [office.make(every), office.make(every), office.make(every), office.make(every)]
    assert [each and len(each.ids) for each in made] == [256, 256, 88, None]
    assert office.minutes() == [at("01 12:00") + n * MINUTE for n in range(1, 601)]
    sizes = [office.make(some), office.make(some), office.make(some), office.make(some)]
    assert [each and len(each.ids) for each in sizes] == [51, 51, 18, None]
    assert office.cursor("some").last_minute == office.cursor("every").last_minute == at("01 22:00")


def test_a_cursor_after_one_pass_stands_256_minutes_further(office: Office) -> None:
    # contract: T5
    tick = office.schedule("*/5 * * * *")
    office.case.drain()
    office.case.advance(minutes=600)
    office.make(tick)
    assert office.cursor().last_minute == at("01 12:00") + 256 * MINUTE


def test_minutes_in_which_nothing_matches_cost_no_write_and_no_pass(office: Office) -> None:
    # contract: T5, T6
    tick = office.schedule("0 9 * * *", catch_up_max=timedelta(days=300))
    office.case.drain()
    before = office.cursor()
    office.case.advance(hours=20)
    assert office.make(tick) is None
    assert office.cursor() == before
    office.case.advance(days=50)
    made = office.make(tick)
    assert made is not None
    assert office.minutes() == [at("02 09:00")]
    assert office.case.drain() == 50
    assert office.cursor().last_minute == office.case.now.replace(second=0)


def test_each_minute_is_made_once_whatever_becomes_of_its_record(office: Office) -> None:
    # contract: T5; case: C42
    tick = office.schedule("* * * * *")
    office.case.drain()
    office.case.advance(minutes=5)
    assert office.case.drain() == 5
    with office.engine.begin() as connection:
        connection.execute(schema.job.delete())  # as retention does
    assert office.make(tick) is None
    assert office.case.drain() == 0
    office.case.advance(minutes=1)
    assert office.case.drain() == 1
    assert office.minutes() == [at("01 12:06")]


def test_schedules_of_one_minute_are_records_of_their_own(office: Office) -> None:
    # contract: T5; case: C44. Nor does a caller's key meet one.
    tick = office.schedule("* * * * *", "a")
    office.schedule("* * * * *", "b")
    told: list[Any] = []
    office.app.on("enqueued")(told.append)
    office.case.drain()
    mine = tick.enqueue(key="2027-03-01 12:01")
    office.case.advance(minutes=2)
    assert office.case.drain() == 5
    assert mine.created
    assert sorted(office.ran)[:2] != sorted(office.ran)[2:4]
    assert {row.key for row in office.rows()} == {None, "2027-03-01 12:01"}
    assert sorted((event.id, event.job) for event in told) == [(row.id, row.job) for row in office.rows()]  # H2


def test_a_schedule_fails_and_is_retried_like_any_record(office: Office) -> None:
    # contract: T3, R1
    @office.jobs.job(**POLICY, name="fails", schedule="* * * * *")
    def fails() -> None:
        raise ValueError

    office.case.drain()
    office.case.advance(60)
    assert office.case.drain() == 1
    assert office.rows()[0].state == "pending"
    office.case.advance(20)
    assert office.case.drain() == 1
    assert office.rows()[0].attempt == 2


# --- what was missed (T6) ---------------------------------------------------------------------------------------------


def test_a_slot_in_the_gap_of_a_deploy_is_made_by_the_next_program(office: Office) -> None:
    # contract: T6; case: C39
    office.schedule("0 3 * * *")
    office.case.drain()
    office.case.advance(at("02 02:59") - office.case.now)
    assert office.case.drain() == 0
    office.case.advance(minutes=2)  # nothing runs at 03:00
    later = another(office, ("0 3 * * *", "tick", {}))
    assert asyncio.run(later.case.adrain()) == 1
    assert later.ran == [("tick", at("02 03:00"))]
    assert office.case.drain() == 0


def test_late_is_not_missed(office: Office) -> None:
    # contract: T6; case: C50
    office.schedule("0 * * * *")
    office.case.drain()
    for late in (1.0, 59.0, 60.001, 3_599.0):
        due = office.case.now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
        office.case.advance(due - office.case.now)
        office.case.advance(late)
        assert office.case.drain() == 1
        assert office.ran[-1] == ("tick", due)


@pytest.mark.parametrize(
    ("options", "made", "left_out"),
    [
        ({}, 4 * 7, 4 * 2),
        ({"catch_up": "all", "catch_up_max": timedelta(days=3)}, 4 * 3, 4 * 6),
        ({"catch_up": "all", "catch_up_max": timedelta(days=30)}, 4 * 9, 0),
        ({"catch_up": "all", "catch_up_max": 60}, 0, 4 * 9),
        ({"catch_up": "latest"}, 1, 4 * 9 - 1),
        ({"catch_up": "none"}, 0, 4 * 9),
    ],
)
def test_what_a_gap_leaves(
    office: Office, options: dict[str, Any], made: int, left_out: int, caplog: pytest.LogCaptureFixture
) -> None:
    # contract: T6; case: C40 (the contract's default is to look back 7 days, not the newest alone)
    office.schedule("0 */6 * * *", **options)
    office.case.drain()
    office.case.advance(timedelta(days=9, minutes=30))
    caplog.set_level(logging.WARNING, "rowlock")
    assert office.case.drain() == made
    assert [minute for _, minute in office.ran] == [
        at("10 12:00") - timedelta(hours=6 * n) for n in reversed(range(made))
    ]  # fmt: skip
    assert office.cursor().last_minute == at("10 12:30")
    assert office.case.drain() == 0
    lines = [record.getMessage() for record in caplog.records if "missed" in record.getMessage()]
    sentence = (
        f"job 'tick': {left_out} occurrences since 2027-03-01 12:00Z were missed, and are left out by catch_up (T6)"
    )
    assert lines == ([sentence] if left_out else [])


@pytest.mark.parametrize("catch_up", ["latest", "none"])
def test_a_gap_of_years_is_one_pass_without_all(office: Office, catch_up: str) -> None:
    # contract: T6
    tick = office.schedule("* * * * *", catch_up=catch_up)
    office.case.drain()
    office.case.advance(timedelta(days=3_000, minutes=1))
    made = office.make(tick)
    assert made is not None
    assert len(made.ids) == 1  # the current minute is not missed
    assert office.make(tick) is None
    assert made.left_out == 3_000 * 1_440


@pytest.mark.parametrize("catch_up", ["all", "latest", "none"])
def test_without_a_gap_every_policy_makes_every_minute(office: Office, catch_up: str) -> None:
    # contract: T6
    office.schedule("*/2 * * * *", catch_up=catch_up)
    office.case.drain()
    for _ in range(10):
        office.case.advance(60)
        office.case.drain()
    assert [minute for _, minute in office.ran] == [at("01 12:00") + n * MINUTE for n in range(2, 11, 2)]


def test_a_clock_behind_the_cursor_does_nothing(office: Office) -> None:
    # contract: T6: years forth and back. What was made in the future is not made again when its time comes.
    tick = office.schedule("0 0 * * *")
    office.case.drain()
    there = office.case.now
    office.case.advance(timedelta(days=3_650))
    assert office.case.drain() == 7
    future = office.cursor()
    office.case._clock._now = there  # the server's clock is set right again
    assert office.make(tick) is None
    assert office.case.drain() == 0
    assert office.cursor() == future
    office.case.advance(timedelta(days=3_649, hours=23))
    assert office.case.drain() == 0
    office.case.advance(timedelta(days=1))
    assert office.case.drain() == 1


def test_removed_for_a_week_and_added_again(office: Office) -> None:
    # contract: T6, T7
    office.schedule("0 */6 * * *")
    office.case.drain()
    office.case.advance(timedelta(days=7))
    without = another(office)
    assert asyncio.run(without.case.adrain()) == 0
    assert [info.state for info in without.case.schedules.list()] == [ScheduleState.GONE]
    assert office.case.drain() == 4 * 7
    assert len(set(office.minutes())) == 4 * 7
    office.case.advance(timedelta(days=7))
    without.case.schedules.forget("tick")
    again = another(office, ("0 */6 * * *", "tick", {}))
    again.case._began = again.case.now
    assert asyncio.run(again.case.adrain()) == 0  # forgotten: a first sight again
    assert again.cursor().last_minute == office.case.now.replace(second=0)


# --- overlap (T6) -----------------------------------------------------------------------------------------------------


def test_skip_makes_nothing_while_the_previous_occurrence_is_active(office: Office) -> None:
    # contract: T6
    tick = office.schedule("* * * * *", overlap="skip")
    office.case.drain()
    office.case.advance(minutes=3)
    made = office.make(tick)
    assert made is not None
    assert (len(made.ids), made.skipped) == (1, 2)
    office.case.advance(minutes=1)
    again = office.make(tick)
    assert again is not None
    assert (len(again.ids), again.skipped) == (0, 1)
    assert office.minutes() == [at("01 12:01")]
    assert office.case.drain() == 1
    assert office.case.drain() == 0  # what was skipped stays skipped
    office.case.advance(minutes=1)
    assert office.case.drain() == 1
    assert [minute for _, minute in office.ran] == [at("01 12:01"), at("01 12:05")]


@pytest.mark.parametrize(
    ("state", "made"), [("running", 0), ("succeeded", 1), ("dead", 1), ("blocked", 1), ("cancelled", 1), ("gone", 1)]
)
def test_skip_looks_at_the_state_of_the_previous_occurrence(office: Office, state: str, made: int) -> None:
    # contract: T6
    tick = office.schedule("* * * * *", overlap="skip")
    office.case.drain()
    tick.enqueue()  # not an occurrence: it is no reason to skip
    office.case.advance(minutes=1)
    first = office.make(tick)
    assert first is not None
    with office.engine.begin() as connection:
        where = schema.job.c.id == first.ids[0]
        if state == "gone":
            connection.execute(schema.job.delete().where(where))
        else:
            lease = office.case.now + timedelta(hours=1)
            connection.execute(schema.job.update().where(where).values(state=state, lease=lease))
    office.case.advance(minutes=1)
    second = office.make(tick)
    assert second is not None
    assert (len(second.ids), second.skipped) == (made, 1 - made)


def test_allow_makes_each_of_them(office: Office) -> None:
    # contract: T6
    tick = office.schedule("* * * * *")
    office.case.drain()
    office.case.advance(minutes=1)
    office.make(tick)
    office.case.advance(minutes=1)
    office.make(tick)
    assert office.minutes() == [at("01 12:01"), at("01 12:02")]


def test_an_occurrence_that_waits_for_its_retry_counts_as_active(office: Office) -> None:
    # contract: T6
    @office.jobs.job(**POLICY, name="fails", schedule="* * * * *", overlap="skip")
    def fails() -> Dead | None:
        if len(office.rows()) == 1 and office.rows()[0].attempt == 1:
            raise ValueError
        return Dead("enough")

    office.case.drain()
    office.case.advance(60)
    assert office.case.drain() == 1
    with office.engine.begin() as connection:
        connection.execute(schema.job.update().values(run_at=office.case.now + timedelta(minutes=5)))
    office.case.advance(60)
    assert office.case.drain() == 0
    assert len(office.rows()) == 1


# --- renamed (J4) -----------------------------------------------------------------------------------------------------


def test_a_renamed_jobs_cursor_follows(office: Office) -> None:
    # contract: J4, T3; case: C58
    office.schedule("0 * * * *", "old")
    office.case.drain()
    office.case.advance(hours=2)
    assert office.case.drain() == 2
    office.case.advance(hours=3)
    renamed = another(office, ("0 * * * *", "new", {"aliases": ("older", "old")}))
    assert asyncio.run(renamed.case.adrain()) == 3
    assert [minute for _, minute in renamed.ran] == [at(f"01 {hour}:00") for hour in (15, 16, 17)]
    assert renamed.cursor("new").last_minute == at("01 17:00")


def test_programs_of_both_names_make_each_minute_once(office: Office) -> None:
    # contract: J4, T5, S7: a rolling deploy, and its way back
    office.schedule("* * * * *", "old")
    office.case.drain()
    renamed = another(office, ("* * * * *", "new", {"aliases": ("old",)}))
    asyncio.run(renamed.case.adrain())
    for turn in range(8):
        office.case.advance(60)
        renamed.case._clock.set(office.case.now)
        asyncio.run((office if turn % 3 else renamed).case.adrain())
        asyncio.run((renamed if turn % 3 else office).case.adrain())
    assert sorted(office.minutes()) == [at("01 12:01") + n * MINUTE for n in range(8)]
    assert {row.job for row in office.rows()} == {"old", "new"}


def test_skip_sees_the_occurrence_that_was_made_under_the_earlier_name(office: Office) -> None:
    # contract: J4, T6
    tick = office.schedule("* * * * *", "old", overlap="skip")
    office.case.drain()
    office.case.advance(60)
    office.make(tick)
    office.case.advance(60)
    renamed = another(office, ("* * * * *", "new", {"aliases": ("old",), "overlap": "skip"}))
    asyncio.run(renamed.case._begin_schedules(office.db))
    made = renamed.make(renamed.app.jobs["new"])
    assert made is not None
    assert (made.ids, made.skipped) == ([], 1)


# --- changed (T7) -----------------------------------------------------------------------------------------------------


def test_a_changed_schedule_fails_the_start_until_it_is_accepted(office: Office) -> None:
    # contract: T7, M5; case: C45
    office.schedule("0 * * * *")
    office.case.drain()
    changed = another(office, ("*/30 * * * *", "tick", {}), ("5 0 29 2 *", "fresh", {}))
    with pytest.raises(StartRefused) as refused:
        asyncio.run(starts(changed))
    message = str(refused.value)
    for part in ("job 'tick'", "test_schedules.py:", "'*/30 * * * *'", "T7", "rowlock schedules accept tick"):
        assert part in message
    assert "fresh" not in message
    office.case.advance(hours=2)
    changed.case._clock.set(office.case.now)
    assert asyncio.run(changed.case.adrain()) == 0  # nothing is made of a cron that nobody accepted
    assert changed.case.schedules.accept("tick", by="ann")
    assert not changed.case.schedules.accept("tick")
    asyncio.run(starts(changed))
    assert changed.cursor().last_minute == at("01 14:00")
    assert asyncio.run(changed.case.adrain()) == 0  # minutes before it was accepted were never its
    office.case.advance(minutes=30)
    changed.case._clock.set(office.case.now)
    assert asyncio.run(changed.case.adrain()) == 1
    assert office.case.drain() == 0  # and the old program makes no more of the old one
    assert changed.ran == [("tick", at("01 14:30"))]


def test_another_spelling_of_the_same_minutes_is_no_change(office: Office) -> None:
    # contract: T3, T7
    office.schedule("0,30 * * * *")
    office.case.drain()
    same = another(office, ("*/30 0-23 1-31 * *", "tick", {"catch_up": "latest", "overlap": "skip"}))
    asyncio.run(starts(same))
    assert not same.case.schedules.accept("tick")


def test_a_changed_schedule_is_refused_under_its_earlier_name_too(office: Office) -> None:
    # contract: T7, J4
    office.schedule("0 * * * *", "old")
    office.case.drain()
    changed = another(office, ("5 * * * *", "new", {"aliases": ("old",)}))
    with pytest.raises(StartRefused, match="job 'new'"):
        asyncio.run(starts(changed))
    asyncio.run(changed.case.adrain())
    assert set(office.look().cursors) == {"old"}
    assert changed.case.schedules.accept("new")
    asyncio.run(starts(changed))
    asyncio.run(changed.case.adrain())
    assert changed.cursor("new").fingerprint == changed.cursor("old").fingerprint == Cron("5 * * * *").fingerprint


async def test_a_worker_does_not_start_with_a_changed_schedule(
    app_factory: Callable[..., App], engine: sa.Engine
) -> None:
    # contract: T7, M5
    jobs = Jobs()
    ran: list[int] = []

    @jobs.job(**POLICY, name="tick", schedule="0 * * * *")
    def tick(ctx: Context) -> None:
        ran.append(ctx.id)

    app = app_factory(jobs)
    tick.enqueue()
    db = app.databases["default"]
    db.run(cursors.begin, [tick], db.run(cursors.read))
    with engine.begin() as connection:
        connection.execute(schema.cursor.update().values(fingerprint="f" * 64))
    with pytest.raises(StartRefused, match="T7"):
        async with app.worker():
            pass
    assert ran == []
    assert await app.schedules.aaccept("tick")
    async with app.worker():
        await wait_until_async(lambda: bool(ran))
    await app.aclose()


def test_who_accepted_and_forgot_is_kept(office: Office) -> None:
    # contract: T7, O6
    office.schedule("0 * * * *")
    office.schedule("0 * * * *", "gone")
    office.case.drain()
    changed = another(office, ("5 * * * *", "tick", {}))
    changed.case.schedules.accept("tick", by="ann")
    changed.case.schedules.forget("gone")
    with office.engine.connect() as connection:
        rows = connection.execute(sa.select(schema.audit).order_by(schema.audit.c.id)).all()
    assert [(row.action, row.detail, row._mapping["by"]) for row in rows] == [
        ("accept", '{"schedule":"tick"}', "ann"),
        ("forget", '{"schedule":"gone"}', None),
    ]


def test_accept_and_forget_join_the_callers_transaction(office: Office) -> None:
    # contract: T7, O2
    office.schedule("0 * * * *")
    office.schedule("0 * * * *", "gone")
    office.case.drain()
    changed = another(office, ("5 * * * *", "tick", {}))
    before = office.look().cursors
    with Session(office.engine) as session:
        changed.case.schedules.accept("tick", connection=session)
        changed.case.schedules.forget("gone", connection=session)
        session.rollback()
    assert office.look().cursors == before
    with Session(office.engine) as session, session.begin():
        changed.case.schedules.accept("tick", connection=session)
        changed.case.schedules.forget("gone", connection=session)
    assert set(office.look().cursors) == {"tick"}
    assert office.cursor().fingerprint == Cron("5 * * * *").fingerprint


def test_what_operators_may_not_do(office: Office) -> None:
    # contract: T7, Z1
    office.schedule("0 * * * *", aliases=("old",))
    schedules = office.case.schedules
    with pytest.raises(NotFound, match="cursor"):
        schedules.accept("tick")  # not seen yet
    office.case.drain()
    for name in ("tick", "old"):
        with pytest.raises(InvalidState, match="not gone"):
            schedules.forget(name)
    with pytest.raises(NotFound, match="no schedule 'nothing'"):
        schedules.accept("nothing")
    with pytest.raises(NotFound, match="no schedule 'nothing'"):
        schedules.forget("nothing")
    with pytest.raises(FilterError):
        schedules.accept("tick", by="")


async def test_the_operations_have_async_doors(office: Office) -> None:
    # contract: T7, T8
    office.schedule("0 * * * *", "gone")
    await office.case.adrain()
    changed = another(office)
    assert [info.name for info in await changed.case.schedules.alist()] == ["gone"]
    await changed.case.schedules.aforget("gone")
    assert await changed.case.schedules.alist() == []
    with pytest.raises(NotFound):
        await changed.case.schedules.aforget("gone")


# --- the list (T8) ----------------------------------------------------------------------------------------------------


def test_the_list_shows_last_next_and_lag(office: Office) -> None:
    # contract: T8; case: C50 (delay is a number)
    office.schedule("0 * * * *")
    [new] = office.case.schedules.list()
    assert (new.state, new.last, new.next, new.lag) == ("new", None, at("01 13:00"), timedelta(0))
    office.case.drain()
    office.case.advance(timedelta(hours=1, minutes=30))
    [late] = office.case.schedules.list()
    assert late == ScheduleInfo(
        "tick", "default", ScheduleState.OK, "0 * * * *", None, at("01 13:00"), timedelta(minutes=30, seconds=20),
        at("01 12:00"),
    )  # fmt: skip
    office.case.drain()
    [done] = office.case.schedules.list()
    assert (done.last, done.next, done.lag) == (at("01 13:00"), at("01 14:00"), timedelta(0))


# --- nothing by halves (T5, C3) ---------------------------------------------------------------------------------------


def test_a_failure_between_insert_and_cursor_undoes_both(office: Office) -> None:
    # contract: T5, C3
    tick = office.schedule("* * * * *")
    office.case.drain()
    office.case.advance(minutes=3)
    before = office.cursor()

    def fail() -> None:
        raise RuntimeError("between")

    with pytest.raises(RuntimeError, match="between"):
        office.db.run(cursors.materialise, tick, office.look(), fail)
    assert office.rows() == []
    assert office.cursor() == before
    with fault("cursor-advanced", RuntimeError("late")), pytest.raises(RuntimeError, match="late"):
        office.case.drain()
    assert office.rows() == []
    assert office.cursor() == before
    assert office.case.drain() == 3


async def test_a_live_scheduler_goes_on_after_a_fault(
    app_factory: Callable[..., App], engine: sa.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    # contract: C3, H1, K2; case: C22, C32
    jobs = Jobs()

    @jobs.job(**POLICY, name="tick", schedule="* * * * *")
    async def tick() -> None: ...

    app = app_factory(jobs)
    _put_back(app, tick, engine, minutes=3)
    error = sa.exc.OperationalError("x", {}, Exception("locked"))
    with fault("scheduler", error), fault("cursor-advanced", ValueError("a defect")):
        try:
            async with app.worker():
                await wait_until_async(lambda: _count(engine) >= 3)
                await wait_until_async(lambda: app.health()["loops"]["scheduler"]["beat"] is not None)
        finally:
            await app.aclose()
    assert len({row.run_at for row in _jobs_of(engine)}) == _count(engine)
    assert "scheduler" in caplog.text


async def test_busy_slots_do_not_delay_the_scheduler(app_factory: Callable[..., App], engine: sa.Engine) -> None:
    # contract: T5, K1; case: C43
    jobs = Jobs()
    release, started = asyncio.Event(), asyncio.Event()

    @jobs.job(**POLICY, name="long")
    async def long() -> None:
        started.set()
        await release.wait()

    @jobs.job(**POLICY, name="tick", schedule="* * * * *")
    async def tick() -> None: ...

    app = app_factory(jobs)
    app.queue("default", workers=1)
    long.enqueue(priority=0)
    _put_back(app, tick, engine, minutes=2)
    async with app.worker():
        await started.wait()
        await wait_until_async(lambda: _count(engine) >= 3)
        assert {row.state for row in _jobs_of(engine) if row.job == "tick"} == {"pending"}
        release.set()
        await wait_until_async(lambda: all(row.state == "succeeded" for row in _jobs_of(engine)))
    await app.aclose()


# --- the test kit (X1) ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["file", "connection"])
def test_a_case_sees_its_schedules_when_it_begins(
    app_factory: Callable[..., App], engine: sa.Engine, place: str
) -> None:
    # contract: X1, T4
    jobs, ran = Jobs(), list[datetime]()

    @jobs.job(**POLICY, name="tick", schedule="0 * * * *", catch_up_max=timedelta(days=1))
    def tick(ctx: Context) -> None:
        ran.append(ctx.run_at)

    app = app_factory(jobs)
    with engine.connect() as connection:
        options: dict[str, Any] = {"connection": connection} if place == "connection" else {}
        with TestApp(app, now=START, **options) as case:
            case.advance(hours=2)
            assert case.drain() == 2
            case.advance(timedelta(days=1_000))
            assert case.drain(limit=5) == 5
            assert case.drain() == 24 - 5
            assert case.schedules.list()[0].lag == timedelta(0)
        connection.rollback()
    assert ran[:2] == [at("01 13:00"), at("01 14:00")]
    assert app.records.counts() == ()


def test_a_handler_that_moves_the_clock_makes_further_minutes_due(office: Office) -> None:
    # contract: X1, X2
    @office.jobs.job(**POLICY, name="long")
    async def long() -> None:
        office.case.advance(minutes=2)

    office.schedule("* * * * *")
    office.case.drain()
    long.enqueue()
    assert office.case.drain() == 3
    assert office.ran == [("tick", at("01 12:01")), ("tick", at("01 12:02"))]


# --- the clock (L2) ---------------------------------------------------------------------------------------------------


def test_no_time_zone_of_the_process_moves_a_minute(
    office: Office, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    # contract: T1, L2; case: C49: the night in which clocks go forward there, and the one in which they go back
    def back() -> None:
        os.environ.pop("TZ", None)
        time.tzset()

    request.addfinalizer(back)
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    office.schedule("30 * * * *", catch_up="latest")
    for night in (datetime(2027, 3, 28, tzinfo=UTC), datetime(2027, 10, 31, tzinfo=UTC)):
        office.case.advance(night - office.case.now)
        office.case.drain()
        office.ran.clear()
        for _ in range(6):
            office.case.advance(hours=1)
            office.case.drain()
        assert [minute for _, minute in office.ran] == [night + timedelta(hours=n, minutes=30) for n in range(6)]


def test_a_thousand_schedules_cost_one_statement_an_idle_pass(office: Office) -> None:
    # contract: T5, K3
    for n in range(1_000):
        office.schedule(f"{n % 60} {n % 24} * * {n % 7}", f"job-{n}")
    office.case.drain()
    scheduler = _scheduler(office)
    asyncio.run(scheduler.run_once())
    sent: list[str] = []
    note = lambda _c, _u, sql, *_a: sent.append(sql)  # noqa: E731
    engine = office.db.engine()
    sa.event.listen(engine, "before_cursor_execute", note)
    try:
        wait = asyncio.run(scheduler.run_once())
    finally:
        sa.event.remove(engine, "before_cursor_execute", note)
    assert len([sql for sql in sent if "rowlock" in sql]) == 1, sent
    assert len(sent) <= 2, sent
    assert 0 < wait <= 60


@pytest.mark.databases("postgresql", "mariadb", reason="T5: SQLite has one writer, and the other waits for its turn")
def test_another_scheduler_that_is_at_it_is_passed_over_in_silence(
    office: Office, database: Any, caplog: pytest.LogCaptureFixture
) -> None:
    # contract: T5; case: C41
    tick = office.schedule("* * * * *")
    office.case.drain()
    office.case.advance(60)
    with Blocker(database) as other:
        other.lock_row("rowlock_cursor", name="tick")
        assert office.make(tick) is None
        assert asyncio.run(_scheduler(office).run_once()) == 0.5
    assert office.case.drain() == 1
    assert "ERROR" not in caplog.text


# --- helpers ----------------------------------------------------------------------------------------------------------


def _scheduler(office: Office) -> Any:
    from rowlock.runtime.events import Events
    from rowlock.runtime.health import Beat
    from rowlock.runtime.outage import Guard, Outage
    from rowlock.runtime.scheduler import Scheduler

    events = Events(office.app.hooks)
    guard = Guard("scheduler", Outage(office.db, events), Beat("scheduler"))
    return Scheduler(
        office.db,
        guard,
        events,
        office.app.meter,
        office.jobs.jobs,
        on_made=lambda _queues: None,
        is_draining=lambda: False,
    )


def _put_back(app: App, job: Any, engine: sa.Engine, *, minutes: int) -> None:
    """A cursor that is some minutes behind the database's clock."""
    db = app.databases["default"]
    db.run(cursors.begin, [job], db.run(cursors.read))
    last = db.run(cursors.read).cursors[job.name].last_minute
    with engine.begin() as connection:
        connection.execute(schema.cursor.update().values(last_minute=last - minutes * MINUTE))


def _jobs_of(engine: sa.Engine) -> list[Any]:
    with engine.connect() as connection:
        return list(connection.execute(sa.select(schema.job)))


def _count(engine: sa.Engine) -> int:
    return len(_jobs_of(engine))
