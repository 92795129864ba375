"""Beats of the background loops, and counters: what `app.health()` and metrics read (H1, H2)."""

from __future__ import annotations

import time
from collections import Counter
from datetime import UTC, datetime
from typing import Any

from rowlock.runtime.describe import brief

# A loop that is this much later than it said it would be is not working, whatever its task says.
GRACE_S = 10.0


class Beat:
    """One loop's sign of life. Written by its loop, read from anywhere."""

    __slots__ = ("at", "error", "failures", "late_after", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.at: float | None = None
        self.error: str | None = None
        self.failures = 0
        self.late_after = float("inf")

    def ok(self, within: float = float("inf")) -> None:
        """The loop did its work, and means to do it again `within` seconds (infinite: when there is something)."""
        self.at = time.time()
        self.error = None
        self.late_after = time.monotonic() + within + GRACE_S

    def failed(self, error: BaseException) -> None:
        """The loop's work failed; it goes on trying."""
        self.failures += 1
        self.error = brief(error)

    def working(self, now: float) -> bool:
        """Whether the loop's last work went well, and is not longer ago than it should be."""
        return self.error is None and now <= self.late_after


class Health:
    """All beats of one worker, and plain counters. Bounded by the number of loops and outcomes (H3)."""

    def __init__(self) -> None:
        self.beats: dict[str, Beat] = {}
        self.claimed = 0
        self.lost = 0
        self.settled: Counter[str] = Counter()
        """By outcome: ack drop retry snooze dead failed timed_out blocked cancelled returned."""
        self.seconds = 0.0
        """Time spent in handlers, of all attempts together."""
        self.status = "starting"
        """starting, ok, draining, stopped; a report says failing instead of ok when a loop is."""

    def beat(self, name: str) -> Beat:
        """The beat of the loop `name`, made when first asked for."""
        return self.beats.setdefault(name, Beat(name))

    def report(self) -> dict[str, Any]:
        """`{status, loops: {name: {beat, error}}}`, plus the counters; beats are ISO texts in UTC (H1)."""
        now = time.monotonic()
        status = self.status
        if status == "ok" and not all(beat.working(now) for beat in self.beats.values()):
            status = "failing"
        return {
            "status": status,
            "loops": {beat.name: {"beat": _iso(beat.at), "error": beat.error} for beat in self.beats.values()},
            "counters": {"claimed": self.claimed, "lost": self.lost, "settled": dict(self.settled)},
        }


def _iso(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat()
