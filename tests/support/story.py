"""What kill tests read and say: records as plain SQL shows them, workers' logs, limits for each database."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import sqlalchemy as sa

from support.kill import Worker
from support.waiting import BOUND, wait_until

# The line `ready: …`, the command's last words, and its log but for errors.
_EXPECTED = re.compile(r"ready: |rowlock: |[-0-9]+T[:.0-9]+Z (INFO|WARNING) rowlock: ")


def mostly_slow(brief: str, names: tuple[str, ...] = ("sqlite", "postgresql", "mariadb")) -> pytest.MarkDecorator:
    """For what takes long, or has little to do with databases: the short run takes one of them, the long run all."""
    return pytest.mark.parametrize(
        "dialect", [pytest.param(name, marks=() if name == brief else pytest.mark.slow) for name in names]
    )


def all_on_sqlite(name: str, values: Iterable[Any]) -> pytest.MarkDecorator:
    """For values that no database treats differently: the short run takes all on SQLite, one on each server."""
    listed = list(values)
    short = {("sqlite", value) for value in listed} | {("postgresql", listed[0]), ("mariadb", listed[0])}
    return pytest.mark.parametrize(
        ("dialect", name),
        [
            pytest.param(dialect, value, marks=() if (dialect, value) in short else pytest.mark.slow)
            for dialect in ("sqlite", "postgresql", "mariadb")
            for value in listed
        ],
    )


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


def logged(workers: Iterable[Worker], level: str, text: str = "") -> list[str]:
    """The log lines of these workers at this level that have this text in them."""
    lines = [line for worker in workers for line in worker.stderr.splitlines()]
    return [line for line in lines if f" {level} rowlock: " in line and text in line]


def wait_logged(worker: Worker, level: str, text: str, timeout: float = BOUND) -> str:
    return wait_until(
        lambda: logged([worker], level, text), timeout, lambda: f"{level} {text!r} in the log:\n{worker.stderr}"
    )[0]


def complaints(workers: Iterable[Worker]) -> list[str]:
    """What a worker should never print: errors of its own, tracebacks, warnings of Python and of drivers."""
    lines = [line for worker in workers for line in worker.stderr.splitlines()]
    return [line for line in lines if not _EXPECTED.match(line)]
