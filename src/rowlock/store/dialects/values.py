"""What the hooks take and answer."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from rowlock.model.table import QueueShape


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


class Level(NamedTuple):
    """The head of one branch at one priority: whether it is due, and else in how many seconds."""

    branch: int
    priority: int
    wait: float


class Row(NamedTuple):
    """One job row to insert. `run_at` and `delay_ms` are None for "now"; `nonce` tells what an insert made."""

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


class Inserted(NamedTuple):
    """One row that an insert made: the nonce that it was given, and its id."""

    nonce: str
    id: int


class Hold(NamedTuple):
    """A record in work, as its holder knows it."""

    id: int
    token: str
    lease_ms: int
