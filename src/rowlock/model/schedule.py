"""When a job runs by itself, and which minutes one pass of the scheduler makes of a gap (T3, T5, T6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from rowlock.errors import CronError, CronTypeError, DeclarationError, DeclarationTypeError
from rowlock.model.cron import MINUTE, Cron
from rowlock.model.limits import DECLARING, check_span, shown

WINDOW = 256
"""The most minutes that one pass judges (T5)."""
CATCH_UP_MAX = timedelta(days=7)
_LONGEST = timedelta(days=366)
_CHOICES = {"catch_up": ("all", "latest", "none"), "overlap": ("allow", "skip")}
OPTIONS = ("schedule", "catch_up", "catch_up_max", "overlap")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A job's schedule: its minutes, and what is done about those that were missed."""

    cron: Cron
    catch_up: str
    """all, latest or none."""
    catch_up_max: timedelta
    """How far "all" looks back."""
    overlap: str
    """allow, or skip: no occurrence while the previous one is pending or running."""


def read_schedule(options: Mapping[str, object], *, job: str) -> Schedule | None:
    """Check a job's schedule and the options beside it; `job` begins each refusal. None: it has none.

    Raises DeclarationError, DeclarationTypeError for a wrong kind. (J1, J5, T1, T3, T6)
    """
    given = {option: value for option in OPTIONS if (value := options.get(option)) is not None}
    if not given:
        return None
    if "schedule" not in given:
        first = next(iter(given))
        raise DeclarationError(
            f"{job}: {first}={shown(given[first])} is about a schedule, and the job has none (T3); "
            f'give schedule="0 9 * * 1-5", or leave {first} out'
        )
    for option, choices in _CHOICES.items():
        if (value := given.get(option, choices[0])) not in choices:
            kind = DeclarationError if isinstance(value, str) else DeclarationTypeError
            raise kind(f"{job}: {option} is {shown(value)} (T6); it is one of {', '.join(choices)}")
    catch_up = str(given.get("catch_up", "all"))
    if "catch_up_max" in given and catch_up != "all":
        raise DeclarationError(
            f'{job}: catch_up_max says how far catch_up="all" looks back, and catch_up is {catch_up!r} (T6); '
            f"leave catch_up_max out"
        )
    return Schedule(
        cron=_cron(given["schedule"], job),
        catch_up=catch_up,
        catch_up_max=check_span(
            given.get("catch_up_max", CATCH_UP_MAX),
            what=f"{job}: catch_up_max", low=MINUTE, high=_LONGEST, rule="T6", refuse=DECLARING,
        ),
        overlap=str(given.get("overlap", "allow")),
    )  # fmt: skip


def _cron(value: object, job: str) -> Cron:
    if isinstance(value, Cron):
        return value
    try:
        return Cron(value)  # pyright: ignore[reportArgumentType] - it says what it takes
    except CronTypeError as error:
        raise DeclarationTypeError(f"{job}: schedule: {error}") from None
    except CronError as error:
        raise DeclarationError(f"{job}: schedule: {error}") from None


# --- what one pass does ---------------------------------------------------------------------------------------


class Plan(NamedTuple):
    """One pass: the minutes that get a record, where the cursor goes, and how many minutes are left out for ever."""

    minutes: list[datetime]
    cursor: datetime
    left_out: int


def floor_minute(moment: datetime) -> datetime:
    """The minute that an instant is in, in UTC."""
    return moment.astimezone(UTC).replace(second=0, microsecond=0)


def due_at(schedule: Schedule, last: datetime) -> datetime | None:
    """The first minute that is not made yet; None if the calendar has no other."""
    return next(schedule.cron.between(last, None), None)


def plan(schedule: Schedule, last: datetime, now: datetime) -> Plan | None:
    """What a pass at `now` does with a cursor that stands at `last`; None: nothing, not even a write.

    A cursor stays where it is while no minute matches: to move it would be a write a minute for each schedule. A
    clock behind the cursor does nothing (T6).
    """
    current = floor_minute(now)
    first = next(schedule.cron.between(last, current), None)
    if first is None:
        return None
    if schedule.catch_up == "all":
        return _all(schedule, last, current)
    newest = schedule.cron.previous(current + MINUTE)
    missed = schedule.catch_up == "none" and newest < current
    made = [] if missed else [newest]
    return Plan(made, current, schedule.cron.count(last, current) - len(made))


def _all(schedule: Schedule, last: datetime, current: datetime) -> Plan:
    """The first stretch of 256 minutes, counted from the cursor, in which something matches."""
    cron = schedule.cron
    start = max(last, _back(current, schedule.catch_up_max))
    left_out = cron.count(last, start) if start > last else 0
    first = next(cron.between(start, current), None)
    if first is None:
        return Plan([], current, left_out)
    empty = (first - start - MINUTE) // (WINDOW * MINUTE)
    end = min(start + (empty + 1) * WINDOW * MINUTE, current)
    more = next(cron.between(end, current), None) is not None
    return Plan(list(cron.between(start, end)), end if more else current, left_out)


def _back(moment: datetime, span: timedelta) -> datetime:
    return EPOCH if moment - EPOCH < span else floor_minute(moment - span)
