"""The column type of an instant, for statements that SQLAlchemy builds."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import DateTime, String
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator, TypeEngine
from typing_extensions import override

from rowlock.store.dialects.sqlite_sql import from_text, to_text


class Instant(TypeDecorator[datetime]):
    """An aware UTC instant, in each database's native form (S5)."""

    impl = DateTime(timezone=True)
    cache_ok = True

    @override
    def load_dialect_impl(self, dialect: Dialect) -> Any:
        kinds: dict[str, TypeEngine[Any]] = {
            "sqlite": String(26),
            "mysql": mysql.DATETIME(fsp=6),
            "mariadb": mysql.DATETIME(fsp=6),
        }
        return dialect.type_descriptor(kinds.get(dialect.name) or DateTime(timezone=True))

    @override
    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        if value is None:
            return None
        utc = value.astimezone(UTC)
        forms: dict[str, Any] = {"sqlite": to_text, "mysql": _naive, "mariadb": _naive}
        return forms.get(dialect.name, _same)(utc)

    @override
    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if isinstance(value, str):
            return from_text(value)
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _naive(value: datetime) -> datetime:
    return value.replace(tzinfo=None)


def _same(value: datetime) -> datetime:
    return value
