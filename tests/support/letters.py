"""Letters that did not arrive: their job, and its records as the last attempt or the blocking left them.

What operators replay, purge and release is one of these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from rowlock import Jobs
from support.jobtable import JobTable


@dataclass(frozen=True)
class Letter:
    to: str


def declared(jobs: Jobs, deliver: Callable[[], object] = lambda: None) -> Any:
    """The job `post`, once `mail`, whose handler calls `deliver`."""

    @jobs.job(name="post", aliases=("mail",), max_attempts=3, timeout=5)
    def post(letter: Letter) -> None:
        deliver()

    return post


FINGERPRINT = declared(Jobs()).wire.fingerprint


def dead(table: JobTable, number: int = 1, **columns: Any) -> list[int]:
    """Records as the last attempt leaves them."""
    now = table.now()
    row = {
        "job": "post", "fingerprint": FINGERPRINT, "payload": '{"to":"a"}', "attempt": 3, "max_attempts": 3,
        "error_class": "builtins.TimeoutError", "error_summary": "x", "run_at": now - timedelta(days=1),
        "created_at": now - timedelta(days=30), "token": "t", "handed_back": 4, "claimed_by": "host:1",
        "claimed_at": now - timedelta(minutes=1),
    }  # fmt: skip
    return table.dead(number, **{**row, **columns})


def blocked(table: JobTable, number: int = 1, **columns: Any) -> list[int]:
    """Records that a program without their job set aside."""
    return dead(table, number, **{"state": "blocked", "attempt": 1, "error_category": "unknown_job", **columns})
