# What is refused is tried, and private facts are looked at.
# pyright: reportArgumentType=false, reportPrivateUsage=false
from __future__ import annotations

import asyncio
import copy
import math
import pickle
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rowlock.errors import RowlockError, SafeError
from rowlock.model.backoff import Backoff
from rowlock.model.outcome import (
    Ack,
    Blocked,
    Cancelled,
    Category,
    Dead,
    Drop,
    End,
    GivenBack,
    Outcome,
    OutcomeError,
    OutcomeTypeError,
    Raised,
    Retry,
    Returned,
    Settlement,
    Snooze,
    State,
    TimedOut,
    clean_summary,
    decide,
    error_class,
    safe_summary,
    success,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
LAST_INSTANT = datetime.max.replace(tzinfo=UTC)


def settle(end: End, attempt: int = 1, max_attempts: int | None = 3, jitter: float = 0.0) -> Settlement:
    return decide(
        end,
        id=7,
        token="t",
        attempt=attempt,
        max_attempts=max_attempts,
        backoff=Backoff(base=1, cap=300),
        jitter=jitter,
    )


def pending(outcome: str, **more: object) -> Settlement:
    return Settlement(7, "t", State.PENDING, outcome, **more)  # type: ignore[arg-type]


# --- what a handler says ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "settlement"),
    [
        (None, success(7, "t")),
        (Ack(), Settlement(7, "t", State.SUCCEEDED, "ack")),
        (Drop(), Settlement(7, "t", State.SUCCEEDED, "drop")),
        (Retry(), pending("retry", delay_ms=0)),
        (Retry(0), pending("retry", delay_ms=0)),
        (Retry(2.5), pending("retry", delay_ms=2500)),
        (Retry(after=timedelta(microseconds=1)), pending("retry", delay_ms=1)),
        (Retry(at=NOON), pending("retry", at=NOON)),
        (Retry(at=NOON.astimezone(timezone(timedelta(hours=5)))), pending("retry", at=NOON)),
        (Snooze(60), pending("snooze", delay_ms=60_000, refund=True)),
        (Snooze(0), pending("snooze", delay_ms=0, refund=True)),
        (
            Dead("card refused"),
            Settlement(7, "t", State.DEAD, "dead", category=Category.REJECTED, summary="card refused"),
        ),
        (Dead(""), Settlement(7, "t", State.DEAD, "dead", category=Category.REJECTED)),
    ],
)
def test_an_outcome_means_the_same_returned_or_raised(outcome: Outcome | None, settlement: Settlement) -> None:
    # contract: R6
    # case: C66
    assert settle(Returned(outcome)) == settlement
    if outcome is not None:
        assert settle(Raised(outcome)) == settlement


@pytest.mark.parametrize("outcome", [Retry(), Retry(5), Retry(at=NOON)])
@pytest.mark.parametrize("attempt", [3, 4])
def test_retry_on_the_last_attempt_is_dead(outcome: Outcome, attempt: int) -> None:
    # contract: R6
    dead = Settlement(7, "t", State.DEAD, "retry", category=Category.ATTEMPTS_EXHAUSTED)
    assert settle(Returned(outcome), attempt) == settle(Raised(outcome), attempt) == dead
    assert settle(Returned(outcome), 2).state is State.PENDING


@pytest.mark.parametrize("outcome", [Ack(), Drop(), Snooze(1), Dead("no")])
def test_the_others_do_not_look_at_the_number_of_attempts(outcome: Outcome) -> None:
    # contract: R6
    assert settle(Returned(outcome), 3) == settle(Returned(outcome), 1)


def test_without_a_limit_no_attempt_is_the_last() -> None:
    # contract: Q6
    assert settle(Raised(ValueError()), 2000, None).delay_ms == 300_000
    assert settle(Returned(Retry()), 2000, None).state is State.PENDING


