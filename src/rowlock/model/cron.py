"""Five fields -> minutes in UTC (T1, T2)."""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from calendar import monthrange
from collections.abc import Iterator
from datetime import MAXYEAR, MINYEAR, UTC, date, datetime, timedelta
from itertools import islice
from typing import overload

from rowlock.errors import CronError, CronTypeError
from rowlock.model.cron_fields import FIELDS, read_fields
from rowlock.model.cron_words import describe
from rowlock.model.limits import Refusals, check_int, shown

MINUTE = timedelta(minutes=1)
COUNT_MAX = 10_000
_FORMAT = b"rowlock-cron-1\n"
_REFUSE = Refusals(CronError, CronTypeError)
_LONGEST_MONTHS = {month: monthrange(2024, month)[1] for month in range(1, 13)}  # of a leap year


class Cron:
    """A cron text of exactly five fields, in UTC (T1): minute, hour, day of month, month, day of week (Sunday is 0).

    A field is `*`, a number, a closed range, one of `*` and a range with a step, or a list of these. If both day
    fields are restricted, a day that either admits matches; a field that admits every value is unrestricted, however
    it is written (T2). At most 512 bytes. Raises CronError for what is none, or never occurs; CronTypeError for
    another kind of thing than text. Two texts with the same meaning field by field are equal.
    """

    __slots__ = ("_hours", "_minutes", "_months", "fields", "fingerprint", "text")

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers need not be typed
            raise CronTypeError(f'cron is {shown(text)}, not a text (T1); give five fields, as "0 9 * * 1-5"')
        self.text = text
        self.fields: tuple[frozenset[int], ...] = read_fields(text)
        """The values that each field admits."""
        self._minutes, self._hours, _, self._months, _ = (sorted(values) for values in self.fields)
        self._refuse_never()
        parsed = "\n".join(",".join(map(str, sorted(values))) for values in self.fields)
        self.fingerprint: str = hashlib.sha256(_FORMAT + parsed.encode()).hexdigest()
        """SHA-256 of the parsed sets, 64 hexadecimal digits: the same for every spelling of them (T3)."""

    def __repr__(self) -> str:
        return f"Cron({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return self.fields == other.fields if isinstance(other, Cron) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.fields)

    def describe(self) -> str:
        """It in words, as "at 09:00 on Monday to Friday (UTC)"."""
        return describe(self.fields)

    def matches(self, minute: datetime) -> bool:
        """Whether the minute that this instant is in is one of its. The instant is aware."""
        at = _utc(minute, "minute")
        return at.minute in self.fields[0] and at.hour in self.fields[1] and self._on(at.date())

    # --- minutes ------------------------------------------------------------------------------------------

    @overload
    def next(self, after: datetime) -> datetime: ...
    @overload
    def next(self, after: datetime, n: int) -> list[datetime]: ...
    def next(self, after: datetime, n: int | None = None) -> datetime | list[datetime]:
        """The first minute that begins after the instant `after`; with `n` the first `n` (1..10,000), as a list.

        `after` is aware; the answers are in UTC. Raises CronError for a naive datetime, and if the calendar, which ends
        with the year 9999, has no such minute; a list is then shorter.
        """
        found = self.between(_utc(after, "after"), None)
        if n is not None:
            check_int(n, what="Cron.next: n", low=1, high=COUNT_MAX, rule="T1", refuse=_REFUSE)
            return list(islice(found, n))
        first = next(found, None)
        if first is None:
            raise CronError(f"cron {self.text!r} has no minute after {after.isoformat()}: the calendar ends (T1)")
        return first

    def previous(self, before: datetime) -> datetime:
        """The last minute that begins before the instant `before`, which is aware. Raises CronError as `next` does."""
        found = next(self._backwards(_utc(before, "before")), None)
        if found is None:
            raise CronError(f"cron {self.text!r} has no minute before {before.isoformat()}: the calendar begins (T1)")
        return found

    def between(self, after: datetime, until: datetime | None) -> Iterator[datetime]:
        """The minutes that begin after `after` and not after `until`, in order. Both in UTC."""
        passed = False  # the rest of the first day only
        for day in self._days(after.date()):
            for hour in self._hours if passed else self._hours[bisect_left(self._hours, _hour(after, day)) :]:
                for minute in self._minutes:
                    at = datetime(day.year, day.month, day.day, hour, minute, tzinfo=UTC)
                    if until is not None and at > until:
                        return
                    if at > after:
                        yield at
            passed = True

    def count(self, after: datetime, until: datetime) -> int:
        """How many minutes `between` has, a day at a time. Both in UTC."""
        whole = len(self._hours) * len(self._minutes)
        found = 0
        for day in self._days(after.date()):
            if day > until.date():
                break
            if after.date() < day < until.date():
                found += whole
            else:
                begin = datetime(day.year, day.month, day.day, tzinfo=UTC)
                first, last = max(after, begin - MINUTE), min(until, begin + 1439 * MINUTE)
                found += sum(1 for _ in self.between(first, last))
        return found

    def _backwards(self, before: datetime) -> Iterator[datetime]:
        for day in self._days_back(before.date()):
            hours = self._hours if day < before.date() else self._hours[: bisect_right(self._hours, before.hour)]
            for hour in reversed(hours):
                for minute in reversed(self._minutes):
                    at = datetime(day.year, day.month, day.day, hour, minute, tzinfo=UTC)
                    if at < before:
                        yield at

    # --- days: a month that does not match costs one look, so that years pass quickly --------------------------

    def _days(self, first: date) -> Iterator[date]:
        begin = first.day
        for year in range(first.year, MAXYEAR + 1):
            for month in self._months:
                if (year, month) < (first.year, first.month):
                    continue
                start = begin if (year, month) == (first.year, first.month) else 1
                for day in range(start, monthrange(year, month)[1] + 1):
                    if self._on(at := date(year, month, day)):
                        yield at

    def _days_back(self, last: date) -> Iterator[date]:
        for year in range(last.year, MINYEAR - 1, -1):
            for month in reversed(self._months):
                if (year, month) > (last.year, last.month):
                    continue
                end = last.day if (year, month) == (last.year, last.month) else monthrange(year, month)[1]
                for day in range(end, 0, -1):
                    if self._on(at := date(year, month, day)):
                        yield at

    def _on(self, day: date) -> bool:
        _, _, days, months, weekdays = self.fields
        if day.month not in months:
            return False
        of_month, of_week = day.day in days, day.isoweekday() % 7 in weekdays
        if len(days) < FIELDS[2].size and len(weekdays) < FIELDS[4].size:
            return of_month or of_week  # both restricted: either matches (T2)
        return of_month and of_week  # one of them admits every day

    def _refuse_never(self) -> None:
        """A day of the week occurs in every month, so only a day of the month alone can never occur."""
        _, _, days, months, weekdays = self.fields
        if len(weekdays) < FIELDS[4].size or any(min(days) <= _LONGEST_MONTHS[month] for month in months):
            return
        longest = max(_LONGEST_MONTHS[month] for month in months)
        raise CronError(
            f"cron {self.text!r}: the day of month is {min(days)}{' or later' if len(days) > 1 else ''}, and the month "
            f"field has only months of at most {longest} days, so it never occurs (T1); correct one of the two"
        )


def _hour(after: datetime, day: date) -> int:
    return after.hour if day == after.date() else 0


def _utc(value: object, what: str) -> datetime:
    if not isinstance(value, datetime):
        raise CronTypeError(f"Cron: {what} is {shown(value)}, not a datetime (T1); give an aware datetime")
    if value.utcoffset() is None:
        raise CronError(
            f"Cron: {what} is {shown(value)}, which has no time zone (T1); give an aware datetime, "
            f"for example datetime(…, tzinfo=timezone.utc)"
        )
    try:
        return value.astimezone(UTC)
    except OverflowError:  # beyond the first or the last day that UTC has
        raise CronError(f"Cron: {what} is {shown(value)}, outside the years 1 to 9999 in UTC (T1)") from None
