"""What happens to the attempts in work when a handler itself moves the case's clock (X1).

With a clock that stands still nobody renews a lease and no deadline comes by itself. So a step does both: it renews
what is due, through the keeper's own statement, and ends the time of attempts whose deadline it passes (R3).
"""

from __future__ import annotations

import threading
from datetime import datetime, timedelta
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple, cast

from rowlock.model.context import Context, StopReason
from rowlock.model.durations import whole_ms
from rowlock.model.table import JOBS
from rowlock.runtime.briefing import told_to_stop
from rowlock.runtime.describe import brief, log
from rowlock.runtime.isolate import current
from rowlock.runtime.outage import DATABASE_FAILURES
from rowlock.store.asked import asked
from rowlock.store.renew import Hold, renew
from rowlock.testing.clock import StandingClock

if TYPE_CHECKING:
    from rowlock.runtime.attempt import Attempt


class _Held(NamedTuple):
    attempt: Attempt
    context: Context
    renewed: datetime


class AtWork:
    """The attempts whose handlers run at this moment."""

    def __init__(self, clock: StandingClock) -> None:
        self._clock = clock
        self._held: dict[str, _Held] = {}
        self._lock = threading.RLock()

    def begin(self, context: Context) -> None:
        """The current attempt's handler is about to run. On its thread or task."""
        attempt = cast("Attempt", current.get())
        self._held[attempt.token] = _Held(attempt, context, self._clock.now())

    def end(self, _context: Context) -> None:
        """It has ended."""
        attempt = cast("Attempt", current.get())
        self._held.pop(attempt.token, None)

    def move(self, target: datetime) -> None:
        """Moves the clock, from any thread."""
        with self._lock:
            lost = [held for held in tuple(self._held.values()) if not self._renew(held, target)]
            self._clock.set(target)
            for held in lost:
                held.attempt.say_lost_early()
                held.attempt.lane.floor.threads.call(held.attempt.lose)
            for held in tuple(self._held.values()):
                self._look_for_cancel(held.attempt)
                if held.context.deadline <= target and not (held.attempt.lost or held.attempt.timed_out):
                    _expire(held.attempt)

    @staticmethod
    def _look_for_cancel(attempt: Attempt) -> None:
        """A step stands for the polls that fall into it (O4)."""
        if attempt.cancelled or not attempt.lane.db.run(asked, [attempt.id]):
            return
        floor = attempt.lane.floor
        if attempt.task is None or threading.get_ident() == floor.thread:
            attempt.cancel()
        else:
            floor.threads.call(attempt.cancel)

    def _renew(self, held: _Held, target: datetime) -> bool:
        """Renews as if it had been done on the way; False if the hold is lost.

        One renewal stands for all that are due, and reaches as far as the last of them would. It goes on beyond the
        overrun: nobody else works on the case, so a handler that is late is settled as timed out when it ends.
        """
        attempt = held.attempt
        if target - held.renewed < timedelta(milliseconds=attempt.lease_ms / 3):
            return True
        lease_ms = whole_ms(target - self._clock.now()) + attempt.lease_ms
        try:
            result = attempt.lane.db.run(renew, JOBS, [Hold(attempt.id, attempt.token, lease_ms)])
        except DATABASE_FAILURES as error:  # as in the keeper: the hold stands as long as its lease does
            log.warning("record %d: its lease could not be renewed (%s)", attempt.id, brief(error))
            return True
        self._held[attempt.token] = held._replace(renewed=target)
        return attempt.id not in result.lost


def _expire(attempt: Attempt) -> None:
    """What the alarm does at the deadline. From any thread."""
    attempt.deadline = monotonic()  # a handler that ends before the loop hears of this is late as well
    floor = attempt.lane.floor
    if threading.get_ident() == floor.thread:
        attempt.on_deadline()
        return
    if attempt.context_made is not None:
        told_to_stop(attempt.context_made, StopReason.DEADLINE)
    floor.threads.call(attempt.on_deadline)
