"""Says how an attempt ended, and tells people of failures without telling secrets (R, S6)."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING, Any

from rowlock.model.answer import Ack, Dead, Drop
from rowlock.model.context import StopReason
from rowlock.model.outcome import Cancelled, End, GivenBack, Raised, Returned, TimedOut, is_outcome, not_an_outcome
from rowlock.runtime.describe import log, trace
from rowlock.runtime.events import Event

if TYPE_CHECKING:
    from rowlock.runtime.attempt import Attempt


def conclude(attempt: Attempt, value: Any, error: BaseException | None) -> End | None:
    """How the attempt ended; runs on the handler's own thread or task, and calls the failure hooks there.

    None if the outcome was fixed before (settled at its overrun, or lost): what it says now is dropped.
    """
    now = attempt.ended = monotonic()
    if attempt.closed or attempt.lost:
        return None
    if attempt.cancelled:
        # Whatever stopped it, if it did not complete the work it is cancelled, and that is no failure (O4).
        late = attempt.timed_out or now >= attempt.deadline or attempt.stray is not None
        return Cancelled() if late else _completed(value, error) or Cancelled()
    if attempt.stop is StopReason.SHUTDOWN and error is not None and not is_outcome(error):
        return GivenBack(shutdown=True)
    if attempt.timed_out or now >= attempt.deadline:
        report_failure(attempt, timeout_error(attempt))
        return TimedOut()
    if attempt.stray is not None:
        report_failure(attempt, attempt.stray)
        return Raised(attempt.stray)
    if error is None:
        if value is not None and not is_outcome(value):
            report_failure(attempt, not_an_outcome(value))
        return Returned(value)
    if not is_outcome(error):  # a CancelledError that nobody of ours sent is a failure like any other
        report_failure(attempt, error)
    return Raised(error)


def _completed(value: Any, error: BaseException | None) -> End | None:
    """What a handler said that got to its own end all the same: done with it, or that it never can be (O4)."""
    said = value if error is None else error
    if said is None:
        return Returned(None)
    if not isinstance(said, Ack | Drop | Dead):
        return None
    return Returned(said) if error is None else Raised(error)


def report_failure(attempt: Attempt, error: BaseException, *, still_runs: bool = False) -> None:
    """The error log's line, then the `on_failure` hooks, which get the live exception (S6)."""
    record = attempt.record
    log.error(
        "job %r, record %d: attempt %d of %d failed%s: %s",
        record.job, record.id, record.attempt, record.max_attempts,
        ", and its handler still runs" if still_runs else "", trace(error),
    )  # fmt: skip
    floor = attempt.lane.floor
    for hook in floor.failure:
        try:
            hook(error, attempt.context())
        except BaseException as raised:  # noqa: BLE001 - it failed already; a hook adds nothing to that (H2, R4)
            floor.events.complain(hook, raised, "on_failure hook")


def timeout_error(attempt: Attempt) -> TimeoutError:
    """What failure hooks get for a handler that did not end in time."""
    return TimeoutError(f"the handler of job {attempt.record.job!r} did not end within {attempt.record.timeout_ms} ms")


def say_dropped(attempt: Attempt) -> None:
    """A handler ended whose outcome was fixed before: one line, and nothing else happens (R3, L3)."""
    record = attempt.record
    why = "its hold was lost" if attempt.lost else "it had been settled as timed out"
    seconds = monotonic() - (attempt.begun or 0)
    log.warning(
        "job %r, record %d: the handler of attempt %d ended after %.1f s; its result is dropped, since %s",
        record.job, record.id, record.attempt, seconds, why,
    )  # fmt: skip


def say_claimed(attempt: Attempt, waited: float) -> None:
    """The attempt is about to be started, `waited` seconds after its record was due: counter, histogram and event."""
    record, floor, series = attempt.record, attempt.lane.floor, attempt.series
    waited = max(0.0, waited)
    series.claimed += 1
    series.latency.observe(waited)
    if floor.tell_claimed:
        about = (record.id, record.job, record.queue, record.attempt)
        floor.events.tell(Event("claimed", *about, None, waited, "running", attempt.lane.db.name))


def lost_it(earlier: Attempt) -> bool:
    """Whether an attempt of this process, whose handler still runs, has lost the record that was claimed again.

    The claim may be the first to say so. One that was settled at its overrun has lost nothing: that the next may
    overlap with it is agreed (R3).
    """
    if not earlier.closed:
        earlier.lose()
    return earlier.lost


def say_lost(attempt: Attempt) -> None:
    """The hold of an attempt is gone: line, counter and event (L3)."""
    record, floor = attempt.record, attempt.lane.floor
    log.warning(
        "job %r, record %d: attempt %d lost its hold (LeaseLost); its handler is stopped, and what it does changes "
        "the record no more",
        record.job, record.id, record.attempt,
    )  # fmt: skip
    attempt.series.lost += 1
    if floor.events.wanted("lost"):
        floor.events.tell(event(attempt, "lost", state=None))


def event(attempt: Attempt, name: str, outcome: str | None = None, *, state: str | None) -> Event:
    """An event about the attempt's record."""
    record = attempt.record
    seconds = None if attempt.begun is None else (attempt.ended or monotonic()) - attempt.begun
    database = attempt.lane.db.name
    return Event(name, record.id, record.job, record.queue, record.attempt, outcome, seconds, state, database)
