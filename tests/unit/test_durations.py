# What is refused is tried, and private facts are looked at.
# pyright: reportArgumentType=false, reportPrivateUsage=false
from __future__ import annotations

import math
from datetime import timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowlock.errors import DeclarationError, DeclarationTypeError, EnqueueTypeError, EnqueueValueError
from rowlock.model.durations import MAX_DELAY, MILLISECOND, duration, show, whole_ms

LOW, HIGH = MILLISECOND, timedelta(hours=1)


def ask(value: object) -> timedelta:
    return duration(value, what="job 'a.b': timeout", low=LOW, high=HIGH)


@pytest.mark.parametrize(
    ("given_value", "expected"),
    [
        (timedelta(seconds=30), timedelta(seconds=30)),
        (30, timedelta(seconds=30)),
        (0.25, timedelta(milliseconds=250)),
        (0.001, LOW),
        (LOW, LOW),
        (3600, HIGH),
        (3600.0, HIGH),
        (HIGH, HIGH),
    ],
)
def test_takes_timedelta_and_seconds_up_to_both_bounds(given_value: object, expected: timedelta) -> None:
    # contract: J1
    assert ask(given_value) == expected


@pytest.mark.parametrize(
    "value",
    [
        0,
        -1,
        -0.0,
        0.000999,
        timedelta(0),
        LOW - timedelta(microseconds=1),
        HIGH + timedelta(microseconds=1),
        timedelta.max,
        timedelta.min,
        3600.0001,
        1e300,
        -1e300,
        math.nan,
        math.inf,
        -math.inf,
        10**400,
        pytest.param(-(10**5000), id="more-digits-than-python-prints"),
    ],
)
def test_out_of_bounds_is_a_refusal_of_the_value(value: object) -> None:
    # contract: J1, J5, E6
    with pytest.raises(DeclarationError, match=r"job 'a\.b': timeout.*1 ms to 3,600 s") as caught:
        ask(value)
    assert not isinstance(caught.value, TypeError)


def test_the_message_has_the_value() -> None:
    # contract: J5
    with pytest.raises(DeclarationError, match="timeout=7200 s"):
        ask(7200)
    with pytest.raises(DeclarationError, match=r"timeout=0\.5 ms"):
        ask(timedelta(microseconds=500))


@pytest.mark.parametrize("value", [True, False, None, "30", b"30", Decimal(30), [30], 1j, object()])
def test_another_kind_is_a_refusal_of_the_kind(value: object) -> None:
    # contract: J1, J5
    with pytest.raises(DeclarationTypeError, match=r"job 'a\.b': timeout.*" + type(value).__name__):
        ask(value)


def test_the_caller_chooses_the_errors() -> None:
    # contract: E6
    def delay(value: object) -> timedelta:
        return duration(
            value,
            what="delay",
            low=timedelta(0),
            high=MAX_DELAY,
            error=EnqueueValueError,
            kind_error=EnqueueTypeError,
        )

    with pytest.raises(EnqueueValueError):
        delay(-1)
    with pytest.raises(EnqueueTypeError):
        delay("1")


def test_a_subclass_of_timedelta_becomes_a_plain_one() -> None:
    class Odd(timedelta):
        def __lt__(self, other: object) -> bool:
            raise AssertionError

        __le__ = __gt__ = __ge__ = __lt__

    answer = ask(Odd(seconds=5))
    assert type(answer) is timedelta
    assert answer == timedelta(seconds=5)


@given(st.one_of(st.floats(), st.integers(), st.timedeltas()))
def test_answers_within_bounds_or_refuses(value: object) -> None:
    # contract: E6
    try:
        answer = ask(value)
    except DeclarationError:
        return
    assert LOW <= answer <= HIGH


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (timedelta(0), "0"),
        (timedelta(milliseconds=1), "1 ms"),
        (timedelta(microseconds=1500), "1.5 ms"),
        (timedelta(seconds=1.5), "1.5 s"),
        (timedelta(hours=1), "3,600 s"),
        (timedelta(days=3653), "3,653 d"),
    ],
)
def test_show(span: timedelta, text: str) -> None:
    assert show(span) == text


def test_whole_milliseconds_are_rounded_up() -> None:
    assert [whole_ms(timedelta(microseconds=n)) for n in (0, 1, 1000, 1001)] == [0, 1, 1, 2]
