"""Making records pending again that were not: their keys may have been taken meanwhile, which is a conflict (O2, E4).

A key's holder is looked for first. What is lost in a race between look and write is told by the unique index, and then
the records go one by one, so that a conflict of one does not undo the others.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import text
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, IntegrityError

from rowlock.model.outcome import State
from rowlock.model.table import JOBS
from rowlock.store.asked import asked, forget
from rowlock.store.freed import freed
from rowlock.store.operate import Operation, Step

if TYPE_CHECKING:
    from rowlock.store.database import Database

Row = tuple[int, tuple[str, ...], str | None]
"""A record: its id, the names that share its key (its job's own first), and its key."""
Holders = dict[tuple[str, str], int]
"""The active record of a job's own name and a key."""
_Active = list[tuple[str, int, str]]
UNSEEN = 0
"""A holder that is there and can not be seen: the transaction that makes it has not ended."""

_BACK = (
    "UPDATE rowlock_job {hint} SET state = 'pending', run_at = {now}, finished_at = NULL, lease = NULL, {more}"
    " WHERE id {ids} AND {still}"
)


class Batch(NamedTuple):
    """What became of some records."""

    ids: list[int]
    """Those that were changed."""
    conflicts: dict[int, int]
    """Those that were not, each with the record that holds its key."""
    keys: Holders
    """The keys of `ids`."""


def held_outside(db: Database, rows: Sequence[Row]) -> Operation[Holders]:
    """The holders that a caller's snapshot may not show; what it shows itself, as its own writes, is left out."""
    held: Holders = {}
    for names, keys in _by_names(rows).items():
        seen: _Active = yield _look(db, names, keys)
        rest = sorted(set(keys) - {key for key, _, _ in seen})
        if rest:
            found: _Active = yield _look(db, names, rest, outside=True)
            gone: set[int] = yield _freed(db, [id_ for _, id_, _ in found])
            held |= {(names[0], key): id_ for key, id_, _ in found if id_ not in gone}
    return held


def _freed(db: Database, ids: Sequence[int]) -> Step:
    return Step(lambda conn: freed(conn, db, ids))


def _look(db: Database, names: Sequence[str], keys: Sequence[str], *, outside: bool = False) -> Step:
    if outside:
        return Step(lambda conn: db.dialect.look_outside(conn, db, names, keys), outside=True)
    return Step(lambda conn: db.dialect.find_active(conn, names, keys))


class Revival:
    """Some records become pending, due now, but for those whose keys are taken. `more` is what else is set."""

    def __init__(self, db: Database, more: str, held: Holders, *, dry_run: bool) -> None:
        self._db = db
        self._more = more
        self._held = held
        self._dry_run = dry_run
        self._made = Batch([], {}, {})

    def run(self, conn: Connection, rows: Sequence[Row]) -> Batch:
        """`rows` are locked by this transaction, and may be made pending but for their keys."""
        free = self._free(conn, rows)
        made = self._made
        if self._dry_run or not free or self._update(conn, free):
            made.ids.extend(row[0] for row in free)
        else:
            for row in free:
                self._singly(conn, row)
        return made._replace(keys={key: id_ for key, id_ in made.keys.items() if id_ in set(made.ids)})

    def _free(self, conn: Connection, rows: Sequence[Row]) -> list[Row]:
        held = dict(self._held)
        for names, keys in _by_names(rows).items():
            if not self._dry_run:
                self._db.dialect.reserve_keys(conn, self._db, names[0], keys)
            held |= {(names[0], key): id_ for key, id_, _ in self._db.dialect.find_active(conn, names, keys)}
        free: list[Row] = []
        for row in sorted(rows):
            key = None if row[2] is None else (row[1][0], row[2])
            if key is None:
                free.append(row)
            elif (holder := held.setdefault(key, row[0])) == row[0]:  # of several with one key, the oldest
                self._made.keys[key] = row[0]
                free.append(row)
            else:
                self._made.conflicts[row[0]] = holder
        return free

    def _singly(self, conn: Connection, row: Row) -> None:
        if self._update(conn, [row]):
            self._made.ids.append(row[0])
            return
        assert row[2] is not None
        found = self._db.dialect.find_active(conn, row[1], [row[2]])
        self._made.conflicts[row[0]] = found[0][1] if found else UNSEEN

    def _update(self, conn: Connection, rows: Sequence[Row]) -> bool:
        """False: the key of one of them is taken after all, or is just being taken; nothing was changed."""
        dialect = self._db.dialect
        ids, still = dialect.in_ids([row[0] for row in rows]), dialect.is_still(JOBS, State.BLOCKED, State.DEAD)
        statement = _BACK.format(
            now=dialect.callers_now(self._db), ids=ids, still=still, more=self._more, hint=dialect.looking.by_id
        )
        try:
            with _savepoint(conn, self._db):
                conn.execute(text(statement), self._db.now_params())
                # A cancel that came too late for the earlier life must not end the one that begins here (O4).
                forget(conn, self._db, asked(conn, self._db, [row[0] for row in rows]))
        except DBAPIError as error:
            if isinstance(error, IntegrityError) or (dialect.is_lock_timeout(error) and any(row[2] for row in rows)):
                return False
            raise
        return True


def _by_names(rows: Sequence[Row]) -> dict[tuple[str, ...], list[str]]:
    keys: dict[tuple[str, ...], set[str]] = {}
    for _, names, key in rows:
        if key is not None:
            keys.setdefault(names, set()).add(key)
    return {names: sorted(found) for names, found in sorted(keys.items())}


@contextmanager
def _savepoint(conn: Connection, db: Database) -> Generator[None]:
    if db.dialect.one_writer:  # a statement that fails undoes only itself, and a driver may commit at a RELEASE
        yield
        return
    conn.exec_driver_sql("SAVEPOINT rowlock_revive")
    try:
        yield
    except DBAPIError as error:
        if not (error.connection_invalidated or db.dialect.is_conflict(error)):
            conn.exec_driver_sql("ROLLBACK TO SAVEPOINT rowlock_revive")
            conn.exec_driver_sql("RELEASE SAVEPOINT rowlock_revive")
        raise
    conn.exec_driver_sql("RELEASE SAVEPOINT rowlock_revive")
