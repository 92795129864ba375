"""Notices a handler that blocks the worker's event loop, and says which (C09 in the field).

Runs on the keeper's thread, since the loop itself can say nothing while it is blocked.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING

from rowlock.runtime.describe import log
from rowlock.runtime.held import snapshot

if TYPE_CHECKING:
    from rowlock.runtime.floor import Floor
    from rowlock.runtime.keeper import Kept


# Whatever the leases are: so long no loop stands still that works.
LONGEST_BOUND_S = 10.0


class LoopWatch:
    """Asks the loop to answer. One that does not for longer than 1 s and half the shortest lease, or 10 s, is blocked.

    That is logged once for each time, and is in the health report for as long as it lasts (H1).
    """

    def __init__(self, floor: Floor, kept: Sequence[Kept]) -> None:
        self._floor = floor
        self._kept = kept
        self._beat = floor.health.beat("watch")
        shortest_lease_s = min((each.pace_s * 6 for each in kept), default=6.0)
        self.bound_s = min(LONGEST_BOUND_S, max(1.0, shortest_lease_s / 2))
        self.pace_s = 0.5
        self._asked: float | None = None
        self._said = False

    def look(self) -> None:
        """Asks, or looks how long the last answer is due."""
        now = monotonic()
        if self._asked is None:
            self._said = False
            self._asked = now
            self._floor.threads.call(self._answer)
        elif now - self._asked > self.bound_s:
            if not self._said:
                self._said = True
                blocked = f"event loop blocked for more than {self.bound_s:.1f} s in {self._culprit()}"
                log.warning("%s; renewal goes on", blocked)
                self._beat.failed(blocked)
            return
        self._beat.ok(self.pace_s)

    def _answer(self) -> None:
        self._asked = None

    def _culprit(self) -> str:
        task = None
        with suppress(RuntimeError):
            task = asyncio.current_task(self._floor.loop)
        what = "no task" if task is None else f"task {task.get_name()!r}"
        for kept in self._kept:
            for hold in snapshot(kept.held):
                if task is not None and hold.task is task:
                    what = f"task of job {hold.record.job!r}, record {hold.id}"
        # The documented way to another thread's stack.
        frame = sys._current_frames().get(self._floor.thread)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        if frame is not None:
            what += f" at {frame.f_code.co_filename}:{frame.f_lineno}:{frame.f_code.co_name}"
        return what
