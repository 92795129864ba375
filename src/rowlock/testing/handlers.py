"""For tests of a handler alone, and for tests that want Rowlock itself to fail."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from rowlock.errors import KitValueError
from rowlock.model.context import Context, StopReason
from rowlock.model.job import Job
from rowlock.runtime import faults
from rowlock.testing.transactions import Given, GivenTransaction


def context(
    job: Job[Any, Any] | str = "test", *, id: int = 1, key: str | None = None, attempt: int = 1,
    max_attempts: int | None = None, deadline: datetime | None = None, queue: str | None = None,
    run_at: datetime | None = None, headers: Mapping[str, str] | None = None, stop_reason: StopReason | None = None,
    stopping: bool = False, connection: Given | None = None,
) -> Context:  # fmt: skip
    """A `Context` for calling `job.handler` in a unit test (R7).

    Of a job it has the name, the queue, `max_attempts` and the deadline, unless they are given. Else `max_attempts` is
    at least `attempt`, and the deadline an hour from now. `stop_reason` implies `stopping`. `connection`
    (what an enqueue takes) is what a transactional handler finds as `ctx.connection`, `ctx.session()` and their async
    forms (L8); it is the test that ends its transaction. Raises `KitValueError`.
    """
    declared = job if isinstance(job, Job) else None
    if max_attempts is None:
        max_attempts = max(attempt, 1 if declared is None else declared.max_attempts)
    if not 1 <= attempt <= max_attempts:
        raise KitValueError(f"attempt={attempt} must be 1..max_attempts, which is {max_attempts} (R7)")
    now = datetime.now(UTC)
    made = Context(
        id=id,
        job=job if isinstance(job, str) else job.name,
        key=key,
        attempt=attempt,
        max_attempts=max_attempts,
        deadline=deadline or now + (timedelta(hours=1) if declared is None else declared.timeout),
        queue=queue or ("default" if declared is None else declared.queue),
        run_at=run_at or now,
        headers=headers,
    )
    if connection is not None:
        made._join(GivenTransaction(connection))  # noqa: SLF001 - in place of the worker  # pyright: ignore[reportPrivateUsage]
    if stopping or stop_reason is not None:
        made._stop(stop_reason)  # noqa: SLF001 - in place of the worker  # pyright: ignore[reportPrivateUsage]
    return made


@contextmanager
def fault(point: str, exc: BaseException, times: int = 1) -> Generator[None]:
    """Makes the library raise `exc` the next time, or `times`, that it passes `point`; also in a live worker.

    The points: claiming, claimed, cursor-advanced, settling, rescuer, announcer, scheduler, sweeper, keeper, listener.
    What is not passed within the block is disarmed at its end. Raises ValueError for another point. (X1)
    """
    faults.arm(point, exc, times)
    try:
        yield
    finally:
        faults.disarm(point)
