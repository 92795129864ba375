"""Judges a claimed record before it is run: is its job known, its policy within bounds, its payload sound (S4, W5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rowlock.errors import CorruptPayload
from rowlock.model.outcome import Blocked, Category, Raised
from rowlock.model.policy import MAX_ATTEMPTS, TIMEOUT_MAX

if TYPE_CHECKING:
    from rowlock.runtime.roster import Plan, Roster
    from rowlock.store.dialects.base import Claimed

_TIMEOUT_MAX_MS = round(TIMEOUT_MAX.total_seconds() * 1000)


class Refused(Exception):  # noqa: N818 - it tells what happened to the record
    """The record is not run by this attempt; `end` is what becomes of it."""

    def __init__(self, end: Blocked | Raised) -> None:
        super().__init__()
        self.end = end


def plan_of(roster: Roster, record: Claimed) -> Plan:
    """How to run the record. Raises `Refused`."""
    plan = roster.plans.get((record.job, record.fingerprint))
    if plan is None:
        known = record.job in roster.names
        raise Refused(Blocked(Category.SCHEMA_MISMATCH if known else Category.UNKNOWN_JOB))
    if not (
        1 <= record.attempt <= record.max_attempts <= MAX_ATTEMPTS and 1 <= record.timeout_ms <= _TIMEOUT_MAX_MS
    ) or (roster.covered and record.lease_ms <= record.timeout_ms):
        raise Refused(Blocked(Category.INVALID_POLICY))
    return plan


def decode(plan: Plan, payload: bytes | str) -> Any:
    """The input of one record. Raises `Refused`.

    What a stored payload does to the codec makes it corrupt. What a user's code does while the input is built (an
    upgrade function, a `__post_init__`) is a failed attempt, SystemExit and its like included (R4).
    """
    try:
        return plan.decode(payload)
    except (CorruptPayload, RecursionError):
        raise Refused(Blocked(Category.CORRUPT_PAYLOAD)) from None
    except BaseException as error:  # noqa: BLE001 - R4
        raise Refused(Raised(error)) from None
