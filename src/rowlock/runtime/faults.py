"""Places where a test can make the runtime fail: `rowlock.testing.fault` arms them (X1, X6)."""

from __future__ import annotations

POINTS = (
    "claiming", "claimed", "cursor-advanced", "settling", "rescuer", "announcer", "scheduler", "sweeper", "keeper",
    "listener",
)  # fmt: skip

_armed: dict[str, list[BaseException]] = {}


def hit(point: str) -> None:
    """Raises what was armed for `point`. Nothing is armed outside tests: then this is one look at a dict."""
    if _armed and (errors := _armed.get(point)):
        raise errors.pop()


def arm(point: str, error: BaseException, times: int = 1) -> None:
    """Makes the next `times` hits of `point`, on any thread, raise `error`. ValueError: no such point."""
    if point not in POINTS:
        raise ValueError(f"{point!r} is no fault point; the points are {', '.join(POINTS)}")
    _armed[point] = [error] * times


def disarm(point: str | None = None) -> None:
    """Forgets what was armed for `point` (None: for any) and has not been hit."""
    if point is None:
        _armed.clear()
    else:
        _armed.pop(point, None)
