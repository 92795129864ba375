from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from rowlock import App, Context, StopReason
from rowlock.runtime import faults
from rowlock.testing import KitValueError, context, fault

app = App()


@app.job(max_attempts=5, timeout=90, name="news.publish", queue="web")
def publish(ctx: Context) -> None:
    if ctx.attempt == 1:
        raise RuntimeError


def test_a_context_for_a_handler_alone() -> None:
    # contract: R7, J2
    publish.handler(context(attempt=2))
    with pytest.raises(RuntimeError):
        publish.handler(context())


def test_a_context_has_defaults_of_its_own() -> None:
    # contract: R7
    before = datetime.now(UTC)
    ctx = context()
    assert (ctx.id, ctx.job, ctx.key, ctx.attempt, ctx.max_attempts) == (1, "test", None, 1, 1)
    assert (ctx.queue, dict(ctx.headers), ctx.stopping, ctx.stop_reason) == ("default", {}, False, None)
    assert before <= ctx.run_at <= datetime.now(UTC)
    assert ctx.deadline == ctx.run_at + timedelta(hours=1)
    assert context(attempt=7).max_attempts == 7


def test_a_context_of_a_job_has_what_the_job_says() -> None:
    # contract: R7
    ctx = context(publish, attempt=2)
    assert (ctx.job, ctx.queue, ctx.max_attempts) == ("news.publish", "web", 5)
    assert ctx.deadline == ctx.run_at + timedelta(seconds=90)


def test_a_context_has_what_is_given() -> None:
    # contract: R7
    noon = datetime(2027, 3, 1, 12, tzinfo=UTC)
    ctx = context(
        "job",
        id=9,
        key="k",
        attempt=2,
        max_attempts=3,
        deadline=noon,
        queue="q",
        run_at=noon,
        headers={"traceparent": "00"},
    )
    assert (ctx.id, ctx.job, ctx.key, ctx.attempt, ctx.max_attempts) == (9, "job", "k", 2, 3)
    assert (ctx.deadline, ctx.queue, ctx.run_at, dict(ctx.headers)) == (noon, "q", noon, {"traceparent": "00"})


def test_a_context_can_be_told_to_stop() -> None:
    # contract: R7
    ctx = context(stop_reason=StopReason.SHUTDOWN)
    assert (ctx.stopping, ctx.stop_reason) == (True, StopReason.SHUTDOWN)
    assert (context(stopping=True).stopping, context(stopping=True).stop_reason) == (True, None)


@pytest.mark.parametrize("attempt", [0, 6, -1])
def test_a_context_refuses_an_attempt_that_can_not_be(attempt: int) -> None:
    # contract: R7, Z1
    with pytest.raises(KitValueError, match=r"1\.\.max_attempts, which is 5"):
        context(attempt=attempt, max_attempts=5)


def test_a_fault_is_raised_once() -> None:
    # contract: X1
    error = RuntimeError("injected")
    with fault("settling", error):
        faults.hit("claimed")
        with pytest.raises(RuntimeError) as raised:
            faults.hit("settling")
        assert raised.value is error
        faults.hit("settling")


def test_a_fault_that_is_not_met_ends_with_its_block() -> None:
    # contract: X1
    with fault("keeper", RuntimeError()), fault("claimed", LookupError()):
        pass
    with fault("keeper", RuntimeError()):
        with fault("claimed", LookupError()):
            pass
        with pytest.raises(RuntimeError):
            faults.hit("keeper")
    faults.hit("keeper")
    faults.hit("claimed")


def test_a_fault_needs_a_point_that_there_is() -> None:
    # contract: X1, Z1
    with pytest.raises(ValueError, match="cursor-advanced"), fault("nowhere", RuntimeError()):
        pass
