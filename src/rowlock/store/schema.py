"""Rowlock's own tables, as the store's statements see them. The DDL is in `migrations`.

Private and versioned (S1); reading them with plain SQL is supported, and columns may be added.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from sqlalchemy import BigInteger, Column, DateTime, Integer, MetaData, String, Table, Text
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator

from rowlock.store.dialects.sqlite import from_text, to_text


class Instant(TypeDecorator[datetime]):
    """An aware UTC instant, in each database's native form (S5)."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> Any:
        kinds = {"sqlite": String(26), "mysql": mysql.DATETIME(fsp=6), "mariadb": mysql.DATETIME(fsp=6)}
        return dialect.type_descriptor(kinds.get(dialect.name, DateTime(timezone=True)))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        if value is None:
            return None
        utc = value.astimezone(timezone.utc)
        forms: dict[str, Any] = {"sqlite": to_text, "mysql": _naive, "mariadb": _naive}
        return forms.get(dialect.name, _same)(utc)

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if isinstance(value, str):
            return from_text(value)
        return value.replace(tzinfo=timezone.utc) if value.tzinfo is None else value.astimezone(timezone.utc)


def _naive(value: datetime) -> datetime:
    return value.replace(tzinfo=None)


def _same(value: datetime) -> datetime:
    return value


metadata = MetaData()

job = Table(
    "rowlock_job",
    metadata,
    Column("id", BigInteger, primary_key=True),
    Column("job", String(1024), nullable=False),
    Column("fingerprint", String(64), nullable=False),
    Column("payload", Text, nullable=False),
    Column("key", String(1024)),
    Column("queue", String(128), nullable=False),
    Column("priority", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("run_at", Instant, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    Column("timeout_ms", Integer, nullable=False),
    Column("headers", Text),
    Column("token", String(64)),
    Column("lease", Instant),
    Column("claimed_by", String(255)),
    Column("error_category", String(32)),
    Column("error_class", String(255)),
    Column("error_summary", String(500)),
    Column("created_at", Instant, nullable=False),
    Column("claimed_at", Instant),
    Column("finished_at", Instant),
    Column("handed_back", Integer, nullable=False),
)

meta = Table(
    "rowlock_meta",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", String(255), nullable=False),
)
