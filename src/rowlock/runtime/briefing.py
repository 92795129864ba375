"""What a handler is told: its context, that it should stop, and the transaction that it works in (R7, L8)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from rowlock.model.context import Context, StopReason

if TYPE_CHECKING:
    from rowlock.runtime.attempt import Attempt
    from rowlock.store.transactional import HandlerTransaction


def context_of(attempt: Attempt) -> Context:
    """The context of an attempt, as things stand with it now."""
    record, db = attempt.record, attempt.lane.db
    now = db.clock.host_now()
    made = Context(
        id=record.id,
        job=attempt.plan.name,
        key=record.key,
        attempt=record.attempt,
        max_attempts=record.max_attempts,
        deadline=now + timedelta(milliseconds=record.timeout_ms),
        queue=record.queue,
        run_at=db.dialect.from_db(record.run_at) or now,
        headers=record.headers,
    )
    if attempt.transaction is not None:
        join(made, attempt.transaction)
    if attempt.stop is not None or attempt.lane.floor.draining:
        told_to_stop(made, attempt.stop)
    return made


def told_to_stop(context: Context, reason: StopReason | None) -> None:
    """Sets what a handler sees of it."""
    context._stop(reason)  # noqa: SLF001 - the runtime is the one who says so  # pyright: ignore[reportPrivateUsage]


def join(context: Context, transaction: HandlerTransaction) -> None:
    """Gives a handler the transaction of its attempt."""
    context._join(transaction)  # noqa: SLF001 - the runtime is the one who says so  # pyright: ignore[reportPrivateUsage]
