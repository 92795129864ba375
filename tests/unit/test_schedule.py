"""A job's schedule: what may be declared (T1, T3, T6, J1, J5), and what a pass plans (T5, T6)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rowlock import App, Context, Cron, DeclarationError, DeclarationTypeError, Jobs
from rowlock.model.schedule import Plan, Schedule, plan, read_schedule

POLICY: dict[str, Any] = {"max_attempts": 3, "timeout": 30}
MINUTE = timedelta(minutes=1)
NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)


def declared(**options: Any) -> Any:
    @Jobs().job(**POLICY, **options)
    def job(ctx: Context) -> None: ...

    return job


def test_a_schedule_with_its_defaults() -> None:
    # contract: T3, T6
    job = declared(schedule="0 9 * * 1-5")
    assert job.schedule == Schedule(Cron("0 9 * * 1-5"), "all", timedelta(days=7), "allow")
    assert declared().schedule is None
    assert declared(schedule=None, catch_up=None, catch_up_max=None, overlap=None).schedule is None


def test_every_option_of_a_schedule() -> None:
    # contract: T6
    cron = Cron("* * * * *")
    job = declared(schedule=cron, catch_up="all", catch_up_max=timedelta(days=366), overlap="skip")
    assert job.schedule == Schedule(cron, "all", timedelta(days=366), "skip")
    assert declared(schedule="* * * * *", catch_up_max=60).schedule.catch_up_max == MINUTE
    assert declared(schedule="* * * * *", catch_up="none").schedule.catch_up == "none"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"schedule": "0 9 * * 7"}, r"schedule: cron '0 9 \* \* 7': the day of week is '7'.*\(T1\)"),
        ({"schedule": ""}, "0 fields"),
        ({"schedule": "0 0 31 2 *"}, "never occurs"),
        ({"schedule": "* * * * *", "catch_up": "last"}, "catch_up is 'last'.*all, latest, none"),
        ({"schedule": "* * * * *", "overlap": "wait"}, "overlap is 'wait'.*allow, skip"),
        ({"schedule": "* * * * *", "catch_up_max": 59}, "catch_up_max=59 s is out of bounds.*60 s to 366 d"),
        ({"schedule": "* * * * *", "catch_up_max": timedelta(days=367)}, "out of bounds"),
        ({"schedule": "* * * * *", "catch_up": "latest", "catch_up_max": 60}, "leave catch_up_max out"),
        ({"catch_up": "latest"}, "catch_up='latest' is about a schedule.*none"),
        ({"catch_up_max": 60}, "catch_up_max=60"),
        ({"overlap": "skip"}, "overlap='skip'"),
    ],
)
def test_what_is_refused_names_the_job_the_option_and_the_rule(options: dict[str, Any], says: str) -> None:
    # contract: J1, J5, T1, T3, T6
    with pytest.raises(DeclarationError, match=says) as refused:
        declared(**options)
    assert "test_schedule.py:" in str(refused.value)


@pytest.mark.parametrize(
    "options",
    [
        {"schedule": 5},
        {"schedule": b"* * * * *"},
        {"schedule": "* * * * *", "catch_up": 1},
        {"schedule": "* * * * *", "overlap": True},
        {"schedule": "* * * * *", "catch_up_max": "7d"},
    ],
)
def test_another_kind_of_thing_is_refused(options: dict[str, Any]) -> None:
    # contract: J1, J5
    with pytest.raises(DeclarationTypeError):
        declared(**options)


def test_a_job_with_an_input_has_no_schedule() -> None:
    # contract: T3
    from dataclasses import dataclass

    @dataclass
    class Input:
        n: int

    with pytest.raises(DeclarationError, match=r"schedule='\* \* \* \* \*' is given to a job with an input"):

        @Jobs().job(**POLICY, schedule="* * * * *")
        def job(input: Input) -> None: ...


def test_a_schedule_stands_beside_the_handler() -> None:
    # contract: T3, J8
    with pytest.raises(DeclarationError, match="beside the handler"):
        App().declare("elsewhere", **POLICY, schedule="* * * * *")  # pyright: ignore[reportCallIssue]


# --- one pass ---------------------------------------------------------------------------------------------------------


def schedule(cron: str, **options: Any) -> Schedule:
    made = read_schedule({"schedule": cron, **options}, job="job")
    assert made is not None
    return made


def minutes(*numbers: int) -> list[datetime]:
    return [NOON + n * MINUTE for n in numbers]


@pytest.mark.parametrize("catch_up", ["all", "latest", "none"])
def test_nothing_is_planned_while_nothing_is_due(catch_up: str) -> None:
    # contract: T4, T6
    every = schedule("* * * * *", catch_up=catch_up)
    assert plan(every, NOON, NOON) is None
    assert plan(every, NOON, NOON + timedelta(seconds=59, microseconds=999_999)) is None
    assert plan(every, NOON, NOON - timedelta(days=3_650)) is None
    assert plan(every, NOON, NOON + MINUTE) == Plan(minutes(1), NOON + MINUTE, 0)


@pytest.mark.parametrize("seed", range(3))
def test_passes_one_after_the_other_make_each_minute_of_the_look_back_once(seed: int) -> None:
    # contract: T5, T6: whatever the text, the gap and the look-back
    import random

    rng = random.Random(seed)
    for _ in range(60):
        cron = rng.choice(["* * * * *", "*/7 * * * *", "5 */3 * * *", "0 4 * * *", "1-59/2 9-17 * * 1-5"])
        back = timedelta(minutes=rng.choice([1, 300, 1_440, 10_080]))
        given = schedule(cron, catch_up_max=back)
        now = NOON + timedelta(minutes=rng.randint(0, 20_000), seconds=rng.randint(0, 59))
        current = now.replace(second=0)
        last, made, left_out, judged = NOON, list[datetime](), 0, NOON
        while (one := plan(given, last, now)) is not None:
            assert one.cursor > last
            assert len(one.minutes) <= 256
            if one.minutes:
                assert one.minutes[-1] - one.minutes[0] < 256 * MINUTE
            made, left_out, last, judged = made + one.minutes, left_out + one.left_out, one.cursor, one.cursor
        floor = max(NOON, current - back)
        assert made == list(Cron(cron).between(floor, current)), (cron, now, back)
        assert left_out == Cron(cron).count(NOON, floor)
        assert judged <= current


def test_count_is_the_number_of_minutes() -> None:
    # contract: T6
    import random

    rng = random.Random(7)
    for cron in map(Cron, ["* * * * *", "*/7 3-5 * * *", "0 0 29 2 *", "30 12 1 * 1"]):
        for _ in range(20):
            after = NOON + timedelta(minutes=rng.randint(0, 5_000))
            until = after + timedelta(minutes=rng.randint(0, 5_000))
            assert cron.count(after, until) == len(list(cron.between(after, until)))
    assert Cron("* * * * *").count(NOON, NOON + timedelta(days=36_500)) == 36_500 * 1_440
