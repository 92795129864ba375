"""What kill tests read and say: the records as plain SQL shows them, the worker's log, and limits for each database."""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import sqlalchemy as sa

from support import effects
from support.waiting import BOUND, wait_until

WORDS = ("fails", "works again", "lost its hold", "event loop blocked")


def limits(dialect: str, *, lease: float = 1.0) -> str:
    """Options of a job that a test stops within a moment of its start, and whose lease is short.

    On SQLite a lease covers the timeout (L5), so that there both are a little longer.
    """
    return f"timeout={lease + 1.2}, lease={lease + 1.4}" if dialect == "sqlite" else f"timeout=30, lease={lease}"


def lease_of(dialect: str, *, lease: float = 1.0) -> float:
    """The lease that `limits` gives, in seconds."""
    return lease + 1.4 if dialect == "sqlite" else lease


class Table:
    """The job table, read by a connection of the test's own."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine

    def rows(self, job: str | None = None) -> list[Any]:
        with self.engine.connect() as connection:
            found = connection.execute(sa.text("SELECT * FROM rowlock_job ORDER BY id")).mappings().all()
        return [Row(one) for one in found if job in (None, one["job"])]

    def one(self, job: str) -> Any:
        (row,) = self.rows(job)
        return row

    def write(self, sql: str, **values: object) -> None:
        with self.engine.begin() as connection:
            connection.execute(sa.text(sql), values)

    def states(self, job: str | None = None) -> Counter[str]:
        return Counter(row.state for row in self.rows(job))

    def ends(self) -> dict[str, tuple[str, int, str | None]]:
        """(state, attempts, category) by job, for tests with one record of each."""
        return {row.job: (row.state, row.attempt, row.error_category) for row in self.rows()}

    def wait(
        self, fact: Callable[[list[Any]], Any], timeout: float = BOUND, story: Callable[[], str] | None = None
    ) -> Any:
        """What `fact` says of the rows, once it is true."""
        told = story or (lambda: "")
        return wait_until(lambda: fact(self.rows()), timeout, lambda: f"records: {self.rows()}; {told()}")


class Row(dict[str, Any]):
    """A record; its columns are attributes."""

    def __getattr__(self, name: str) -> Any:
        return self[name]

    def __repr__(self) -> str:
        return f"<{self.id} {self.job} {self.state} attempt={self.attempt} {self.error_category} by={self.claimed_by}>"


class _Noting(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        effects.note(f"{record.levelname}: {record.getMessage()}")


def note_logs() -> None:
    """In a worker's module: what `rowlock` logs becomes effects, `ERROR: …` and `WARNING: …`."""
    if "pytest" not in sys.modules:
        logging.getLogger("rowlock").addHandler(_Noting(logging.WARNING))


def logged(level: str, text: str = "") -> list[effects.Effect]:
    """What workers whose module calls `note_logs` logged at this level, with this text in it."""
    return [one for one in effects.effects() if one.what.startswith(f"{level}: ") and text in one.what]


def wait_logged(text: str, level: str = "WARNING", timeout: float = BOUND) -> effects.Effect:
    return wait_until(lambda: logged(level, text), timeout, lambda: f"{level} {text!r}; {effects.effects()}")[0]


def since(moment: float) -> float:
    return time.time() - moment
