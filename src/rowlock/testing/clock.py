"""A clock that stands still, and moves forward when the test says so (X1)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TypedDict

from rowlock.errors import KitError, KitTypeError, KitValueError
from rowlock.model.durations import duration

LONGEST = timedelta(days=36_525)
"""One step of a clock: a hundred years."""


class Parts(TypedDict, total=False):
    """The parts of a `timedelta`, by the names that it has there."""

    weeks: float
    days: float
    hours: float
    minutes: float
    seconds: float
    milliseconds: float
    microseconds: float


class StandingClock:
    """Stands at `now` (aware; None: the real time) until it is moved. Raises `KitTypeError`, `KitValueError`."""

    def __init__(self, now: datetime | None = None) -> None:
        self._now = datetime.now(UTC) if now is None else _aware(now)

    def now(self) -> datetime:
        """The instant at which it stands, in UTC."""
        return self._now

    def set(self, moment: datetime) -> None:
        """Puts it to a later instant; to an earlier one it does not go."""
        if moment < self._now:
            raise KitError("the clock of a case moves only forward (X1)")
        self._now = moment

    def target(self, delta: timedelta | float | None, parts: Parts) -> datetime:
        """Where a step leads. Raises `KitValueError` for a negative one, `KitTypeError` for what is no duration."""
        if (delta is None) == (not parts):
            raise KitValueError(
                "advance() takes how far the clock moves: a timedelta, a number of seconds, or parts of a timedelta, "
                "like advance(hours=2); one of the three (X1)"
            )
        span = duration(
            _timedelta(parts) if delta is None else delta,
            what="the step of a clock that moves only forward (X1)",
            low=timedelta(0), high=LONGEST, error=KitValueError, kind_error=KitTypeError,
        )  # fmt: skip
        try:
            return self._now + span
        except OverflowError:
            raise KitValueError(
                f"the clock stands at {self._now}, and a step of {span} leads beyond year 9999"
            ) from None


def _timedelta(parts: Parts) -> timedelta:
    try:
        return timedelta(**parts)
    except TypeError as error:
        raise KitTypeError(f"advance(): {error}; its names are those of timedelta: hours=, minutes=, …") from None
    except OverflowError:
        raise KitValueError(f"advance() is out of bounds: one step is at most {LONGEST.days} days") from None


def _aware(now: object) -> datetime:
    if not isinstance(now, datetime):
        raise KitTypeError(f"now must be an aware datetime, not {type(now).__name__} (X1)")
    if now.utcoffset() is None:
        raise KitValueError(
            f"now={now!r} has no time zone (X1); give an aware datetime, like datetime(2027, 1, 1, tzinfo=timezone.utc)"
        )
    return now.astimezone(UTC)