@pytest.mark.parametrize(
    "make",
    [
        lambda: Retry(-1),
        lambda: Retry(math.nan),
        lambda: Retry(math.inf),
        lambda: Retry(1e300),
        lambda: Retry(timedelta(days=3654)),
        lambda: Retry(timedelta(microseconds=-1)),
        lambda: Retry(5, at=NOON),
        lambda: Retry(at=NOON.replace(tzinfo=None)),
        lambda: Retry(at=datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))),
        lambda: Snooze(-0.001),
        lambda: Snooze(timedelta.max),
    ],
)
def test_an_absurd_value_fails_the_attempt(make: object) -> None:
    # contract: R6, E6
    with pytest.raises(OutcomeError) as caught:
        make()  # type: ignore[operator]
    assert isinstance(caught.value, RowlockError)
    assert not isinstance(caught.value, TypeError)
    assert settle(Raised(caught.value)) == pending(
        "failed", delay_ms=1000, category=Category.FAILED, error_class="rowlock.model.answer.OutcomeError"
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: Retry(True),
        lambda: Retry("5"),
        lambda: Retry(at="2026-01-01"),
        lambda: Retry(at=5),
        lambda: Snooze(None),
        lambda: Dead(42),
        lambda: Dead(None),
    ],
)
def test_a_wrong_kind_fails_the_attempt(make: object) -> None:
    # contract: R6
    with pytest.raises(OutcomeTypeError) as caught:
        make()  # type: ignore[operator]
    assert isinstance(caught.value, ValueError)


def test_bounds_are_inside() -> None:
    # contract: E6
    assert settle(Returned(Snooze(timedelta(days=3650)))).delay_ms == 3650 * 86_400_000
    assert settle(Returned(Retry(at=LAST_INSTANT))).at == LAST_INSTANT
    first = datetime.min.replace(tzinfo=UTC)
    assert settle(Returned(Retry(at=first))).at == first


class Proxy:
    """Like a proxy of a web framework that is not bound to a request."""

    @property
    def __class__(self) -> type:  # type: ignore[override]
        raise RuntimeError("unbound")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("unbound")

    __hash__ = None  # type: ignore[assignment]


class Own(Outcome):
    pass


class UnfinishedSnooze(Snooze):
    def __init__(self) -> None:
        pass


class UnfinishedDead(Dead):
    def __init__(self) -> None:
        pass


@pytest.mark.parametrize("value", [0, False, "", "ack", Ack, Retry, [], object(), ValueError("S3CR3T")])
def test_anything_else_that_is_returned_is_a_failure(value: object) -> None:
    # contract: R6
    assert settle(Returned(value)) == pending(
        "failed", delay_ms=1000, category=Category.FAILED, error_class="rowlock.model.answer.OutcomeTypeError"
    )


def test_a_proxy_that_is_not_bound_is_a_failure() -> None:
    # contract: R6, R4
    assert settle(Returned(Proxy())).error_class == "rowlock.model.answer.OutcomeTypeError"


@pytest.mark.parametrize("value", [Own(), UnfinishedSnooze(), UnfinishedDead()])
def test_an_outcome_that_says_nothing_is_a_failure(value: Outcome) -> None:
    # contract: R6
    assert settle(Returned(value)).category is Category.FAILED
    assert settle(Raised(value)).category is Category.FAILED
    assert repr(value)


def test_a_subclass_of_an_outcome_is_one() -> None:
    # contract: R6
    class Later(Snooze):
        def __init__(self) -> None:
            super().__init__(3)

    assert settle(Raised(Later())) == pending("snooze", delay_ms=3000, refund=True)


@pytest.mark.parametrize("outcome", [Ack(), Drop(), Retry(), Retry(5), Retry(at=NOON), Snooze(1), Dead("a")])
def test_outcomes_survive_copies_and_processes(outcome: Outcome) -> None:
    for twin in (copy.copy(outcome), pickle.loads(pickle.dumps(outcome))):
        assert type(twin) is type(outcome)
        assert settle(Returned(twin)) == settle(Returned(outcome))


