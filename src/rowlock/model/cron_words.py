"""A cron's parsed fields in words (T8)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

from rowlock.model.cron_fields import FIELDS

_MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November")
MONTHS = ("", *_MONTHS, "December")
WEEKDAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
MOST_TIMES = 6
"""So many times of day are listed one by one."""


def describe(fields: Sequence[frozenset[int]]) -> str:
    """When it is, in words; it says which rule holds if both day fields are restricted (T2)."""
    minutes, hours, days, months, weekdays = (sorted(values) for values in fields)
    parts = [_times(minutes, hours), _days(days, weekdays)]
    if len(months) < FIELDS[3].size:
        parts.append(f"in {listed(months, lambda month: MONTHS[month])}")
    return f"{' '.join(filter(None, parts))} (UTC)"


def _times(minutes: list[int], hours: list[int]) -> str:
    if len(minutes) * len(hours) <= MOST_TIMES:
        return f"at {_joined([f'{hour:02}:{minute:02}' for hour, minute in product(hours, minutes)])}"
    all_hours = len(hours) == FIELDS[1].size
    if minutes == [0] and (step := 1 if all_hours else _step(hours, FIELDS[1].size)) is not None:
        return "every hour" if step == 1 else f"every {step} hours"
    if len(minutes) == FIELDS[0].size:
        within = "every minute"
    elif (step := _step(minutes, FIELDS[0].size)) is not None:
        within = f"every {step} minutes"
    else:
        within = f"at minute{'' if len(minutes) == 1 else 's'} {listed(minutes, str)}"
        if all_hours:
            return f"{within} of every hour"
    if all_hours:
        return within
    return f"{within} of the hour{'' if len(hours) == 1 else 's'} {listed(hours, str)}"


def _step(values: Sequence[int], size: int) -> int | None:
    """The distance, if they are evenly spread over the whole from its begin on."""
    if values[0] or len(values) < 2:
        return None
    step = values[1]
    return step if size % step == 0 and list(values) == list(range(0, size, step)) else None


def _days(days: Sequence[int], weekdays: Sequence[int]) -> str:
    of_month = f"on day{'' if len(days) == 1 else 's'} {listed(days, str)} of the month"
    of_week = f"on {listed(weekdays, lambda day: WEEKDAYS[day])}"
    if len(days) < FIELDS[2].size and len(weekdays) < FIELDS[4].size:
        return f"{of_month} and also {of_week} (one of the two is enough)"
    if len(days) < FIELDS[2].size:
        return of_month
    return of_week if len(weekdays) < FIELDS[4].size else ""


def listed(values: Sequence[int], word: Callable[[int], str]) -> str:
    """Numbers as words, three and more in a row as "a to b"."""
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    words: list[str] = []
    for run in runs:
        words += [f"{word(run[0])} to {word(run[-1])}"] if len(run) > 2 else [word(value) for value in run]
    return _joined(words)


def _joined(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"
