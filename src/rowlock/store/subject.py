"""A table whose rows go by age: what is declared of it, resolved to columns, and the conditions of its statements."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import sqlalchemy as sa
from sqlalchemy import Column, ColumnElement, Table
from sqlalchemy.types import TypeDecorator

from rowlock.errors import DeclarationError, DeclarationTypeError
from rowlock.model.lifecycle import Lifecycle
from rowlock.model.limits import shown
from rowlock.store.dialects.aging import Key, is_native

if TYPE_CHECKING:
    from rowlock.store.database import Database

OWN_INDEXED = frozenset({"rowlock_job", "rowlock_audit"})
"""Tables whose indexes the migrations make, and SQLAlchemy does not know."""
Guard = Callable[[Sequence[Any]], object]
"""Gets due rows, answers those of them that may go."""


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """One table that is swept. `branches` are fixed conditions, each with an index of its own; usually there is one."""

    database: str
    table: Table
    lifecycle: Lifecycle
    keys: tuple[Column[Any], ...]
    time: Column[Any] | None
    """None: its rows are kept for ever."""
    window: timedelta | None
    when: tuple[ColumnElement[bool], ...] = ()
    branches: tuple[tuple[ColumnElement[bool], ...], ...] = ((),)
    ended: tuple[Column[Any], timedelta] | None = None
    """A second instant that must be so long ago."""
    guards: tuple[Guard, ...] = ()
    archive: ArchiveTarget | None = None
    declared: timedelta | None = None
    """The window before overrides."""
    violation: str | None = None
    """Why an override is rejected."""

    @property
    def name(self) -> str:
        """The table's name, with its schema if it is declared with one."""
        return f"{self.table.fullname}"  # a plain str, of whatever kind the name is

    def in_keys(self, db: Database, keys: Sequence[Key]) -> ColumnElement[bool]:
        """The condition "is one of these rows"."""
        ids = None
        if len(self.keys) == 1 and isinstance(self.keys[0].type, sa.Integer) and all(type(k[0]) is int for k in keys):
            ids = f"{db.dialect.quoted(self.keys[0].name)} {db.dialect.in_ids([key[0] for key in keys])}"
        return db.dialect.aging.in_keys(ids, self.keys, keys)

    def these(
        self, db: Database, keys: Sequence[Key], conditions: Sequence[ColumnElement[bool]]
    ) -> list[ColumnElement[bool]]:
        """Rows named by their keys that are as they should be."""
        beside = db.dialect.aging.beside(self.keys, conditions) if conditions else []
        return [self.in_keys(db, keys), *beside]

    def old(self, db: Database, now: datetime) -> list[ColumnElement[bool]]:
        """The conditions of age."""
        assert self.window is not None
        assert self.time is not None
        aging = db.dialect.aging
        conditions = [self.time <= aging.moment(self.time, _back(now, self.window))]
        if self.ended is not None:
            column, span = self.ended
            conditions.append(column <= aging.moment(column, _back(now, span)))
        return conditions


@dataclass(frozen=True, slots=True, eq=False)
class ArchiveTarget:
    """Where rows are copied before they go: the table, in which database, and which columns."""

    database: str
    table: Table
    columns: tuple[tuple[Column[Any], Column[Any]], ...]
    """(of the source, of the target)"""
    keep: timedelta | None


def _back(now: datetime, span: timedelta) -> datetime:
    try:
        return now - span
    except OverflowError:  # a clock of a test that stands in the first century
        return datetime.min.replace(tzinfo=now.tzinfo)


# --- from what users declare -----------------------------------------------------------------------------------


def table_of(given: object, *, what: str) -> Table[Any]:
    """The table of a SQLAlchemy Table or mapped class. Raises DeclarationTypeError, DeclarationError."""
    if isinstance(given, Table):
        return cast("Table[Any]", given)
    mapper: Any = sa.inspect(given, raiseerr=False)
    if not isinstance(given, type) or mapper is None or not hasattr(mapper, "local_table"):
        raise DeclarationTypeError(
            f"{what}: {shown(given)} (N1) is no table; give a SQLAlchemy Table or a mapped class"
        )
    table: Any = mapper.local_table
    if not isinstance(table, Table) or mapper.persist_selectable is not table:
        raise DeclarationError(
            f"{what}: the rows of {given.__name__} stand in several tables (N1); declare each Table by itself"
        )
    if mapper.inherits is not None:
        raise DeclarationError(
            f"{what}: {given.__name__} shares the table {table.fullname!r} with "
            f"{mapper.inherits.class_.__name__} (N1); declare that one, and say which rows with only_when={{…}}"
        )
    return cast("Table[Any]", table)


