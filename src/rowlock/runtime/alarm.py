"""One timer for the deadlines of all attempts of a queue (R3): a timer each was a tenth of a short attempt's cost."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rowlock.runtime.attempt import Attempt

# Timers may come a little early; what is that close is due.
CLOSE_S = 0.0005


class Alarm:
    """Set to the earliest deadline of those that run. All of it on the loop.

    It is set earlier at once and later never: an attempt that ends in time leaves it. When it rings for nobody it is
    set to the earliest deadline that is then there. That is at most once in the shortest timeout of the queue.
    """

    __slots__ = ("_loop", "_running", "_timer", "at")

    def __init__(self, loop: asyncio.AbstractEventLoop, running: Mapping[str, Attempt]) -> None:
        self._loop = loop
        self._running = running
        self._timer: asyncio.TimerHandle | None = None
        self.at = float("inf")
        """When it rings (monotonic)."""

    def set(self, deadline: float) -> None:
        """Rings at `deadline` or before."""
        if deadline < self.at:
            self.stop()
            self.at = deadline
            self._timer = self._loop.call_later(max(0.0, deadline - monotonic()), self._ring)

    def stop(self) -> None:
        """Does not ring any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.at = float("inf")

    def _ring(self) -> None:
        self.stop()
        due = monotonic() + CLOSE_S
        for attempt in list(self._running.values()):
            if attempt.watched and attempt.deadline <= due:
                attempt.on_deadline()
        self.set(min((a.deadline for a in self._running.values() if a.watched), default=float("inf")))
