"""What operators do to records, one or many: replay, release, purge (O2, O3), each kept in the audit table (O6).

Many go oldest first, 200 in a transaction: a change that is cut off has done what it says, and the next one does the
rest. What somebody else has locked is passed over.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from sqlalchemy import ColumnElement, select, text
from sqlalchemy.engine import Connection

from rowlock.errors import EnqueueBusy, InvalidState, KeyTaken
from rowlock.model.outcome import State
from rowlock.model.table import JOBS
from rowlock.store import audit, schema
from rowlock.store.asked import asked, forget
from rowlock.store.audit import Action
from rowlock.store.dialects.base import fetch
from rowlock.store.listing import oldest
from rowlock.store.operate import Operation, Step
from rowlock.store.records import MAX_ID, Filter, conditions, no_record
from rowlock.store.revive import UNSEEN, Batch, Holders, Row, held_outside

if TYPE_CHECKING:
    from rowlock.store.database import Database

BATCH = 200
"""Records of one transaction."""
PAGE = 5_000
"""Records of one look."""
_COLUMNS = ("id", "job", "fingerprint", "key", "max_attempts", "timeout_ms", "state", "error_category")


@dataclass(frozen=True, slots=True)
class Done:
    """How many records an operation changed (dry run: would change), and how many it left, their keys being taken."""

    count: int
    conflicts: int


class Change(ABC):
    """One thing that can be done to records."""

    action: ClassVar[Action]
    rule: ClassVar[str]
    done: ClassVar[str]
    """The action as a participle."""
    states: ClassVar[tuple[State, ...]]
    """The states that it changes."""
    takes_keys: ClassVar[bool] = True
    """The records become active, so that their keys must be free."""

    def __init__(self, db: Database) -> None:
        self.db = db

    def among(self) -> list[ColumnElement[bool]]:
        """What else a record must be to be looked at."""
        return []

    @abstractmethod
    def why_not(self, row: Any) -> str | None:
        """Why this record can not be changed so; None if it can."""

    def names(self, row: Any) -> tuple[str, ...]:
        """The names that share the record's key, its job's own first."""
        return (row.job,)

    @abstractmethod
    def apply(self, conn: Connection, rows: Sequence[Row], held: Holders, *, dry_run: bool) -> Batch:
        """Changes records that this transaction has locked. Again after a conflict."""


class _Told(NamedTuple):
    """What the audit table says of a change: of what, and by whom."""

    detail: Mapping[str, object]
    by: str | None


class _Written(NamedTuple):
    batch: Batch
    entry: int | None
    """Its row in the audit table."""


def one(change: Change, id: int, *, dry_run: bool = False, by: str | None = None) -> Operation[Done]:
    """One record. Raises `NotFound`, `InvalidState`, `KeyTaken`, `EnqueueBusy`."""
    yield Step(lambda conn: _check(conn, change, id))
    written = yield from _batch(change, [id], {}, None, _Told({"id": id}, by), dry_run=dry_run)
    batch = written.batch
    if id in batch.conflicts:
        if batch.conflicts[id] == UNSEEN:
            raise EnqueueBusy(f"record {id}: another transaction is just enqueueing its key (O2); try again")
        raise KeyTaken(id, batch.conflicts[id])
    if id not in batch.ids:
        raise InvalidState(
            f"record {id} is being changed by somebody else ({change.rule}); look at it again, then try again"
        )
    return Done(1, 0)


def many(
    change: Change, filter: Filter, *, limit: int | None = None, dry_run: bool = False, by: str | None = None
) -> Operation[Done]:
    """All that match, or the `limit` oldest of those that can be changed, in order of id. Raises `InvalidState`."""
    if filter.state is not None and filter.state not in change.states:
        only = " or ".join(change.states)
        raise InvalidState(
            f"records that are {filter.state} can not be {change.done} ({change.rule}): only {only} ones"
        )
    count = conflicts = 0
    after: int | None = 0
    would: Holders = {}
    entry: int | None = None
    told = _Told(told_of(filter), by)
    while after is not None:
        page: tuple[list[int], int | None]
        page = yield _look_after(change, filter, after)
        ids, after = page
        while ids:
            size = BATCH if limit is None else min(BATCH, limit - count)
            if size <= 0:
                return Done(count, conflicts)
            written = yield from _batch(change, ids[:size], would, entry, told, dry_run=dry_run)
            del ids[:size]
            batch, entry = written
            count, conflicts = count + len(batch.ids), conflicts + len(batch.conflicts)
            if dry_run:
                would |= batch.keys
    return Done(count, conflicts)


def _batch(
    change: Change, ids: list[int], would: Holders, entry: int | None, told: _Told, *, dry_run: bool
) -> Operation[_Written]:
    held = dict(would)
    unseen: list[int] = []
    if change.takes_keys and change.db.dialect.looks_outside:
        rows: list[Row] = yield Step(lambda conn: _rows(conn, change, ids, lock=False))
        held |= yield from held_outside(change.db, rows)
        # A snapshot may be blind to cancels too, which must not hit the life that begins (O4).
        unseen = yield Step(lambda conn: sorted(asked(conn, change.db, ids)), outside=True)
    written: _Written = yield Step(lambda conn: _written(conn, change, ids, held, entry, told, dry_run=dry_run))
    if not dry_run and (late := set(unseen).intersection(written.batch.ids)):
        yield Step(lambda conn: forget(conn, change.db, late))
    return written


def _written(
    conn: Connection, change: Change, ids: list[int], held: Holders, entry: int | None, told: _Told, *, dry_run: bool
) -> _Written:
    batch = change.apply(conn, _rows(conn, change, ids, lock=not dry_run), held, dry_run=dry_run)
    if dry_run or not batch.ids:
        return _Written(batch, entry)
    if entry is None:
        count, (detail, by) = len(batch.ids), told
        return _Written(batch, audit.note(conn, change.db, change.action, count=count, detail=detail, by=by))
    audit.add(conn, change.db, entry, len(batch.ids))
    return _Written(batch, entry)


def told_of(filter: Filter) -> dict[str, object]:
    """A filter as the audit table tells it."""
    return {name: value for name, value in asdict(filter).items() if value is not None}


def _look_after(change: Change, filter: Filter, after: int) -> Step:
    return Step(lambda conn: _page(conn, change, filter, after))


def _check(conn: Connection, change: Change, id: int) -> None:
    if not 0 <= id <= MAX_ID:  # a driver could not even send it
        raise no_record(change.db, id)
    row = conn.execute(select(*(schema.job.c[name] for name in _COLUMNS)).where(schema.job.c.id == id)).first()
    if row is None:
        raise no_record(change.db, id)
    if why := change.why_not(row):
        raise InvalidState(f"record {id} can not be {change.done} ({change.rule}): {why}")


def _page(conn: Connection, change: Change, filter: Filter, after: int) -> tuple[list[int], int | None]:
    """The ids of the next page, and after which id the one behind it begins."""
    db = change.db
    wanted = [*change.among(), *conditions(conn, db, replace(filter, state=None))]
    found: list[int] = []
    for state in change.states if filter.state is None else (filter.state,):
        found += oldest(conn, db, state, wanted, after=after, limit=PAGE)
    ids = sorted(found)[:PAGE]
    fit: list[int] = []
    for start in range(0, len(ids), db.dialect.max_batch):
        fit += [row[0] for row in _rows(conn, change, ids[start : start + db.dialect.max_batch], lock=False)]
    return fit, ids[-1] if len(ids) == PAGE else None


def _rows(conn: Connection, change: Change, ids: list[int], *, lock: bool) -> list[Row]:
    """Those that can be changed still, locked if so wanted."""
    dialect = change.db.dialect
    columns = ", ".join(dialect.quoted(name) for name in _COLUMNS)
    still, hint = dialect.is_still(JOBS, *change.states), dialect.looking.by_id if lock else ""
    statement = f"SELECT {columns} FROM rowlock_job {hint} WHERE id {dialect.in_ids(ids)} AND {still} ORDER BY id"
    rows = fetch(conn, text(f"{statement} {dialect.skip_locked() if lock else ''}"))
    return [(row.id, change.names(row), row.key) for row in rows if not change.why_not(row)]
