"""What operators did: one row for each deed, written in the transaction of the deed (O6).

A deed of several transactions (a bulk replay) keeps one row: the first writes it, each further one adds its count, so
that the row tells at every moment what has been committed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Row, select
from sqlalchemy.engine import Connection
from sqlalchemy.util import await_only
from sqlalchemy.util.concurrency import in_greenlet

from rowlock.store import schema
from rowlock.store.clock import database_now

if TYPE_CHECKING:
    from rowlock.store.database import Database

P = ParamSpec("P")
T = TypeVar("T")


class Action(StrEnum):
    """What an operator can do that is kept."""

    REPLAY = "replay"
    PURGE = "purge"
    RELEASE = "release"
    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"
    ACCEPT = "accept"
    """A schedule's changed cron text was accepted."""
    FORGET = "forget"
    """A schedule's cursor was deleted."""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One deed. `detail` says of what: an id, the filters, a name; `by` is whoever said so, None if nobody did.

    Times are aware and in UTC.
    """

    id: int
    at: datetime
    action: str
    detail: Mapping[str, Any]
    count: int
    by: str | None


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Some deeds, newest first. `next` is what to pass as `after` for the following page, None on the last."""

    items: list[AuditEntry]
    next: int | None


def note(
    conn: Connection,
    db: Database,
    action: Action,
    *,
    count: int = 1,
    detail: Mapping[str, object] | None = None,
    by: str | None = None,
) -> int:
    """Keeps what was just done on this connection, in the same transaction, also a caller's; answers the row's id.

    Where another database holds the audit table (N9) it is written there before the change commits: a deed that was
    rolled back may be told, never one that was done be missing.

    `count` how many records, queues or schedules it changed; `detail` which: `{"id": 42}`, `{"queue": "billing"}`, the
    filters of a bulk change; never a payload. `by` at most 255 bytes.
    """
    told = dict(detail or {})
    if db.telemetry is not None:
        told = {"database": db.name, **told}
    return _held(conn, db, _note, action.value, told, count, by)


def _note(conn: Connection, db: Database, action: str, detail: Mapping[str, object], count: int, by: str | None) -> int:
    made = conn.execute(
        schema.audit.insert().values(
            at=database_now(conn, db),
            action=action,
            detail=_as_text(detail),
            count=count,
            by=None if by is None else db.dialect.as_text(by),
        )
    )
    key = made.inserted_primary_key
    assert key is not None
    return int(key[0])


def add(conn: Connection, db: Database, id: int, count: int) -> None:
    """Counts more of the same deed, done by a further transaction."""
    _held(conn, db, _add, id, count)


def _add(conn: Connection, _db: Database, id: int, count: int) -> None:
    c = schema.audit.c
    conn.execute(schema.audit.update().where(c.id == id).values(count=c.count + count))


def _held(
    conn: Connection, db: Database, write: Callable[Concatenate[Connection, Database, P], T], *args: P.args,
    **kwargs: P.kwargs,
) -> T:  # fmt: skip
    """Writes where the table is held."""
    home = db.telemetry
    if home is None:
        return write(conn, db, *args, **kwargs)
    if in_greenlet():  # of a coroutine, whose loop must not be blocked
        return await_only(home.arun(write, *args, **kwargs))
    return home.run(write, *args, **kwargs)


def list_(
    conn: Connection,
    db: Database,
    *,
    action: str | None = None,
    by: str | None = None,
    limit: int = 50,
    after: int | None = None,
) -> AuditPage:
    """What was done, newest first, at most `limit` (1..1,000); `after` is the `next` of the page before."""
    c = schema.audit.c
    wanted = [column == value for column, value in ((c.action, action), (c.by, by)) if value is not None]
    if after is not None:
        wanted.append(c.id < after)
    rows = conn.execute(select(schema.audit).where(*wanted).order_by(c.id.desc()).limit(limit + 1)).all()
    items = [_entry(row) for row in rows[:limit]]
    return AuditPage(items, items[-1].id if len(rows) > limit else None)


def _entry(row: Row[Any]) -> AuditEntry:
    return AuditEntry(row.id, row.at, row.action, json.loads(row.detail), row._mapping["count"], row.by)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - public, in spite of its name


def _as_text(detail: Mapping[str, object]) -> str:
    # In ASCII: a caller's session may speak a character set that does not have these characters.
    return json.dumps(detail, default=_plain, separators=(",", ":"))


def _plain(value: object) -> object:
    return value.total_seconds() if isinstance(value, timedelta) else str(value)
