"""What a failed `assert_enqueued` says: what was looked for, and the near misses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rowlock.model.job import Job
from rowlock.model.outcome import State
from rowlock.store.records import Record
from rowlock.testing.finding import EnqueuedRecord, Wanted

MOST = 10
"""So many records are shown; the closest ones first."""


def too_few(
    job: Job[Any, Any], wanted: Wanted, count: int | None, found: Sequence[EnqueuedRecord[Any]],
    others: Mapping[str, int], now: datetime,
) -> str:  # fmt: skip
    """The message when not `count` records (None: at least one) are what is wanted."""
    matches = [record for record in found if not wanted.differences(record)]
    least = "at least one is" if count is None else f"{count} {'is' if count == 1 else 'are'}"
    lines = [f"{least} wanted of job {job.name!r}{_where(wanted)}, and {_number(matches)} enqueued"]
    if matches:
        lines += ["  these match:", *_listed(matches, now)]
    misses = [record for record in found if wanted.differences(record)]
    if misses:
        lines += ["  of this job, with other values:", *_listed_misses(misses, wanted, now)]
    elif not matches:
        lines.append("  nothing of this job was enqueued")
    lines.append(_others(job, others))
    return "\n".join(lines)


def too_many(job: Job[Any, Any], wanted: Wanted, found: Sequence[EnqueuedRecord[Any]], now: datetime) -> str:
    """The message when records are found that should not be there."""
    lines = [f"nothing is wanted of job {job.name!r}{_where(wanted)}, and {_number(found)} enqueued:"]
    return "\n".join([*lines, *_listed(found, now)])


def _where(wanted: Wanted) -> str:
    return f" with {wanted}" if str(wanted) else ""


def _number(found: Sequence[object]) -> str:
    return f"{len(found)} {'was' if len(found) == 1 else 'were'}" if found else "none was"


def _listed(found: Sequence[EnqueuedRecord[Any]], now: datetime) -> list[str]:
    lines = [f"    {_line(record, now)}" for record in found[:MOST]]
    return lines + _rest(len(found))


def _listed_misses(found: Sequence[EnqueuedRecord[Any]], wanted: Wanted, now: datetime) -> list[str]:
    closest = sorted(found, key=lambda record: len(wanted.differences(record)))
    lines = [f"    {_line(record, now)}\n      {'; '.join(wanted.differences(record))}" for record in closest[:MOST]]
    return lines + _rest(len(found))


def _rest(number: int) -> list[str]:
    return [f"    … and {number - MOST} more"] if number > MOST else []


def _line(found: EnqueuedRecord[Any], now: datetime) -> str:
    record = found.record
    key = "" if record.key is None else f", key {record.key!r}"
    try:
        input = repr(found.input)
    except Exception as error:  # noqa: BLE001 - an upgrade function is a user's code
        input = f"its input can not be read ({type(error).__name__})"
    return f"#{record.id} {_state(record, now)}, queue {record.queue!r}{key}: {input}"


def _state(record: Record, now: datetime) -> str:
    if record.state is State.PENDING:
        return "pending, due now" if record.run_at <= now else f"pending, due in {record.run_at - now}"
    return f"{record.state}, {record.error_category}" if record.error_category else str(record.state)


def _others(job: Job[Any, Any], numbers: Mapping[str, int]) -> str:
    others = [f"{name} ({number})" for name, number in sorted(numbers.items()) if name not in job.names]
    if not others:
        return "  no other job was enqueued"
    more = f" and {len(others) - MOST} more" if len(others) > MOST else ""
    return f"  other jobs that were: {', '.join(others[:MOST])}{more}"
