"""SQLite's half of enqueueing: with one writer, what a transaction has read before it wrote still stands (E4)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from sqlalchemy.engine import Connection

from rowlock.store.dialects import sqlite_sql as sql
from rowlock.store.dialects.base import Dialect, Inserted, Row

if TYPE_CHECKING:
    from rowlock.store.database import Database


class EnqueueHooks(Dialect):
    """The hooks that `store/enqueue.py` and `store/batch.py` call."""

    def insert(self, conn: Connection, db: Database, rows: Sequence[Row]) -> list[Inserted]:
        now = db.clock.host_now()
        at = sql.to_text(now)
        params = [(*row[:6], _due(row, now, at), *row[8:12], at) for row in rows]
        if len(rows) == 1:
            made = conn.exec_driver_sql(sql.INSERT_ONE, params[0]).first()
            return [] if made is None else [Inserted(made[0], made[1])]
        before = conn.exec_driver_sql("SELECT coalesce(max(id), 0) FROM rowlock_job").scalar_one()
        conn.exec_driver_sql(sql.INSERT, params)
        if rows[0].key is None and getattr(conn.connection.dbapi_connection, "in_transaction", False):
            last = conn.exec_driver_sql("SELECT last_insert_rowid()").scalar_one()
            first = last - len(rows) + 1  # one writer: what a transaction inserts at once is consecutive
            return [Inserted(row.nonce, first + n) for n, row in enumerate(rows)]
        # In autocommit mode another process's rows may stand between these.
        mine = {row.nonce for row in rows}
        made_rows = conn.exec_driver_sql("SELECT token, id FROM rowlock_job WHERE id > ?", (before,))
        return [Inserted(row[0], row[1]) for row in made_rows if row[0] in mine]

    def find_active(self, conn: Connection, jobs: Sequence[str], keys: Sequence[str]) -> list[tuple[str, int, str]]:
        found: list[tuple[str, int, str]] = []
        for start in range(0, len(keys), 500):
            part = keys[start : start + 500]
            marks = [",".join("?" * len(jobs)), ",".join("?" * len(part))]
            rows = conn.exec_driver_sql(
                f"SELECT key, id, state FROM rowlock_job WHERE job IN ({marks[0]}) AND key IN ({marks[1]})"
                " AND state IN ('pending', 'running') AND key IS NOT NULL",
                (*jobs, *part),
            )
            found += [(row[0], row[1], row[2]) for row in rows]
        return found

    def find_recent(
        self, conn: Connection, db: Database, jobs: Sequence[str], keys: Sequence[str], window_ms: int
    ) -> list[tuple[str, int, str]]:
        after = sql.to_text(db.clock.host_now() - timedelta(milliseconds=window_ms))
        found: list[tuple[str, int, str]] = []
        for job in jobs:
            for start in range(0, len(keys), 500):
                part = keys[start : start + 500]
                rows = conn.exec_driver_sql(sql.find_recent(len(part)), (*part, job, after))
                found += [(row[0], row[1], "succeeded") for row in rows if row[1] is not None]
        return found

    def commits_each(self, conn: Connection) -> bool:
        raw: Any = conn.connection.dbapi_connection
        # SQLAlchemy's event may have said BEGIN where the driver says none.
        inside = getattr(raw.driver_connection if hasattr(raw, "driver_connection") else raw, "in_transaction", False)
        return not inside and super().commits_each(conn)


def _due(row: Row, now: datetime, now_text: str) -> str:
    if row.delay_ms is not None:
        return sql.to_text(now + timedelta(milliseconds=row.delay_ms))
    return now_text if row.run_at is None or (row.run_at <= now and not row.exact) else sql.to_text(row.run_at)
