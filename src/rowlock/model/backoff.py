"""How long a failed record waits before its next attempt (R1)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from rowlock.errors import DeclarationError
from rowlock.model.durations import MILLISECOND, duration, show

_LONGEST = timedelta(hours=24)
_MICROSECOND = timedelta(microseconds=1)

# The cap is at most 86,400,000 times the base, less than 2**27: from this exponent on the cap holds, and the power
# is never computed. (2**1024 does not fit a float, 2**(10**6) takes a megabyte.)
_ENOUGH_DOUBLINGS = 27

_JITTER_SHARE = 0.1


@dataclass(frozen=True, slots=True, init=False)
class Backoff:
    """The wait after a failed or timed-out attempt: `base` doubled with each attempt, at most `cap` (R1).

    Both are a `timedelta` or seconds, 1 ms to 24 h, `base` not above `cap`. Raises `DeclarationError`.
    """

    base: timedelta
    cap: timedelta

    def __init__(self, base: timedelta | float, cap: timedelta | float) -> None:
        first = duration(base, what="Backoff(base=…): base", low=MILLISECOND, high=_LONGEST)
        limit = duration(cap, what="Backoff(cap=…): cap", low=MILLISECOND, high=_LONGEST)
        if first > limit:
            raise DeclarationError(
                f"Backoff: base={show(first)} is longer than cap={show(limit)}; base must not exceed cap (R1, M2)"
            )
        object.__setattr__(self, "base", first)
        object.__setattr__(self, "cap", limit)

    def delay(self, attempt: int, jitter: float = 0.0) -> timedelta:
        """The wait after the failure of `attempt` (1 for the first; any integer is safe).

        `jitter` is a random sample in 0..1; it shortens the wait by up to 10 %. The answer is above 0 and at most
        `cap`.
        """
        doublings = min(max(attempt - 1, 0), _ENOUGH_DOUBLINGS)
        full = min((self.base // _MICROSECOND) << doublings, self.cap // _MICROSECOND)
        sample = min(max(jitter, 0.0), 1.0)
        return timedelta(microseconds=full - int(full * _JITTER_SHARE * sample))

    def delay_ms(self, attempt: int, jitter: float = 0.0) -> int:
        """`delay` in whole milliseconds, at least 1. Rounded down, since the cap is a promise."""
        return max(self.delay(attempt, jitter) // MILLISECOND, 1)
