"""Every life cycle that an application knows: Rowlock's own tables', and those that it declares (N1, N2, N4, N9)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import Table, literal_column

from rowlock.errors import DeclarationError, DeclarationTypeError
from rowlock.model.lifecycle import Lifecycle, Retention, Ttl, highest, overridden, refuse_below, window
from rowlock.model.limits import DECLARING, check_text, shown
from rowlock.model.outcome import State
from rowlock.model.retention import FINISHED_FOR, FINISHED_SINCE, Floor
from rowlock.store import schema
from rowlock.store.subject import (
    Guard,
    Subject,
    archive_of,
    conditions_of,
    keys_of,
    lacks_index,
    table_of,
    time_of,
)

if TYPE_CHECKING:
    from rowlock.store.database import Database

TELEMETRY = "telemetry"
"""The name of the database that holds Rowlock's own telemetry, event and audit tables, if there is one (N9)."""
TELEMETRY_CLASSES = frozenset({"telemetry", "event", "audit"})

SWEPT_STATES = (State.SUCCEEDED, State.CANCELLED)
"""The states of records that retention takes; pending, running, dead and blocked ones never go (N2)."""

_RECORD = Lifecycle("record")
OWN: Mapping[str, Lifecycle] = {
    "rowlock_job": Lifecycle("transient", retention=Retention(FINISHED_FOR)),
    "rowlock_program": Lifecycle("transient", ttl=Ttl("announced_at", "30d")),
    "rowlock_audit": Lifecycle("audit", retention=Retention("90d")),
    "rowlock_cancel": Lifecycle("transient", ttl=Ttl("asked_at", "90d")),  # of records that are gone
    "rowlock_cursor": _RECORD,
    "rowlock_meta": _RECORD,
    "rowlock_pause": _RECORD,
    "rowlock_sweep": _RECORD,
}
"""Rowlock's own tables. One that is missing here fails a test: it would grow for ever, unseen."""
_AGED_BY = {"rowlock_audit": "at"}


@dataclass(slots=True)
class _Declared:
    subject: Subject
    guards: list[Guard] = field(default_factory=list[Guard])


