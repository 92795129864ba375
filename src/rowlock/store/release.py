"""Blocked records that this program can run again go back to pending (O3). Blocking spent no attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from sqlalchemy import ColumnElement, column
from sqlalchemy.engine import Connection
from typing_extensions import override

from rowlock.model.outcome import Category, State
from rowlock.model.policy import MAX_ATTEMPTS, TIMEOUT_MAX
from rowlock.store.audit import Action
from rowlock.store.change import Change
from rowlock.store.programs import Pair
from rowlock.store.revive import Batch, Holders, Revival, Row

if TYPE_CHECKING:
    from rowlock.store.database import Database

_CATEGORIES = (Category.UNKNOWN_JOB, Category.SCHEMA_MISMATCH, Category.INVALID_POLICY)
_TIMEOUT_MAX_MS = round(TIMEOUT_MAX.total_seconds() * 1000)
_NOT_TRIED = "error_category = NULL, error_class = NULL, error_summary = NULL"


class Known(NamedTuple):
    """A pair that this program knows: the names that share its keys, the first of them its own; and its lease."""

    names: tuple[str, ...]
    lease_ms: int | None
    """None where a lease need not cover the timeout (L5)."""


Program = Mapping[Pair, Known]


class Release(Change):
    """Back to pending, due now, its attempt as it was."""

    action: ClassVar[Action] = Action.RELEASE
    rule: ClassVar[str] = "O3"
    done: ClassVar[str] = "released"
    states: ClassVar[tuple[State, ...]] = (State.BLOCKED,)

    def __init__(self, db: Database, program: Program) -> None:
        super().__init__(db)
        self._program = program

    @override
    def among(self) -> list[ColumnElement[bool]]:
        return [column("error_category").in_([each.value for each in _CATEGORIES])]

    @override
    def why_not(self, row: Any) -> str | None:
        return why_not(self._program, row)

    @override
    def names(self, row: Any) -> tuple[str, ...]:
        return self._program[Pair(row.job, row.fingerprint)].names

    @override
    def apply(self, conn: Connection, rows: Sequence[Row], held: Holders, *, dry_run: bool) -> Batch:
        return Revival(self.db, _NOT_TRIED, held, dry_run=dry_run).run(conn, rows)


def why_not(program: Program, row: Any) -> str | None:
    """Why this program can not run the record again; None if it can."""
    if row.state != State.BLOCKED.value:
        return f"it is {row.state}, not blocked"
    if row.error_category not in _CATEGORIES:
        return f"it is blocked as {row.error_category}, which no program cures; replay or purge it"
    known = program.get(Pair(row.job, row.fingerprint))
    if known is None:
        what = "with its input" if any(each.job == row.job for each in program) else "at all"
        return f"this program does not know job {row.job!r} {what}; deploy one that does, or purge the record"
    if not (1 <= row.max_attempts <= MAX_ATTEMPTS and 1 <= row.timeout_ms <= _TIMEOUT_MAX_MS):
        return f"its stored limits (max_attempts {row.max_attempts}, timeout {row.timeout_ms} ms) are out of bounds"
    if known.lease_ms is not None and known.lease_ms <= row.timeout_ms:
        return f"its lease of {known.lease_ms} ms does not cover its stored timeout of {row.timeout_ms} ms (L5)"
    return None
