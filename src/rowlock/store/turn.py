"""Whose turn it is to sweep a database: one row with a lease, so that one sweeps at a time over all processes (N3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import select, text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from rowlock.errors import LeaseLost
from rowlock.store import schema
from rowlock.store.clock import database_now

if TYPE_CHECKING:
    from rowlock.store.database import Database

LEASE = timedelta(minutes=2)
"""Renewed with each batch. A sweeper that was killed keeps the others out for so long."""
NAME = "sweep"


class TurnLost(LeaseLost):
    """Another sweeper has the turn by now."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn that was taken, and where the last one of an unfinished sweep ended."""

    token: str
    position: Mapping[str, Any]


def peek(conn: Connection, db: Database, every: timedelta) -> tuple[float, datetime | None]:
    """How many seconds until a sweep is due, 0 for now, and when that is. Reads only."""
    row = conn.execute(select(schema.sweep).where(schema.sweep.c.name == NAME)).first()
    if row is None:
        return 0.0, None
    now = database_now(conn, db)
    waits = [0.0]
    # What is further ahead than it can be was written by a clock that was wrong.
    if row.next_at is not None and now < row.next_at <= now + every:
        waits.append((row.next_at - now).total_seconds())
    if row.lease is not None and now < row.lease <= now + 2 * LEASE:
        waits.append((row.lease - now).total_seconds())
    return max(waits), row.next_at


def take(conn: Connection, db: Database, token: str, every: timedelta, *, early: bool = False) -> Turn | None:
    """Takes the turn, if nobody else has it and a sweep is due (`early`: due or not); None if not."""
    _make(conn)
    now, limit = db.dialect.now(db), db.dialect.plus_ms
    free = f"(token = :token OR lease IS NULL OR lease <= {now} OR lease > {limit(now, str(2 * _ms(LEASE)))})"
    due = f"(next_at IS NULL OR next_at <= {now} OR next_at > {limit(now, str(_ms(every)))})"
    statement = text(
        f"UPDATE rowlock_sweep SET token = :token, lease = {limit(now, str(_ms(LEASE)))}"
        f" WHERE name = '{NAME}' AND {free}{'' if early else f' AND {due}'}"
    )
    with db.transaction(conn):
        if conn.execute(statement, {"token": token} | db.now_params()).rowcount != 1:
            return None
        stored = conn.execute(select(schema.sweep.c.position).where(schema.sweep.c.name == NAME)).scalar_one()
    return Turn(token, _read(stored))


def renew(conn: Connection, db: Database, turn: Turn) -> None:
    """The turn goes on. Raises `TurnLost`: another one has it."""
    now = db.dialect.now(db)
    statement = text(
        f"UPDATE rowlock_sweep SET lease = {db.dialect.plus_ms(now, str(_ms(LEASE)))}"
        f" WHERE name = '{NAME}' AND token = :token"
    )
    params = {"token": turn.token} | db.now_params()
    if conn.execute(statement, params).rowcount != 1 and not _is_mine(conn, turn):
        raise TurnLost("another sweeper has the turn (N3); this one ends")


def give_back(conn: Connection, db: Database, turn: Turn, pause: timedelta, position: Mapping[str, Any]) -> None:
    """Ends the turn: the next one is due after `pause`, and goes on at `position`."""
    now = db.dialect.now(db)
    statement = text(
        f"UPDATE rowlock_sweep SET token = NULL, lease = NULL, position = :position,"
        f" next_at = {db.dialect.plus_ms(now, str(_ms(pause)))} WHERE name = '{NAME}' AND token = :token"
    )
    stored = msgspec.json.encode(position).decode() if position else None
    conn.execute(statement, {"token": turn.token, "position": stored} | db.now_params())


def _make(conn: Connection) -> None:
    if conn.execute(select(schema.sweep.c.name).where(schema.sweep.c.name == NAME)).first() is not None:
        return
    try:
        conn.execute(schema.sweep.insert().values(name=NAME))
    except IntegrityError:  # another process made it in between
        return


def _is_mine(conn: Connection, turn: Turn) -> bool:
    # Some drivers count changed rows, and within one microsecond nothing changes.
    token = conn.execute(select(schema.sweep.c.token).where(schema.sweep.c.name == NAME)).scalar_one_or_none()
    return token == turn.token


def _read(stored: str | None) -> Mapping[str, Any]:
    if stored is None:
        return {}
    try:
        return msgspec.json.decode(stored, type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError):  # somebody wrote into it: begin at the beginning
        return {}


def _ms(span: timedelta) -> int:
    return -(-span // timedelta(milliseconds=1))