class Lifecycles:
    """What one application declares. `databases` answers the names of its databases."""

    def __init__(self, overrides: Mapping[str, str], databases: Callable[[], Iterable[str]]) -> None:
        self._overrides = overrides
        self._databases = databases
        self._declared: dict[tuple[str, str], _Declared] = {}
        self._floors: dict[str, list[Floor]] = {}

    # --- declaring ----------------------------------------------------------------------------------------

    def declare(self, given: object, lifecycle: Lifecycle, database: str) -> None:
        """One table's life cycle. Raises DeclarationError, DeclarationTypeError."""
        if not isinstance(lifecycle, Lifecycle):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers need not be typed
            raise DeclarationTypeError(f"app.lifecycle: {shown(lifecycle)} is no Lifecycle (N1); give Lifecycle(…)")
        table = table_of(given, what="app.lifecycle")
        what = f"app.lifecycle of table {table.fullname!r}"
        if table.name in OWN:
            raise DeclarationError(
                f"{what}: it is Rowlock's own, and declared (N2); retention.overrides in the settings changes its "
                f"window"
            )
        self._known(database, what)
        if (database, table.fullname) in self._declared:
            raise DeclarationError(f"{what}: it is declared already for database {database!r} (N1); declare it once")
        refuse_below(table.fullname, lifecycle.window, self._floors.get(table.fullname, ()))
        subject = _subject(given, table, lifecycle, database, what=what)
        if lifecycle.archive is not None:
            target = database if lifecycle.archive.database is None else lifecycle.archive.database
            self._known(target, f"{what}: archive")
            subject = replace(subject, archive=archive_of(subject, lifecycle.archive.to, target, what=what))
        self._declared[database, table.fullname] = _Declared(subject)

    def floor(self, given: object, at_least: Any, *, who: str, why: str, remedy: str) -> None:
        """The shortest window that a reader of the table can live with (N4). Raises DeclarationError."""
        own = isinstance(given, str) and given in OWN
        name = str(given) if own else table_of(given, what="app.retention_floor").fullname
        what = f"app.retention_floor of table {name!r}"
        texts = {
            key: check_text(text, what=f"{what}: {key}", high=1_000, rule="N4", refuse=DECLARING)
            for key, text in (("who", who), ("why", why), ("remedy", remedy))
        }
        self.add_floor(name, Floor(window(at_least, what=f"{what}: at_least"), **texts))

    def add_floor(self, name: str, floor: Floor) -> None:
        """A floor of a table by its name. Raises DeclarationError if the table's window is below it (N4)."""
        for _, declared in self._of_table(name):
            refuse_below(name, declared.subject.window, [floor])
        if name in OWN:  # nobody can declare it longer in code, so an override that was accepted counts
            text, before = self._overrides.get(name), self._floors.get(name, [])
            windows = (overridden(name, OWN[name].window, text, floors)[0] for floors in (before, [*before, floor]))
            # The longer of the two: an override that falls short of this floor too is what was asked for.
            refuse_below(name, max((span for span in windows if span is not None), default=None), [floor])
        self._floors.setdefault(name, []).append(floor)

    def guard(self, given: object, guard: Guard) -> None:
        """Somebody who is asked before rows go (N6). Raises DeclarationError for a table that is not declared."""
        table = table_of(given, what="app.retention_guard")
        found = list(self._of_table(table.fullname))
        if not found:
            raise DeclarationError(
                f"app.retention_guard: table {table.fullname!r} has no life cycle (N6); declare it first, by "
                f"app.lifecycle"
            )
        for _, declared in found:
            declared.guards.append(guard)

    def _known(self, database: str, what: str) -> None:
        there = list(self._databases())
        if database not in there:
            raise DeclarationError(
                f"{what}: no database {shown(database)} is configured (J5); there is "
                f"{', '.join(map(repr, there)) or 'none'}"
            )

    def _of_table(self, name: str) -> Iterator[tuple[str, _Declared]]:
        for (database, table), declared in self._declared.items():
            if table == name:
                yield database, declared

    # --- what runs ----------------------------------------------------------------------------------------

    def subjects(self, db: Database, overrides: Mapping[str, str]) -> list[Subject]:
        """What is swept in this database, and what is kept for ever, with the windows that run (N5)."""
        found = [self._own(name) for name in OWN if name in schema.metadata.tables]
        found = [replace(each, database=db.name) for each in found]
        for (database, _), declared in self._declared.items():
            subject = replace(declared.subject, guards=tuple(declared.guards))
            if database == db.name:
                found.append(subject)
            archive = subject.archive
            if archive is not None and archive.database == db.name and archive.keep is not None:
                found.append(_kept(subject))
        return [self._running(subject, overrides) for subject in found]

    def floors(self, name: str) -> list[Floor]:
        """The floors under a table's window."""
        return list(self._floors.get(name, ()))

    def highest(self, name: str) -> Floor | None:
        """The floor that asks for the most."""
        return highest(self._floors.get(name, ()))

    def unknown_overrides(self, overrides: Mapping[str, str]) -> list[str]:
        """What is wrong with overrides of tables that nobody declares (N5)."""
        known = {name for _, name in self._declared} | set(OWN)
        known |= {each.subject.archive.table.fullname for each in self._declared.values() if each.subject.archive}
        return [
            f"retention.overrides.{name} names a table without a life cycle (N5); there are {', '.join(sorted(known))}"
            for name in overrides
            if name not in known
        ]

    def without_index(self) -> list[str]:
        """Declared tables whose due rows no index finds: each look reads all of them."""
        aged = [
            (declared.subject, declared.subject.time)
            for declared in self._declared.values()
            if declared.subject.time is not None and lacks_index(declared.subject)
        ]
        return [
            f"table {subject.name!r} has no index that begins with {time.name!r}: each look for due rows reads all "
            f"of it (N3); add one"
            for subject, time in aged
        ]

    def _own(self, name: str) -> Subject:
        table = schema.metadata.tables[name]
        subject = _subject(table, table, OWN[name], "", what=name, column=_AGED_BY.get(name))
        if name == schema.job.name:
            # The index's own condition as well: SQLite does not see that the state implies it.
            ended = schema.job.c.state.not_in([literal_column("'pending'"), literal_column("'running'")])
            states = tuple((schema.job.c.state == literal_column(f"'{state}'"), ended) for state in SWEPT_STATES)
            return replace(subject, branches=states, ended=(schema.job.c.finished_at, FINISHED_SINCE))
        return subject

    def _running(self, subject: Subject, overrides: Mapping[str, str]) -> Subject:
        text = overrides.get(subject.name)
        window, violation = overridden(subject.name, subject.window, text, self._floors.get(subject.name, ()))
        return replace(subject, declared=subject.window, window=window, violation=violation)


def _subject(
    given: object, table: Table, lifecycle: Lifecycle, database: str, *, what: str, column: str | None = None
) -> Subject:
    if lifecycle.window is None:
        return Subject(database, table, lifecycle, tuple(table.primary_key.columns), None, None)
    return Subject(
        database, table, lifecycle,
        keys=keys_of(table, what=what),
        time=time_of(given, table, column or lifecycle.column, what=what),
        window=lifecycle.window,
        when=conditions_of(given, table, lifecycle.only_when, what=what),
    )  # fmt: skip


def _kept(source: Subject) -> Subject:
    """The archive's own retention."""
    archive = source.archive
    assert archive is not None
    assert archive.keep is not None
    assert source.time is not None
    lifecycle = Lifecycle("audit", retention=Retention(archive.keep))
    time = next(target for column, target in archive.columns if column is source.time)
    return Subject(
        archive.database, archive.table, lifecycle, keys_of(archive.table, what="app.lifecycle: archive"), time,
        archive.keep,
    )  # fmt: skip