@pytest.mark.parametrize(
    ("outcome", "text"),
    [
        (Ack(), "Ack()"),
        (Drop(), "Drop()"),
        (Retry(), "Retry()"),
        (Retry(2.5), "Retry(after=2.5)"),
        (Retry(at=NOON), "Retry(at=2026-03-01T12:00:00+00:00)"),
        (Snooze(timedelta(minutes=1)), "Snooze(60)"),
        (Dead("a"), "Dead('a')"),
        (Dead("x" * 10_000), f"Dead({'x' * 59 + '…'!r})"),
    ],
)
def test_repr_is_small(outcome: Outcome, text: str) -> None:
    assert repr(outcome) == str(outcome) == text


@pytest.mark.parametrize(
    ("outcome", "name"), [(Retry(1), "after"), (Retry(at=NOON), "at"), (Snooze(1), "delay"), (Dead("a"), "reason")]
)
def test_outcomes_can_not_be_changed(outcome: Outcome, name: str) -> None:
    before = settle(Returned(outcome))
    with pytest.raises(AttributeError):
        setattr(outcome, name, None)
    assert settle(Returned(outcome)) == before


# --- failures --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attempt", "delay_ms"), [(-5, 1000), (0, 1000), (1, 1000), (2, 2000), (9, 256_000), (10, 300_000), (99, 300_000)]
)
def test_a_failure_waits_by_the_backoff(attempt: int, delay_ms: int) -> None:
    # contract: R1
    # case: C65
    assert settle(Raised(KeyError("S3CR3T")), attempt, 100) == pending(
        "failed", delay_ms=delay_ms, category=Category.FAILED, error_class="KeyError"
    )
    assert settle(TimedOut(), attempt, 100) == pending("timed_out", delay_ms=delay_ms, category=Category.TIMED_OUT)


def test_a_failure_takes_the_jitter() -> None:
    # contract: R1
    assert settle(Raised(KeyError()), 4, 9, jitter=0.5).delay_ms == 7600
    assert settle(TimedOut(), 4, 9, jitter=0.5).delay_ms == 7600


@pytest.mark.parametrize("attempt", [3, 4, 10**6])
def test_the_last_failure_is_the_records_category(attempt: int) -> None:
    # contract: R1, R2
    assert settle(Raised(SafeError("no route")), attempt) == Settlement(
        7,
        "t",
        State.DEAD,
        "failed",
        category=Category.FAILED,
        error_class="rowlock.errors.SafeError",
        summary="no route",
    )
    assert settle(Returned(5), attempt).category is Category.FAILED
    assert settle(TimedOut(), attempt) == Settlement(7, "t", State.DEAD, "timed_out", category=Category.TIMED_OUT)


@pytest.mark.parametrize(
    ("error", "path"),
    [
        (SystemExit(0), "SystemExit"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (GeneratorExit(), "GeneratorExit"),
        (asyncio.CancelledError(), "asyncio.exceptions.CancelledError"),
        (ExceptionGroup("S3CR3T", [Dead("S3CR3T"), Snooze(1)]), "ExceptionGroup"),
        (BaseExceptionGroup("S3CR3T", [SystemExit()]), "BaseExceptionGroup"),
        (OSError("S3CR3T \udcff"), "OSError"),
    ],
)
def test_whatever_is_raised_is_a_failure_of_its_class(error: BaseException, path: str) -> None:
    # contract: R4, S6
    # case: C62, C64
    assert settle(Raised(error)) == pending("failed", delay_ms=1000, category=Category.FAILED, error_class=path)


@pytest.mark.parametrize("category", list(Category)[-4:])
def test_blocked_gives_the_attempt_back(category: Category) -> None:
    # contract: S4
    assert settle(Blocked(category), 3) == Settlement(7, "t", State.BLOCKED, "blocked", refund=True, category=category)


def test_given_back_is_not_spent_and_keeps_its_place() -> None:
    # contract: C3, M6
    assert settle(GivenBack(), 3) == pending("returned", refund=True)
    assert settle(GivenBack(shutdown=True), 3) == pending("returned", refund=True, handed_back=True)


def test_cancelled() -> None:
    # contract: O4
    assert settle(Cancelled()) == Settlement(7, "t", State.CANCELLED, "cancelled", category=Category.CANCELLED)


def test_the_words_of_states_and_categories() -> None:
    # contract: S3, R2, S4
    assert [str(s) for s in State] == ["pending", "running", "succeeded", "dead", "blocked", "cancelled"]
    assert [str(c) for c in Category] == [
        "failed",
        "timed_out",
        "attempts_exhausted",
        "cancelled",
        "rejected",
        "unknown_job",
        "schema_mismatch",
        "corrupt_payload",
        "invalid_policy",
    ]


# --- texts -----------------------------------------------------------------------------------------------------


class Loud(str):
    __slots__ = ()

    def __str__(self) -> str:
        raise SystemExit

    __getitem__ = replace = encode = __len__ = __iter__ = __str__  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("plain ü 漢 🚣", "plain ü 漢 🚣"),
        ("a\0b", "a\\x00b"),
        ("\udcff and \ud800", "\\udcff and \\ud800"),
        ("x" * 501, "x" * 500),
        ("\0" * 500, ("\\x00" * 500)[:500]),
        ("🚣" * 600, "🚣" * 500),
        pytest.param(Loud("loud\0"), "loud\\x00", id="hostile"),
        ("", ""),
    ],
)
def test_a_summary_is_cut_and_cleaned(text: str, stored: str) -> None:
    # contract: S6
    # case: C62
    assert clean_summary(text) == stored
    assert type(clean_summary(text)) is str
    assert Dead(text).reason == stored
    assert safe_summary(SafeError(text)) == stored


