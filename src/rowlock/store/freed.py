"""Keys that a caller's own open transaction has freed, where keys are looked up on another connection (E4, O4).

There a look sees what is committed: a record that this very transaction has cancelled is pending still, and would
answer as a duplicate although it will not run.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import text
from sqlalchemy.engine import Connection

from rowlock.store.dialects.base import fetch

if TYPE_CHECKING:
    from rowlock.store.database import Database

_FREED = "rowlock_freed"


class _Freed(NamedTuple):
    transaction: weakref.ref[object]
    ids: set[int]


def remember(conn: Connection, db: Database, ids: Collection[int]) -> None:
    """These records were ended on this connection."""
    transaction = conn.get_transaction()
    if not db.dialect.looks_outside or transaction is None or db.in_transaction(conn):
        return
    seen: _Freed | None = conn.info.get(_FREED)
    if seen is None or seen.transaction() is not transaction:
        seen = conn.info[_FREED] = _Freed(weakref.ref(transaction), set())
    seen.ids.update(ids)


def freed(conn: Connection, db: Database, ids: Collection[int]) -> set[int]:
    """Those of these records that the connection's open transaction has ended, and not taken back since."""
    seen: _Freed | None = conn.info.get(_FREED)
    if seen is None or seen.transaction() is not conn.get_transaction():
        return set()
    own = seen.ids.intersection(ids)
    if not own:
        return own
    statement = f"SELECT id FROM rowlock_job WHERE id {db.dialect.in_ids(sorted(own))} AND state = 'cancelled'"
    return {row[0] for row in fetch(conn, text(statement))}
