# What is refused is tried, and private facts are looked at.
# pyright: reportArgumentType=false, reportPrivateUsage=false
from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rowlock.errors import LeaseLost, RowlockError, TransactionMisuse
from rowlock.model.context import Context, StopReason

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def context(**changes: Any) -> Context:
    values: dict[str, Any] = {
        "id": 7,
        "job": "news.publish",
        "key": "publish:1",
        "attempt": 2,
        "max_attempts": 5,
        "deadline": NOON + timedelta(seconds=30),
        "queue": "web",
        "run_at": NOON,
    }
    return Context(**{**values, **changes})


def test_has_what_the_record_says() -> None:
    # contract: R7
    ctx = context(headers={"traceparent": "00-1"})
    assert (ctx.id, ctx.job, ctx.key, ctx.queue) == (7, "news.publish", "publish:1", "web")
    assert (ctx.attempt, ctx.max_attempts) == (2, 5)
    assert (ctx.run_at, ctx.deadline) == (NOON, NOON + timedelta(seconds=30))
    assert ctx.headers == {"traceparent": "00-1"}
    assert (ctx.stopping, ctx.stop_reason) == (False, None)
    assert context(key=None).key is None


@pytest.mark.parametrize(
    ("stored", "read"),
    [
        (None, {}),
        ("{}", {}),
        ({}, {}),
        ('{"a": "é"}', {"a": "é"}),
        ('{"a": "é"}'.encode(), {"a": "é"}),
        ("null", {}),
        ("[]", {}),
        ("{", {}),
        ("", {}),
        (b'{"a": "\xff"}', {}),
        ('{"a": 1}', {}),
        ("[" * 100_000, {}),
        ('{"a":' * 100_000, {}),
        ("\ud800", {}),
    ],
)
def test_headers_are_a_map_of_texts_whatever_is_stored(stored: object, read: Mapping[str, str]) -> None:
    # contract: R7, C5
    ctx = context(headers=stored)
    assert ctx.headers == read
    assert ctx.headers is ctx.headers


def test_headers_are_read_only_and_the_contexts_own() -> None:
    given = {"a": "1"}
    ctx = context(headers=given)
    assert ctx.headers == {"a": "1"}
    given["a"] = "2"
    assert ctx.headers == {"a": "1"}
    with pytest.raises(TypeError):
        ctx.headers["a"] = "3"  # type: ignore[index]


def test_the_reasons_are_words() -> None:
    # contract: R7
    assert [str(reason) for reason in StopReason] == ["shutdown", "cancelled", "lost", "deadline"]


def test_a_drain_stops_before_it_has_a_reason() -> None:
    # contract: R7, M6
    ctx = context()
    ctx._stop()
    assert (ctx.stopping, ctx.stop_reason) == (True, None)
    ctx._stop(StopReason.SHUTDOWN)
    assert (ctx.stopping, ctx.stop_reason) == (True, StopReason.SHUTDOWN)
    ctx._stop()
    assert ctx.stop_reason is StopReason.SHUTDOWN


def test_the_first_reason_stays_except_for_a_lost_hold() -> None:
    # contract: R7, L3
    ctx = context()
    ctx._stop(StopReason.DEADLINE)
    ctx._stop(StopReason.SHUTDOWN)
    assert ctx.stop_reason is StopReason.DEADLINE
    ctx._stop(StopReason.LOST)
    assert ctx.stop_reason is StopReason.LOST
    ctx._stop(StopReason.CANCELLED)
    assert ctx.stop_reason is StopReason.LOST


def test_a_sync_handler_sees_it_on_its_thread() -> None:
    # contract: R7
    ctx, started, seen = context(), threading.Event(), list[StopReason | None]()

    def handler() -> None:
        started.set()
        while not ctx.stopping:
            pass
        seen.append(ctx.stop_reason)

    thread = threading.Thread(target=handler)
    thread.start()
    assert started.wait(10)
    ctx._stop(StopReason.CANCELLED)
    thread.join(10)
    assert seen == [StopReason.CANCELLED]


def test_a_lost_hold_can_be_asked_for() -> None:
    # contract: L3
    ctx = context()
    ctx.raise_if_lost()
    ctx._stop(StopReason.SHUTDOWN)
    ctx.raise_if_lost()
    ctx._stop(StopReason.LOST)
    with pytest.raises(LeaseLost, match=r"record 7 of job 'news\.publish': attempt 2"):
        ctx.raise_if_lost()


@pytest.mark.parametrize("name", ["connection", "session", "aconnection", "asession"])
def test_the_transaction_is_refused_by_name(name: str) -> None:
    # contract: L8, Z1
    ctx = context()
    with pytest.raises(TransactionMisuse, match=f"{name}.*transactional=True") as caught:
        value = getattr(ctx, name)
        value()
    assert isinstance(caught.value, RowlockError)


def test_repr_never_shows_headers_or_key() -> None:
    # contract: S6
    # case: C64
    ctx = context(key="S3CR3T", headers={"authorization": "S3CR3T"})
    assert ctx.headers
    assert repr(ctx) == str(ctx) == "<Context id=7 job='news.publish' attempt=2/5>"


def test_nothing_can_be_hung_on_it() -> None:
    with pytest.raises(AttributeError):
        context().other = 1  # type: ignore[attr-defined]