@given(st.text(st.characters(exclude_categories=())))
def test_a_summary_can_always_be_stored(text: str) -> None:
    # contract: S6
    stored = clean_summary(text)
    assert "\0" not in stored
    assert len(stored.encode("utf-8").decode("utf-8")) <= 500
    assert clean_summary(stored) == stored


class Hostile:
    def __str__(self) -> str:
        raise SystemExit("S3CR3T")

    __repr__ = __str__


class NotText:
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]  # noqa: PLE0307


class HostileArgs(SafeError):
    @property
    def args(self) -> tuple[object, ...]:  # type: ignore[override]
        raise SystemExit

    def __str__(self) -> str:
        raise SystemExit


@pytest.mark.parametrize(
    ("error", "summary"),
    [
        (SafeError("a", "b"), "a"),
        (SafeError(), None),
        (SafeError(42), "42"),
        (SafeError(Hostile()), None),
        (SafeError(NotText()), None),
        (SafeError(ValueError("S3CR3T")), None),
        (HostileArgs("fine"), "fine"),
        (ValueError("S3CR3T"), None),
        (Exception(SafeError("inner")), None),
    ],
)
def test_only_a_safe_errors_own_text_is_kept(error: BaseException, summary: str | None) -> None:
    # contract: S6
    # case: C64
    settlement = settle(Raised(error))
    assert settlement.summary == summary
    assert settlement.category is Category.FAILED
    assert "S3CR3T" not in repr(settlement)


class Meta(type):
    def __getattribute__(cls, name: str) -> object:
        if name in ("__name__", "__qualname__", "__module__"):
            raise SystemExit
        return super().__getattribute__(name)


class Masked(Exception, metaclass=Meta):
    pass


class NoModule(Exception):
    __module__ = 5  # type: ignore[assignment]


def test_the_error_class_is_a_dotted_path() -> None:
    # contract: S6
    class Local(Exception):
        pass

    Local.__module__ = "shop.orders"
    assert error_class(Local()) == f"shop.orders.{Local.__qualname__}"
    assert error_class(NoModule()) == "NoModule"
    assert error_class(ValueError()) == "ValueError"
    assert error_class(type("N" * 5000, (Exception,), {"__module__": "m"})()) == "m." + "N" * 198
    assert error_class(type("A", (Exception,), {"__module__": "m\udcff\0"})()) == "m\\udcff\\x00.A"


def test_a_metaclass_can_not_end_a_settlement() -> None:
    # contract: S6, R4
    assert error_class(Masked()).endswith("Masked")
    assert settle(Returned(Masked)).category is Category.FAILED
