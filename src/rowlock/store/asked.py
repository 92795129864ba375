"""Cancels that were asked for while a record was in work: seeing them, and carrying them out (O4).

A cancel of a record that somebody holds is a row of `rowlock_cancel`, so that it neither locks the record nor waits for
it. Whoever can still end the record honours it: the settlement of an attempt that did not complete the work, the claim,
which says of a record that it must not be run, and `carry_out`, for what nobody holds any more.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import text
from sqlalchemy.engine import Connection

from rowlock.model.outcome import Category, State
from rowlock.model.table import JOBS
from rowlock.store.claim import Rescued
from rowlock.store.dialects.base import fetch

if TYPE_CHECKING:
    from rowlock.store.database import Database

PAGE = 200

AS_CANCELLED = (
    "state = 'cancelled', finished_at = {now}, lease = NULL,"
    f" error_category = '{Category.CANCELLED}', error_class = NULL, error_summary = NULL"
)
"""What a cancelled record looks like, however it came to that. Behind assignments that read the earlier state."""


class Carried(NamedTuple):
    """One page: the records that became cancelled, and what to pass as `after` for the next page, None on the last."""

    records: list[Rescued]
    next: int | None


def asked(conn: Connection, db: Database, ids: Collection[int]) -> set[int]:
    """Those of these records that somebody asked to cancel. One read, without a lock."""
    statement = text(f"SELECT id FROM rowlock_cancel WHERE id {db.dialect.in_ids(sorted(ids))}")
    return {row[0] for row in fetch(conn, statement)}


def forget(conn: Connection, db: Database, ids: Collection[int]) -> None:
    """Takes cancels back: the records are about to begin another life, with the same ids (O2, O3)."""
    if ids:
        conn.execute(text(f"DELETE FROM rowlock_cancel WHERE id {db.dialect.in_ids(sorted(ids))}"))


def carry_out(conn: Connection, db: Database, after: int = 0) -> Carried:
    """Makes records cancelled that somebody asked to cancel and nobody holds (any more); drops what is done with.

    A record whose work completed stays as it is: succeeded, or dead by its handler's own word. What ended in another
    way did so before its worker saw the cancel, and becomes cancelled (O4). Looks first; waits for nobody's lock.
    """
    page = fetch(
        conn, text(f"SELECT id FROM rowlock_cancel WHERE id > :after ORDER BY id LIMIT {PAGE}"), {"after": after}
    )
    ids = [row[0] for row in page]
    following = ids[-1] if len(ids) == PAGE else None
    if not ids:
        return Carried([], None)
    # Whether it is held is asked of each row, not a condition: by that an optimizer might read all that is in work.
    statement = f"SELECT id, {_held(db)} FROM rowlock_job WHERE id {db.dialect.in_ids(ids)}"
    held: dict[int, bool | None] = {row[0]: row[1] for row in fetch(conn, text(statement), db.now_params())}
    loose = [id_ for id_ in ids if not held.get(id_)]
    if not loose:
        return Carried([], following)
    with db.transaction(conn):
        moved = _carry_out(conn, db, loose, set(held))
    return Carried(moved, following)


def _carry_out(conn: Connection, db: Database, loose: Sequence[int], there: set[int]) -> list[Rescued]:
    # A cancel that is just being asked for once more is locked too, and would be waited for when it is dropped. The
    # record's own lock keeps it in the life that the cancel was meant for.
    skip, in_ids = db.dialect.skip_locked(), db.dialect.in_ids
    ids = [row[0] for row in fetch(conn, text(f"SELECT id FROM rowlock_cancel WHERE id {in_ids(loose)} {skip}"))]
    if not ids:
        return []
    queue = db.dialect.quoted("queue")
    statement = (
        f"SELECT id, job, {queue}, attempt, state, error_category FROM rowlock_job {db.dialect.looking.by_id}"
        f" WHERE id {in_ids(ids)} AND NOT {_held(db)} {skip}"
    )
    rows = fetch(conn, text(statement), db.now_params())
    ending = [row for row in rows if not _complete(row.state, row.error_category)]
    if ending:
        # A late holder must not take this for its own settlement (L1); whoever settled, and lost the answer, must.
        change = (
            f"UPDATE rowlock_job {db.dialect.looking.by_id}"
            " SET token = CASE WHEN state = 'running' THEN NULL ELSE token END,"
            f" {AS_CANCELLED.format(now=db.dialect.now(db))} WHERE id {in_ids([row.id for row in ending])}"
        )
        conn.execute(text(change), db.now_params())
    forget(conn, db, {row.id for row in rows} | (set(ids) - there))
    return [Rescued(row.id, row.job, row.queue, row.attempt, State.CANCELLED, Category.CANCELLED) for row in ending]


def _held(db: Database) -> str:
    return f"({db.dialect.is_still(JOBS, 'running')} AND lease > {db.dialect.scan_now(db)})"


def _complete(state: str, category: str | None) -> bool:
    return state in {State.SUCCEEDED, State.CANCELLED} or (state == State.DEAD and category == Category.REJECTED)
