"""What a handler can say about its record: the outcomes, returned or raised (R6)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from rowlock.errors import RowlockError
from rowlock.model.durations import MAX_DELAY, duration
from rowlock.model.texts import clean_summary


class OutcomeError(RowlockError, ValueError):
    """An outcome with an absurd value was made inside a handler; the attempt fails by it (R6, E6)."""


class OutcomeTypeError(OutcomeError, TypeError):
    """A handler answered something that is no outcome, or made an outcome of a wrong kind of thing (R6)."""


# The values have defaults on the classes, so that a subclass which forgets `super().__init__()` has a repr; reading the
# missing value is an AttributeError, by which `decide` takes it for a failed attempt.


class Outcome(Exception):  # noqa: N818  # a word that a handler says, not an error
    """What a handler answers about its record: returned or raised, which mean the same (R6)."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    __str__ = __repr__


class Ack(Outcome):
    """Done. The same as returning nothing (R6)."""

    def __init__(self) -> None:
        super().__init__()


class Drop(Outcome):
    """Done like `Ack`, told apart in metrics: there was nothing to do (R6)."""

    def __init__(self) -> None:
        super().__init__()


class Retry(Outcome):
    """Run the record again: at once, `after` a while, or `at` an instant; on the last attempt it is dead (R6).

    `after` is a `timedelta` or seconds, 0 to ten years. `at` is an aware datetime up to the end of 9999; one in the
    past means now. Give at most one of them. Raises `OutcomeError`, by which the attempt fails.
    """

    _after: timedelta | None = None
    _at: datetime | None = None

    def __init__(self, after: timedelta | float | None = None, *, at: datetime | None = None) -> None:
        super().__init__()
        if after is not None and at is not None:
            raise OutcomeError("Retry takes after= or at=, not both (R6)")
        if after is not None:
            self._after = _delay(after, "Retry(after=…): after")
        if at is not None:
            self._at = _instant(at)

    @property
    def after(self) -> timedelta | None:
        """The wait that was asked for."""
        return self._after

    @property
    def at(self) -> datetime | None:
        """The instant that was asked for, in UTC."""
        return self._at

    def __reduce__(self) -> tuple[Any, ...]:
        return _retry, (type(self), self._after, self._at)

    def __repr__(self) -> str:
        if self._after is not None:
            return f"{type(self).__name__}(after={self._after.total_seconds():g})"
        return f"{type(self).__name__}({'' if self._at is None else f'at={self._at.isoformat()}'})"

    __str__ = __repr__


class Snooze(Outcome):
    """Run the record later, and do not count this attempt (R6).

    `delay` is a `timedelta` or seconds, 0 to ten years. Raises `OutcomeError`, by which the attempt fails.
    """

    _delay: timedelta | None = None

    def __init__(self, delay: timedelta | float) -> None:
        self._delay = _delay(delay, "Snooze(delay): delay")
        super().__init__(self._delay)

    @property
    def delay(self) -> timedelta:
        """The wait that was asked for."""
        if self._delay is None:
            raise AttributeError("delay: this Snooze was made without Snooze.__init__")
        return self._delay

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'' if self._delay is None else f'{self._delay.total_seconds():g}'})"

    __str__ = __repr__


class Dead(Outcome):
    """Give the record up now, as `rejected` (R6).

    `reason` is stored and shown to operators, like the text of a `SafeError`: at most 500 characters of it, NUL and
    surrogates escaped. Raises `OutcomeTypeError` if it is no str.
    """

    _reason: str | None = None

    def __init__(self, reason: str) -> None:
        if not isinstance(reason, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers need not be typed
            raise OutcomeTypeError(f"Dead(reason): reason must be a str, not {type(reason).__name__} (R6)")
        self._reason = clean_summary(reason)
        super().__init__(self._reason)

    @property
    def reason(self) -> str:
        """The reason as it is stored."""
        if self._reason is None:
            raise AttributeError("reason: this Dead was made without Dead.__init__")
        return self._reason

    def __repr__(self) -> str:
        text = self._reason or ""
        return f"{type(self).__name__}({text if len(text) <= 60 else text[:59] + '…'!r})"

    __str__ = __repr__


def _delay(value: timedelta | float, what: str) -> timedelta:
    return duration(value, what=what, low=timedelta(0), high=MAX_DELAY, error=OutcomeError, kind_error=OutcomeTypeError)


def _instant(value: datetime) -> datetime:
    if not isinstance(value, datetime):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers need not be typed
        raise OutcomeTypeError(f"Retry(at=…): at must be an aware datetime, not {type(value).__name__} (R6)")
    if value.utcoffset() is None:
        raise OutcomeError(
            "Retry(at=…): at is a naive datetime; give it a time zone, for example datetime.now(timezone.utc)"
        )
    try:
        return value.astimezone(UTC)
    except OverflowError:
        raise OutcomeError("Retry(at=…): at is out of bounds: it must be at most 9999-12-31 in UTC (E6)") from None


def _retry(kind: type[Retry], after: timedelta | None, at: datetime | None) -> Retry:
    return kind(after, at=at)
