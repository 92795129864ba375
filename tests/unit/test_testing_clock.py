from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from rowlock import App
from rowlock.testing import KitError, KitTypeError, KitValueError, TestApp
from rowlock.testing.clock import StandingClock

NOON = datetime(2027, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def t() -> TestApp:
    return TestApp(App("sqlite:////nowhere/at/all.db"), now=NOON)


def test_starts_at_the_real_time_or_where_it_is_told() -> None:
    # contract: X1
    before = datetime.now(UTC)
    now = StandingClock().now()
    assert before <= now <= datetime.now(UTC)
    there = NOON.astimezone(timezone(timedelta(hours=5)))
    assert StandingClock(there).now() == NOON
    assert StandingClock(there).now().tzinfo is UTC


def test_stands_still(t: TestApp) -> None:
    # contract: X1
    assert t.now == t.now == NOON


@pytest.mark.parametrize(
    ("delta", "parts", "span"),
    [
        (timedelta(hours=2), {}, timedelta(hours=2)),
        (90, {}, timedelta(seconds=90)),
        (0.000001, {}, timedelta(microseconds=1)),
        (None, {"days": 1, "minutes": 30}, timedelta(days=1, minutes=30)),
        (None, {"hours": 1, "minutes": -1}, timedelta(minutes=59)),
        (0, {}, timedelta(0)),
        (None, {"seconds": 0}, timedelta(0)),
    ],
)
def test_advances_by(t: TestApp, delta: Any, parts: Any, span: timedelta) -> None:
    # contract: X1
    assert t.advance(delta, **parts) == t.now == NOON + span


@pytest.mark.parametrize(
    ("delta", "parts", "error", "says"),
    [
        (-1, {}, KitValueError, "forward"),
        (timedelta(microseconds=-1), {}, KitValueError, "forward"),
        (None, {"hours": -2}, KitValueError, "forward"),
        (None, {}, KitValueError, "how far"),
        (1, {"hours": 1}, KitValueError, "one of the three"),
        (timedelta(days=40_000), {}, KitValueError, "36,525 d"),
        (None, {"weeks": 1e12}, KitValueError, "at most"),
        (float("nan"), {}, KitValueError, "finite"),
        ("1h", {}, KitTypeError, "timedelta"),
        (True, {}, KitTypeError, "timedelta"),
        (None, {"hour": 1}, KitTypeError, "hours="),
        (None, {"hours": "1"}, KitTypeError, "hours="),
    ],
)
def test_refuses_to_advance(t: TestApp, delta: Any, parts: Any, error: type[Exception], says: str) -> None:
    # contract: X1, Z1
    with pytest.raises(error, match=says):
        t.advance(delta, **parts)
    assert t.now == NOON


def test_ends_with_year_9999() -> None:
    # contract: X1
    with pytest.raises(KitValueError, match="9999"):
        TestApp(App(), now=datetime(9999, 12, 31, tzinfo=UTC)).advance(days=1)


def test_does_not_go_back() -> None:
    # contract: X1
    clock = StandingClock(NOON)
    with pytest.raises(KitError, match="forward"):
        clock.set(NOON - timedelta(seconds=1))


@pytest.mark.parametrize(("now", "error"), [(NOON.replace(tzinfo=None), ValueError), ("2027-01-01", TypeError)])
def test_starts_at_an_aware_time_only(now: Any, error: type[Exception]) -> None:
    # contract: X1
    with pytest.raises(error, match="aware"):
        TestApp(App(), now=now)
