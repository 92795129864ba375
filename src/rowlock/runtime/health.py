"""Beats of the background loops: what `app.health()` reads (H1)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal, TypedDict

from rowlock.runtime.describe import brief

# A loop that is this much later than it said it would be is not working, whatever its task says.
GRACE_S = 10.0
# A loop with nothing to do looks up so often, for its beat: one that waits for ever can not be told from a dead one.
REST_S = 5.0

Status = Literal["starting", "ok", "failing", "draining", "stopped"]


class LoopReport(TypedDict):
    """One background loop. Times are ISO texts in UTC."""

    beat: str | None
    """When it last did its work, or last found that there is none."""
    error: str | None
    """Its last failure, in one sentence without secrets (S6); None if it never failed."""
    error_at: str | None
    """When that was."""
    failures: int
    """How often its work failed since the start."""
    working: bool
    """Its last work went well, and is not longer ago than it should be."""


class CountersReport(TypedDict):
    """Totals over all queues and jobs; `app.metrics()` has them apart."""

    claimed: int
    lost: int
    settled: Mapping[str, int]


class HealthReport(TypedDict):
    """What `app.health()` answers (H1)."""

    status: Status
    loops: dict[str, LoopReport]
    counters: CountersReport


class Beat:
    """One loop's sign of life. Written by its loop, read from anywhere."""

    __slots__ = ("at", "error", "error_at", "failing", "failures", "late_after", "name", "within")

    def __init__(self, name: str, within: float = REST_S) -> None:
        """`within`: when the next beat is due, where `ok` does not say; infinite: whenever it comes."""
        self.name = name
        self.within = within
        self.at: float | None = None
        self.error: str | None = None
        self.error_at: float | None = None
        self.failing = False
        self.failures = 0
        # The first beat has a bound too: a loop that hangs in its first statement never worked.
        self.late_after = time.monotonic() + within + GRACE_S

    def ok(self, within: float | None = None) -> None:
        """The loop did its work, and means to do it again, or to say that it has none, within so many seconds."""
        self.at = time.time()
        self.failing = False
        self.late_after = time.monotonic() + (self.within if within is None else within) + GRACE_S

    def failed(self, error: BaseException | str) -> None:
        """The loop's work failed; it goes on trying. A text must be fit to be shown (S6)."""
        self.failures += 1
        self.failing = True
        self.error_at = time.time()
        self.error = error if isinstance(error, str) else brief(error)

    def working(self, now: float) -> bool:
        """Whether the loop's last work went well, and is not longer ago than it should be."""
        return not self.failing and now <= self.late_after

    def report(self, now: float) -> LoopReport:
        """The beat as a value."""
        return {
            "beat": _iso(self.at),
            "error": self.error,
            "error_at": _iso(self.error_at),
            "failures": self.failures,
            "working": self.working(now),
        }


class Health:
    """All beats of one worker; bounded by the number of its loops (H3)."""

    def __init__(self) -> None:
        self.beats: dict[str, Beat] = {}
        self.status: Status = "starting"
        """A report says failing instead of ok when a loop does not work."""

    def beat(self, name: str, within: float = REST_S) -> Beat:
        """The beat of the loop `name`, made when first asked for."""
        found = self.beats.get(name)
        return found if found is not None else self.beats.setdefault(name, Beat(name, within))

    def loops(self) -> tuple[Status, dict[str, LoopReport]]:
        """The status, and each loop's report."""
        now = time.monotonic()
        loops = {beat.name: beat.report(now) for beat in tuple(self.beats.values())}
        failing = self.status == "ok" and not all(loop["working"] for loop in loops.values())
        return "failing" if failing else self.status, loops


def _iso(at: float | None) -> str | None:
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat()
