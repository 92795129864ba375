"""Tables of any shape, as retention meets them: columns that age rows, keys of any type, space to give back (N3, N10).

A user's columns have types of the user's own. What differs between databases is how an instant is compared with such a
column so that its index serves, and how the place of a row in time is read and named again, whatever it is: a value
that the column's type can not read must not end a sweep.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy import Column, ColumnElement
from sqlalchemy.engine import Connection
from sqlalchemy.types import TypeDecorator, UserDefinedType

Key = tuple[Any, ...]
"""A row's primary key, as its columns' types read it."""
_Aware = sa.TIMESTAMP(timezone=True)


class _AsStored(UserDefinedType[Any]):
    """What a column has, past its own type; unlike the type of nothing, it is not replaced by the other side's."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        """SQLAlchemy asks for it, and never writes it."""
        return "BLOB"


class Aging:
    """PostgreSQL's way."""

    def moment(self, column: Column[Any], at: datetime) -> ColumnElement[Any]:
        """`at` as the column can be compared with it. A column without a time zone holds UTC."""
        if not is_native(column):
            return _by_type(column, at)
        return sa.cast(sa.literal(at.astimezone(UTC).isoformat(" "), sa.String()), _Aware)

    def place(self, column: Column[Any]) -> ColumnElement[Any]:
        """What is read of the column to name a row's place in time: as text, since 'infinity' breaks a fetch."""
        return sa.cast(column, sa.String()) if is_native(column) else column

    def at_place(self, column: Column[Any], place: Any) -> ColumnElement[Any]:
        """A place that was read before, to compare the column with."""
        if not is_native(column):
            return sa.bindparam(None, place, type_=column.type)
        return sa.cast(sa.literal(place, sa.String()), _Aware)

    def in_keys(self, ids: str | None, columns: Sequence[Column[Any]], keys: Sequence[Key]) -> ColumnElement[bool]:
        """The condition "is one of these rows" in words that keep the primary key's index.

        `ids` is that condition as the dialect writes it for whole numbers, if the keys are such.
        """
        if len(columns) > 1:
            return self.in_tuples(columns, keys)
        if ids is None:
            return columns[0].in_([key[0] for key in keys])
        # Not a literal of type Boolean: where there is none, `… = 1` would be written behind it, and no index used.
        return cast("ColumnElement[bool]", sa.text(ids.replace(":", "\\:")))

    def beside(
        self, columns: Sequence[Column[Any]], conditions: Sequence[ColumnElement[bool]]
    ) -> list[ColumnElement[bool]]:
        """Conditions beside `in_keys`, in words that no index fits: else it is the one of age that is read, whole.

        Keys of several columns are found by no index as a list, and need the one of age.
        """
        return [_opaque(conditions)] if len(columns) == 1 else list(conditions)

    def in_tuples(self, columns: Sequence[Column[Any]], keys: Sequence[Key]) -> ColumnElement[bool]:
        """The same for keys of several columns."""
        return sa.tuple_(*columns).in_(keys)

    def reclaim(self, conn: Connection, pages: int) -> tuple[int, bool]:
        """Gives at most so many free pages back to the file system: how many bytes, and whether there are more."""
        return 0, False


class MySQLAging(Aging):
    """MySQL's and MariaDB's: texts are compared as instants with columns of instants, by their index."""

    def moment(self, column: Column[Any], at: datetime) -> ColumnElement[Any]:
        if not is_native(column):
            return _by_type(column, at)
        return sa.literal(at.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds"), sa.String())

    def at_place(self, column: Column[Any], place: Any) -> ColumnElement[Any]:
        return sa.bindparam(None, place, type_=sa.String() if is_native(column) else column.type)

    def place(self, column: Column[Any]) -> ColumnElement[Any]:
        return sa.cast(column, sa.CHAR()) if is_native(column) else column

    def beside(
        self, columns: Sequence[Column[Any]], conditions: Sequence[ColumnElement[bool]]
    ) -> list[ColumnElement[bool]]:
        return [_opaque(conditions)]

    def in_tuples(self, columns: Sequence[Column[Any]], keys: Sequence[Key]) -> ColumnElement[bool]:
        # Not a list of row values: MariaDB reads the whole table for it, and SKIP LOCKED keeps locked what was read.
        return sa.or_(*(sa.and_(*(c == v for c, v in zip(columns, key, strict=True))) for key in keys))


class SQLiteAging(Aging):
    """SQLite's: a column has what its type wrote, so an instant goes through that type."""

    def moment(self, column: Column[Any], at: datetime) -> ColumnElement[Any]:
        return _by_type(column, at)

    def place(self, column: Column[Any]) -> ColumnElement[Any]:
        return sa.type_coerce(column, _AsStored())

    def at_place(self, column: Column[Any], place: Any) -> ColumnElement[Any]:
        return sa.bindparam(None, place, type_=_AsStored())

    def reclaim(self, conn: Connection, pages: int) -> tuple[int, bool]:
        if conn.exec_driver_sql("PRAGMA auto_vacuum").scalar_one() != INCREMENTAL:
            return 0, False  # a file that somebody else made, in another way
        before = conn.exec_driver_sql("PRAGMA freelist_count").scalar_one()
        if not before:
            return 0, False
        for _ in range(min(pages, before)):  # the driver ends the statement at its first page, whatever it is asked for
            conn.exec_driver_sql("PRAGMA incremental_vacuum(1)")
        after = conn.exec_driver_sql("PRAGMA freelist_count").scalar_one()
        size = conn.exec_driver_sql("PRAGMA page_size").scalar_one()
        return max(0, before - after) * size, 0 < after < before


INCREMENTAL = 2
"""SQLite's number for `auto_vacuum = INCREMENTAL`."""


def _opaque(conditions: Sequence[ColumnElement[bool]]) -> ColumnElement[bool]:
    return sa.case((sa.and_(*conditions), 1), else_=0) == sa.literal_column("1")


def is_native(column: Column[Any]) -> bool:
    """Whether the database itself knows the column's values as instants."""
    kind = column.type
    while isinstance(kind, TypeDecorator):
        kind = kind.impl_instance
    return isinstance(kind, sa.DateTime)


def _by_type(column: Column[Any], at: datetime) -> ColumnElement[Any]:
    return sa.bindparam(None, _accepted(column, at), type_=column.type)


def _accepted(column: Column[Any], at: datetime) -> datetime:
    """Aware or naive, whichever the column's type takes: types of the user's own refuse one of them."""
    aware = at.astimezone(UTC)
    kind = column.type
    if isinstance(kind, TypeDecorator):
        from sqlalchemy.dialects.sqlite.base import SQLiteDialect

        processor = kind.dialect_impl(SQLiteDialect()).bind_processor(SQLiteDialect())
        if processor is not None:
            try:
                processor(aware)
            except Exception:  # noqa: BLE001 - code of the user's own, that may refuse in any way
                return aware.replace(tzinfo=None)
        return aware
    return aware.replace(tzinfo=None)
