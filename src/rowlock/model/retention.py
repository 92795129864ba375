"""What is said of retention: floors, plans and reports, as values (N4, N8)."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

CREATED_AT = "created_at"
"""The column that ages rows by retention (N1)."""

FINISHED_FOR = timedelta(days=7)
"""How long Rowlock keeps succeeded and cancelled records, from their creation (N2),"""
FINISHED_SINCE = timedelta(hours=1)
"""and at least so long from their finish."""


@dataclass(frozen=True, slots=True)
class Floor:
    """The shortest window that somebody who reads the rows can live with (N4)."""

    at_least: timedelta
    who: str
    why: str
    remedy: str


@dataclass(frozen=True, slots=True)
class TableSweep:
    """What a sweep did to one table. `skipped`: due rows that stayed, vetoed, locked, changed or failed."""

    database: str
    table: str
    swept: int = 0
    skipped: int = 0
    finished: bool = True
    """False: time was used up, or the table failed, before nothing was due any more."""


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What one sweep did (N8)."""

    swept: int = 0
    """Rows deleted or moved, of all tables."""
    skipped: int = 0
    """Due rows that stayed: vetoed, locked, changed meanwhile, or refused by the database."""
    errors: tuple[str, ...] = ()
    """What failed, a sentence each."""
    violations: tuple[str, ...] = ()
    """Overrides that were rejected, and rows that were left behind (N5, N9)."""
    reclaimed: int = 0
    """Bytes that an SQLite file gave back."""
    finished: bool = True
    """Whether nothing was due any more at the end."""
    seconds: float = 0.0
    tables: tuple[TableSweep, ...] = field(default=())

    def plus(self, other: SweepReport) -> SweepReport:
        """Both together: of two databases, or of a sweep that went on."""
        return SweepReport(
            swept=self.swept + other.swept,
            skipped=self.skipped + other.skipped,
            errors=self.errors + tuple(each for each in other.errors if each not in self.errors),
            violations=self.violations + tuple(each for each in other.violations if each not in self.violations),
            reclaimed=self.reclaimed + other.reclaimed,
            finished=self.finished and other.finished,
            seconds=self.seconds + other.seconds,
            tables=self.tables + other.tables,
        )


@dataclass(frozen=True, slots=True)
class Planned:
    """What is declared for a table, and what runs (N5, N8)."""

    database: str
    table: str
    kind: str
    """record, transient, telemetry, event or audit."""
    column: str | None
    """What ages the rows; None if they are kept for ever."""
    declared: timedelta | None
    window: timedelta | None
    """What runs: the declared window, or an accepted override."""
    at_least: timedelta | None
    """The highest floor."""
    who: str | None
    """Whose floor that is."""
    archive: str | None
    violation: str | None
    """Why an override is rejected."""
    next_at: datetime | None
    """When the next sweep is due; None: with the first worker that runs."""
    due: int | None = None
    """How many rows would go now (dry run)."""
    oldest_goes_at: datetime | None = None
    """When the oldest row that is not due yet goes (dry run)."""
    error: str | None = None
    """Why that could not be counted."""
