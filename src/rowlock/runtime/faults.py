"""Places where a test can make the runtime fail once: `rowlock.testing.fault` arms them (X1, X6)."""

from __future__ import annotations

POINTS = ("claimed", "cursor-advanced", "settling", "scheduler", "sweeper", "keeper", "listener")

_armed: dict[str, BaseException] = {}


def hit(point: str) -> None:
    """Raises what was armed for `point`, once. Nothing is armed outside tests: then this is one look at a dict."""
    if _armed and (error := _armed.pop(point, None)) is not None:
        raise error


def arm(point: str, error: BaseException) -> None:
    """Makes the next `hit(point)` of any thread of this process raise `error`. ValueError for an unknown point."""
    if point not in POINTS:
        raise ValueError(f"{point!r} is no fault point; the points are {', '.join(POINTS)}")
    _armed[point] = error


def disarm(point: str | None = None) -> None:
    """Forgets what was armed for `point` (None: for any) and has not been hit."""
    if point is None:
        _armed.clear()
    else:
        _armed.pop(point, None)
