"""Queues that nobody claims from until they are resumed (O5). What a claim asks of them is in its own statement."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from sqlalchemy import select
from sqlalchemy.engine import Connection

from rowlock.store import audit, schema
from rowlock.store.audit import Action
from rowlock.store.operate import Operation, Step

if TYPE_CHECKING:
    from rowlock.store.database import Database


def pause(db: Database, queue: str, *, by: str | None = None) -> Operation[bool]:
    """Pauses a queue, known or not; False if it was paused already."""
    changed: bool = yield Step(lambda conn: _pause(conn, db, queue, by))
    return changed


def resume(db: Database, queue: str, *, by: str | None = None) -> Operation[bool]:
    """Ends the pause; False if there was none."""
    changed: bool = yield Step(lambda conn: _resume(conn, db, queue, by))
    return changed


def paused(conn: Connection, _db: Database) -> dict[str, datetime]:
    """Since when which queues are paused."""
    return {row.queue: row.paused_at for row in conn.execute(select(schema.pause))}


def paused_since(conn: Connection, queue: str) -> datetime | None:
    """Since when this queue is paused; None if it is not."""
    c = schema.pause.c
    return conn.execute(select(c.paused_at).where(c.queue == queue)).scalar_one_or_none()


def _pause(conn: Connection, db: Database, queue: str, by: str | None) -> bool:
    statement = f"INSERT INTO rowlock_pause (queue, paused_at) VALUES (:queue, {db.dialect.callers_now(db)})"
    if not db.dialect.insert_new(conn, statement, {"queue": queue} | db.now_params()):
        return False
    audit.note(conn, db, Action.PAUSE, detail={"queue": queue}, by=by)
    return True


def _resume(conn: Connection, db: Database, queue: str, by: str | None) -> bool:
    c = schema.pause.c
    if not conn.execute(schema.pause.delete().where(c.queue == db.dialect.as_text(queue))).rowcount:
        return False
    audit.note(conn, db, Action.RESUME, detail={"queue": queue}, by=by)
    return True
