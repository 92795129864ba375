"""Where Rowlock's own telemetry, event and audit tables are held, and rows of theirs that were left elsewhere (N9)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from sqlalchemy import func, select
from sqlalchemy.engine import Connection

from rowlock.store import schema
from rowlock.store.lifecycles import OWN, TELEMETRY, TELEMETRY_CLASSES

if TYPE_CHECKING:
    from rowlock.store.database import Database


def holder(names: Iterable[str], database: str) -> str:
    """The name of the database that holds what is telemetry, event or audit of `database` (N9)."""
    return TELEMETRY if TELEMETRY in names else database


def hold_elsewhere(databases: Mapping[str, Database]) -> Mapping[str, Database]:
    """The same databases, each knowing where its own telemetry, event and audit tables are held."""
    for db in databases.values():
        home = holder(databases, db.name)
        db.telemetry = databases[home] if home != db.name else None
    return databases


def left_behind(conn: Connection, db: Database, names: Iterable[str]) -> list[str]:
    """A sentence for each table that has rows here, and is held by the telemetry database by now."""
    if holder(names, db.name) == db.name:
        return []
    found: list[str] = []
    for name, lifecycle in OWN.items():
        table = schema.metadata.tables.get(name)
        if table is None or lifecycle.kind not in TELEMETRY_CLASSES:
            continue
        count = conn.execute(select(func.count()).select_from(table)).scalar_one()
        if count:
            found.append(
                f"{name} of database {db.name!r} has {count} rows that were left behind: database {TELEMETRY!r} holds "
                f"that table now (N9); they go when they are old enough"
            )
    return found