def column_of(given: object, table: Table, name: object, *, what: str) -> Column[Any]:
    """A column by its name, by the attribute that a model has for it, or as a column or attribute."""
    if isinstance(name, str):
        mapper: Any = None if isinstance(given, Table) else sa.inspect(given, raiseerr=False)
        if mapper is not None and name in mapper.column_attrs:
            found = mapper.column_attrs[name].columns[0]
            if isinstance(found, Column):
                return cast("Column[Any]", found)
        if name in table.c:
            return table.c[name]
        for column in table.c:
            if column.name == name:
                return column
        raise DeclarationError(
            f"{what}: table {table.fullname!r} has no column {shown(name)} (N1); it has {', '.join(table.c.keys())}"
        )
    element: Any = getattr(name, "__clause_element__", None)
    clause: Any = name if element is None else element()
    if isinstance(clause, Column):
        own = table.c.get(clause.key)
        if own is not None and (
            clause is own or clause.table is table or table.name == getattr(clause.table, "name", None)
        ):
            return own
    raise DeclarationError(f"{what}: {shown(name)} is no column of table {table.fullname!r} (N1); give its name")


def time_of(given: object, table: Table, name: object, *, what: str) -> Column[Any]:
    """The column that ages rows: it must hold instants."""
    column = column_of(given, table, name, what=what)
    if not is_native(column) and not isinstance(column.type, TypeDecorator):
        raise DeclarationError(
            f"{what}: column {column.name!r} of table {table.fullname!r} is {type(column.type).__name__} (N1); rows "
            f"age by a column of type DateTime"
        )
    return column


def keys_of(table: Table, *, what: str) -> tuple[Column[Any], ...]:
    """The primary key, by which rows are named."""
    keys = tuple(table.primary_key.columns)
    if not keys:
        raise DeclarationError(
            f"{what}: table {table.fullname!r} has no primary key (N1), by which a row is named; give it one"
        )
    return keys


def conditions_of(
    given: object, table: Table, only_when: Mapping[Any, object], *, what: str
) -> tuple[ColumnElement[bool], ...]:
    """`only_when` as conditions; values are bound by their columns' types."""
    made: list[ColumnElement[bool]] = []
    for name, wanted in only_when.items():
        column = column_of(given, table, name, what=f"{what}: only_when")
        values = list(cast("Sequence[Any]", wanted)) if isinstance(wanted, list | tuple | set | frozenset) else [wanted]
        for value in values:
            _check_value(column, value, what=what)
        some = [value for value in values if value is not None]
        parts: list[ColumnElement[bool]] = []
        if len(some) == 1:
            parts.append(column == sa.bindparam(None, some[0], type_=column.type))
        elif some:
            parts.append(column.in_(some))
        if len(some) < len(values):
            parts.append(column.is_(None))
        made.append(sa.or_(*parts))
    return tuple(made)


def _check_value(column: Column[Any], value: object, *, what: str) -> None:
    kind = column.type
    if value is None:
        return
    if isinstance(kind, sa.Enum):
        known = kind.enum_class is not None and isinstance(value, kind.enum_class)
        texts = kind.enums
        if not known and not (isinstance(value, str) and value in texts):
            raise DeclarationError(
                f"{what}: only_when has {shown(value)} for {column.name!r} (N1), which has {', '.join(texts)}"
            )
    elif isinstance(kind, sa.Boolean) and value not in (True, False):
        raise DeclarationError(f"{what}: only_when has {shown(value)} for {column.name!r} (N1), which is true or false")
    elif not isinstance(value, Hashable):  # a dict or a list in a list
        raise DeclarationTypeError(
            f"{what}: only_when has {shown(value)} for {column.name!r} (N1); give a single value"
        )


def archive_of(subject: Subject, given: object, database: str, *, what: str) -> ArchiveTarget:
    """Where the archive's rows go. Raises DeclarationError for a target that lacks a column."""
    archive = subject.lifecycle.archive
    assert archive is not None
    table = table_of(given, what=f"{what}: archive")
    if table is subject.table or (table.fullname == subject.name and database == subject.database):
        raise DeclarationError(
            f"{what}: the archive of table {subject.name!r} is the table itself (N7); give another one"
        )
    by_name = {column.name: column for column in table.c}
    pairs: list[tuple[Column[Any], Column[Any]]] = []
    for column in subject.table.c:
        target = by_name.get(column.name)
        if target is None:
            raise DeclarationError(
                f"{what}: the archive {table.fullname!r} has no column {column.name!r} (N7), and nothing goes "
                f"uncopied; add it"
            )
        if target.computed is None:
            pairs.append((column, target))
    return ArchiveTarget(database, table, tuple(pairs), archive.keep)


def lacks_index(subject: Subject) -> bool:
    """Whether the declared table has no index that finds due rows: then each look reads the whole table."""
    if subject.table.name in OWN_INDEXED:
        return False
    time = subject.time
    if time is None:
        return False
    pinned = {column.key for column in subject.table.c for each in subject.when if _pins(each, column)}
    lists: list[list[Column[Any]]] = [list(subject.table.primary_key.columns)]
    lists += [[each for each in index.expressions if isinstance(each, Column)] for index in subject.table.indexes]
    lists += [list(each.columns) for each in subject.table.constraints if isinstance(each, sa.UniqueConstraint)]
    for columns in lists:
        for column in columns:
            if column is time:
                return False
            if column.key not in pinned:
                break
    return not (time.index or time.unique)


def _pins(condition: ColumnElement[bool], column: Column[Any]) -> bool:
    return isinstance(condition, sa.BinaryExpression) and condition.left is column
