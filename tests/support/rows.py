"""A user's own tables, and rows of any age in them: for retention."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

NOW = datetime(2027, 3, 1, 12, tzinfo=UTC)


def stamp(engine: sa.Engine, ago: timedelta, column: sa.Column[Any]) -> datetime:
    """`NOW - ago` as a user's program would write it."""
    at = NOW - ago
    aware = getattr(column.type, "timezone", False) and engine.dialect.name == "postgresql"
    return at if aware else at.replace(tzinfo=None)


@contextmanager
def made(engine: sa.Engine, *tables: sa.Table) -> Iterator[None]:
    """The tables are there within the block."""
    for table in tables:
        table.create(engine)
    yield


def insert(engine: sa.Engine, table: sa.Table, rows: list[dict[str, Any]]) -> None:
    with engine.begin() as conn:
        for start in range(0, len(rows), 1_000):
            conn.execute(table.insert(), rows[start : start + 1_000])


def values(engine: sa.Engine, column: sa.Column[Any]) -> list[Any]:
    """Of every row, in order."""
    with engine.connect() as conn:
        return list(conn.execute(sa.select(column).order_by(column)).scalars())


def count(engine: sa.Engine, table: sa.Table) -> int:
    with engine.connect() as conn:
        return conn.execute(sa.select(sa.func.count()).select_from(table)).scalar_one()
