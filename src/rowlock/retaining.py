"""How an application declares retention, and looks at it: `app.lifecycle`, `app.retention` (N1, N4, N6, N8)."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from rowlock.errors import DeclarationTypeError
from rowlock.model.lifecycle import Lifecycle
from rowlock.model.limits import shown
from rowlock.model.retention import Floor, Planned
from rowlock.runtime.sweeper import EVERY
from rowlock.store.lifecycles import Lifecycles
from rowlock.store.plan import plan
from rowlock.store.subject import Subject

if TYPE_CHECKING:
    from rowlock.model.settings import Settings
    from rowlock.store.database import Database

G = TypeVar("G", bound=Callable[[Sequence[Any]], object])


class RetentionView:
    """What retention would do (N8). `database` is the name of a configured one; all of them if it is left out."""

    def __init__(
        self,
        lifecycles: Lifecycles,
        overrides: Callable[[], Mapping[str, str]],
        databases: Callable[[], Mapping[str, Database]],
        one: Callable[[str | None], Database],
    ) -> None:
        self._lifecycles = lifecycles
        self._overrides = overrides
        self._databases = databases
        self._one = one

    def plan(self, *, dry_run: bool = False, database: str | None = None) -> list[Planned]:
        """Each declared table with its class, the window that runs, its floor, and when the next sweep is due.

        `dry_run` counts the rows that would go now, and says when the oldest of the others does. Changes nothing.
        """
        found: list[Planned] = []
        for db in self._wanted(database):
            found += db.run(plan, self._subjects(db), EVERY, dry_run=dry_run)
        return found

    async def aplan(self, *, dry_run: bool = False, database: str | None = None) -> list[Planned]:
        """`plan` from a coroutine."""
        found: list[Planned] = []
        for db in self._wanted(database):
            found += await db.aread(plan, self._subjects(db), EVERY, dry_run=dry_run)
        return found

    def violations(self) -> list[str]:
        """The overrides that are rejected, a sentence each (N5)."""
        overrides = self._overrides()
        found = self._lifecycles.unknown_overrides(overrides)
        for db in self._databases().values():
            found += [each.violation for each, _ in self._subjects(db) if each.violation is not None]
        return list(dict.fromkeys(found))

    def _wanted(self, database: str | None) -> list[Database]:
        return list(self._databases().values()) if database is None else [self._one(database)]

    def _subjects(self, db: Database) -> list[tuple[Subject, Floor | None]]:
        subjects = self._lifecycles.subjects(db, self._overrides())
        return [(subject, self._lifecycles.highest(subject.name)) for subject in subjects]


class Retaining:
    """The methods of `App` that declare retention."""

    lifecycles: Lifecycles
    """What is declared, Rowlock's own tables included."""
    retention: RetentionView
    """What retention would do (N8)."""

    def _retain(
        self,
        settings: Settings,
        names: Callable[[], Sequence[str]],
        databases: Callable[[], Mapping[str, Database]],
        one: Callable[[str | None], Database],
        overrides: Callable[[], Mapping[str, str]],
    ) -> None:
        self.lifecycles = Lifecycles(settings.retention.overrides, names)
        self.retention = RetentionView(self.lifecycles, overrides, databases, one)

    def lifecycle(self, table: Any, lifecycle: Lifecycle, *, database: str = "default") -> None:
        """Declare what becomes of the rows of a table: a SQLAlchemy Table or a mapped class with a primary key (N1).

        `database` is the name of the configured one that has the table. Its rows are deleted by plain DELETE: cascades
        are the database's. Raises DeclarationError: declared twice, a column is missing, a window below a floor (N4).
        """
        self.lifecycles.declare(table, lifecycle, database)

    def retention_floor(self, table: Any, at_least: str | timedelta, *, who: str, why: str, remedy: str) -> None:
        """Register the shortest window that a reader of a table can live with (N4); equal is legal.

        `table` is what `lifecycle` takes, or "rowlock_job"; the texts are for the one who meets the refusal. Raises
        DeclarationError if the declared window is below it.
        """
        self.lifecycles.floor(table, at_least, who=who, why=why, remedy=remedy)

    def retention_guard(self, table: Any) -> Callable[[G], G]:
        """Ask a function before rows of a declared table go: `@app.retention_guard(Message)` (N6).

        It gets a batch of due rows (at most 500, as SQLAlchemy rows), on a thread of Rowlock's, and answers those of
        them that may go; what it cleans up outside must bear being done twice. Several are asked in turn, each about
        what the one before let go. One that raises, or answers anything else, keeps its batch. Raises DeclarationError.
        """

        def declare(guard: G) -> G:
            if not callable(guard) or inspect.iscoroutinefunction(guard):
                raise DeclarationTypeError(f"app.retention_guard: {shown(guard)} is no sync function (N6); give one")
            self.lifecycles.guard(table, guard)
            return guard

        return declare
