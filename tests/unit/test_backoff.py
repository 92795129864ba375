# What is refused is tried, and private facts are looked at.
# pyright: reportArgumentType=false, reportPrivateUsage=false
from __future__ import annotations

import copy
import pickle
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowlock.errors import DeclarationError, DeclarationTypeError
from rowlock.model.backoff import Backoff

DAY = timedelta(hours=24)
MS = timedelta(milliseconds=1)


@pytest.mark.parametrize(
    ("attempt", "seconds"), [(1, 1), (2, 2), (3, 4), (8, 128), (9, 256), (10, 300), (11, 300), (100, 300)]
)
def test_the_base_doubles_up_to_the_cap(attempt: int, seconds: int) -> None:
    # contract: R1
    assert Backoff(base=1, cap=300).delay(attempt) == timedelta(seconds=seconds)
    assert Backoff(base=1, cap=300).delay_ms(attempt) == seconds * 1000


@pytest.mark.parametrize("policy", [Backoff(1, 300), Backoff(MS, DAY), Backoff(DAY, DAY), Backoff(MS, MS)])
def test_no_attempt_number_overflows(policy: Backoff) -> None:
    # contract: R1
    # case: C65
    attempts = [-(10**6), -1, 0, 1, 2, 10, 30, 31, 62, 63, 64, 1023, 1024, 1025, 10**6, 10**30]
    delays = [policy.delay(attempt) for attempt in attempts]
    assert delays == sorted(delays)
    assert delays[0] == policy.base
    assert delays[-1] == policy.cap
    assert all(timedelta(0) < delay <= policy.cap for delay in delays)


@pytest.mark.parametrize(("jitter", "seconds"), [(0.0, 8), (0.5, 7.6), (1.0, 7.2), (-3.0, 8), (7.0, 7.2)])
def test_jitter_shortens_by_at_most_a_tenth(jitter: float, seconds: float) -> None:
    # contract: R1
    # case: C66
    assert Backoff(1, 60).delay(4, jitter) == timedelta(seconds=seconds)


@given(st.timedeltas(MS, DAY), st.timedeltas(MS, DAY), st.integers(-5, 10**7), st.floats(0, 1, exclude_max=True))
def test_delay_is_positive_capped_and_within_the_jitter(
    one: timedelta, other: timedelta, attempt: int, jitter: float
) -> None:
    # contract: R1
    policy = Backoff(base=min(one, other), cap=max(one, other))
    full, delay, later = policy.delay(attempt), policy.delay(attempt, jitter), policy.delay(attempt + 1)
    assert policy.base <= full <= later <= policy.cap
    assert full == min(policy.base * 2 ** min(max(attempt - 1, 0), 29), policy.cap)
    assert full * 0.9 <= delay <= full
    assert timedelta(0) < policy.delay_ms(attempt, jitter) * MS <= policy.cap


@pytest.mark.parametrize(
    ("base", "cap", "says"),
    [
        (0, 1, "base=0 s"),
        (0.0009, 1, "base=0.0009 s"),
        (-1, 1, "base=-1 s"),
        (1, 86_400.001, "cap=86400.001 s"),
        (1, DAY + MS, "cap=86,400.001 s"),
        (float("nan"), 1, "base=nan"),
        (1, float("inf"), "cap=inf"),
        (2, 1, "base=2 s is longer than cap=1 s"),
    ],
)
def test_bounds(base: float, cap: float | timedelta, says: str) -> None:
    # contract: M2, J5
    with pytest.raises(DeclarationError) as caught:
        Backoff(base=base, cap=cap)
    assert says in str(caught.value)


@pytest.mark.parametrize("value", [True, None, "1"])
def test_another_kind_is_a_type_error(value: object) -> None:
    # contract: J5
    with pytest.raises(DeclarationTypeError, match="base must be a timedelta"):
        Backoff(base=value, cap=300)  # type: ignore[arg-type]


def test_is_a_value() -> None:
    policy = Backoff(base=1, cap=timedelta(minutes=5))
    assert policy == Backoff(timedelta(seconds=1), 300)
    assert hash(policy) == hash(Backoff(1, 300))
    assert pickle.loads(pickle.dumps(policy)) == copy.deepcopy(policy) == policy
    with pytest.raises(AttributeError):
        policy.base = timedelta(0)  # type: ignore[misc]
