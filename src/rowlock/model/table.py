"""What a queue table is: which column plays which role, and how its records are held.

Rowlock's own job table and a table of the user's are described by the same value, so that one claim, one
renewal and one settlement serve both. A role that a table lacks switches its behaviour off (Q1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class Lease:
    """Holds a record by a deadline and a token in its row (C). `seconds`: how long, 0.1..7,200."""

    seconds: float = 60.0


JOB_TABLE = "rowlock_job"


@dataclass(frozen=True, slots=True, eq=False)
class QueueShape:
    """Roles to columns, by name. `branch` are the columns that a claim knows exact values of.

    A claim probes the index once for each branch, so records of other branches cost it nothing,
    however many there are (S5, S7).
    """

    table: str
    roles: Mapping[str, str]
    branch: tuple[str, ...]
    claim: Lease = field(default_factory=Lease)

    def column(self, role: str) -> str:
        """The column that plays `role`. KeyError if the table lacks it."""
        return self.roles[role]


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


JOBS = QueueShape(
    table=JOB_TABLE,
    roles=MappingProxyType(
        _same(
            *("id", "job", "fingerprint", "payload", "key", "priority", "state", "run_at", "attempt"),
            *("max_attempts", "timeout_ms", "headers", "token", "lease", "claimed_by", "claimed_at"),
            *("error_category", "error_class", "error_summary", "created_at", "finished_at", "handed_back"),
        )
        | {"group": "queue"}
    ),
    branch=("group", "job", "fingerprint"),
)
"""Rowlock's own job table, described like any other."""
