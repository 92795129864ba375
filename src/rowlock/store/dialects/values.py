"""What the hooks take and answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from rowlock.model.table import JOB_TABLE, QueueShape


@dataclass(frozen=True, slots=True)
class Branch:
    """One (job, fingerprint) pair that this program can run, and the lease that its records get, in ms."""

    job: str
    fingerprint: str
    lease_ms: int


@dataclass(frozen=True)
class Source:
    """What one claimer takes from: a table, a queue of it, and the pairs that this program knows (S7)."""

    table: QueueShape
    queue: str
    branches: tuple[Branch, ...]
    claimed_by: str


class Claimed(NamedTuple):
    """One record that was claimed. Times are as the driver gives them: see `Dialect.from_db`."""

    id: int
    job: str
    fingerprint: str
    payload: bytes | str
    key: str | None
    queue: str
    priority: int
    run_at: Any
    attempt: int
    max_attempts: int
    timeout_ms: int
    headers: str | None
    token: str
    lease_ms: int
    cancelled: bool | int
    """Somebody asked to cancel it: it must not be run, only settled as that (O4)."""
    waited: float = 0.0
    """Seconds from `run_at` to the claim, both by the database's clock."""


class Level(NamedTuple):
    """The head of one branch at one priority: whether it is due, and else in how many seconds."""

    branch: int
    priority: int
    wait: float


class Row(NamedTuple):
    """One job row to insert. `run_at` and `delay_ms` are None for "now"; `nonce` tells what an insert made.

    A `run_at` in the past means now (E6), unless `exact`, which is the same for all rows of an insert.
    """

    job: str
    fingerprint: str
    payload: str
    key: str | None
    queue: str
    priority: int
    run_at: datetime | None
    delay_ms: int | None
    max_attempts: int
    timeout_ms: int
    headers: str | None
    nonce: str
    exact: bool = False


class Inserted(NamedTuple):
    """One row that an insert made: the nonce that it was given, and its id."""

    nonce: str
    id: int


class Hold(NamedTuple):
    """A record in work, as its holder knows it."""

    id: int
    token: str
    lease_ms: int


PARAMETERS = {
    "lease_ms": "bigint",
    "delay_ms": "bigint",
    "at": "instant",
    "refund": "integer",
    "back": "integer",
    "category": "text",
    "klass": "text",
    "summary": "text",
}
"""The values of a record that an assignment of `fenced_update` may name, and their types."""

CLAIMED_COLUMNS = (
    *("id", "job", "fingerprint", "payload", "key", "group", "priority", "run_at", "attempt", "max_attempts"),
    *("timeout_ms", "headers", "token"),
)
"""The roles that a claim reads, in the order of `Claimed`."""


@dataclass(frozen=True, slots=True)
class Looking:
    """How records are looked for by their state (O1): what stands behind the job table's name, and which indexes are
    there."""

    by_state: Mapping[str, str] = field(default_factory=dict[str, str])
    by_id: str = ""
    partial: bool = True
    """Indexes can have a condition, so that there is one of the ids of dead, blocked and cancelled records."""


def one_of(states: Sequence[str]) -> str:
    """SQL that compares with these states."""
    if len(states) == 1:
        return f"= '{states[0]}'"
    return "IN (" + ", ".join(f"'{state}'" for state in states) + ")"


def is_cancelled(shape: QueueShape, id_: str) -> str:
    """SQL that tells whether somebody asked to cancel the job record `id_`: one probe by primary key (O4).

    No EXISTS: a planner may answer that one by reading all cancels.
    """
    if shape.table != JOB_TABLE:
        return "(1 = 0)"
    return f"((SELECT k.id FROM rowlock_cancel k WHERE k.id = {id_}) IS NOT NULL)"


def not_paused(shape: QueueShape) -> str:
    """SQL that tells that nobody has paused the queue that is claimed from (O5): one probe by primary key."""
    if shape.table != JOB_TABLE:
        return "(1 = 1)"
    return "NOT EXISTS (SELECT 1 FROM rowlock_pause p WHERE p.queue = :queue)"


def lease_of(source: Source) -> dict[str, int]:
    """The lease of each job's records, in ms."""
    return {branch.job: branch.lease_ms for branch in source.branches}


def driver_error(error: BaseException) -> Any:
    """The driver's own error inside SQLAlchemy's wrapping."""
    return getattr(error, "orig", None) or error
