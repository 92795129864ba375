"""One sweep of one database: every declared table in turn, a page of each, until nothing is due or time is up (N3)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import DBAPIError, IntegrityError

from rowlock.errors import DatabaseUnavailable, LoginRefused
from rowlock.model.retention import SweepReport, TableSweep
from rowlock.model.texts import error_class
from rowlock.runtime import faults
from rowlock.runtime.bounds import bounded
from rowlock.store.archive import Moved, TargetFailed, move
from rowlock.store.failures import is_outage
from rowlock.store.subject import Guard, Subject, lacks_index
from rowlock.store.sweep import BATCH, LOOK, Page, Place, key_of, look, remove, rows_of
from rowlock.store.turn import Turn, TurnLost

if TYPE_CHECKING:
    from rowlock.store.database import Database
    from rowlock.store.dialects.aging import Key

Blocking = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs code that may take its time (a guard of the user's own, a copy to another database) off the loop."""

PIECE = 100
"""Rows of one deleting statement, so that it lasts a few milliseconds: claims go on beside it."""
FASTEST, SLOWEST = 3_000, 2_200
"""Rows a second. A sweep rests three times as long as it works, but goes on at its rate where it can."""
AGAIN = 3
"""So often a batch that met a deadlock is tried again as a whole."""
MOST_REFUSED = 20
PATIENCE_S = 60.0
"""A look at a table without an index may take long."""


class TableFailed(Exception):  # noqa: N818 - it tells what happened
    """The table itself refuses, not its rows: it is gone, or may not be written."""


class Walk:
    """One branch of one table in one sweep."""

    def __init__(self, subject: Subject, branch: int, after: Place | None) -> None:
        self.subject = subject
        self.branch = branch
        self.after = after
        self.ended = False
        self.unindexed = lacks_index(subject)
        self.name = f"{subject.name}#{branch}"
        self.refused = 0
        """Rows in a row that were refused, and not for a broken rule."""
        self.swept = 0
        self.skipped = 0


class Sweep:
    """Made for one sweep. `databases` are those of the program, for archives; `until` is monotonic."""

    def __init__(
        self, db: Database, subjects: Sequence[Subject], turn: Turn, *, databases: Mapping[str, Database],
        blocking: Blocking, until: float, paced: bool = True,
    ) -> None:  # fmt: skip
        self._db = db
        self._turn = turn
        self._databases = databases
        self._blocking = blocking
        self._until = until
        self._paced = paced
        self._errors: Counter[str] = Counter()
        self._walks = [
            Walk(subject, branch, _place(turn.position.get(f"{subject.name}#{branch}")))
            for subject in subjects
            if subject.window is not None
            for branch in range(len(subject.branches))
        ]

    async def run(self) -> None:
        """Goes on until nothing is due, or time is up. Raises what a database that is not there raises, `TurnLost`."""
        left = self._walks
        while left and self._has_time():
            for walk in left:  # a page of each, so that a large table does not keep the others waiting
                if not self._has_time():
                    return
                await self._guarded_page(walk)
            left = [walk for walk in left if not walk.ended]

    def report(self) -> SweepReport:
        """What was done so far."""
        tables: dict[str, TableSweep] = {}
        for walk in self._walks:
            was = tables.get(walk.subject.name) or TableSweep(self._db.name, walk.subject.name)
            tables[walk.subject.name] = TableSweep(
                was.database, was.table, was.swept + walk.swept, was.skipped + walk.skipped, was.finished and walk.ended
            )
        return SweepReport(
            swept=sum(each.swept for each in tables.values()),
            skipped=sum(each.skipped for each in tables.values()),
            errors=tuple(f"{text} ({count} times)" if count > 1 else text for text, count in self._errors.items()),
            finished=all(each.finished for each in tables.values()),
            tables=tuple(tables.values()),
        )

    def position(self) -> dict[str, Any]:
        """Where an unfinished sweep goes on; empty when all is done."""
        if all(walk.ended for walk in self._walks):
            return {}
        places = {walk.name: walk.after.at for walk in self._walks if walk.after is not None and not walk.ended}
        return {name: at for name, at in places.items() if isinstance(at, str | int | float)}

    # --- a page --------------------------------------------------------------------------------------------

    async def _guarded_page(self, walk: Walk) -> None:
        """One table's failure is that table's alone (N8); a database that is not there ends the sweep (K2)."""
        try:
            await self._page(walk)
        except (TurnLost, DatabaseUnavailable, LoginRefused, TimeoutError, OSError):
            raise
        except DBAPIError as error:
            if self._ends_the_sweep(error):
                raise
            self._failed(walk, error)
        except Exception as error:  # noqa: BLE001 - a type or a trigger of the user's own may fail in any way
            self._failed(walk, error)

    def _failed(self, walk: Walk, error: BaseException) -> None:
        walk.ended = True
        error = error.__cause__ if isinstance(error, TableFailed) and error.__cause__ is not None else error
        self._note(walk, f"failed with {_named(error)}, and is left until the next sweep")

    async def _page(self, walk: Walk) -> None:
        limit = LOOK if walk.unindexed else BATCH
        page: Page = await self._read(look, walk.subject, walk.branch, walk.after, limit)
        for start in range(0, len(page.keys), BATCH):
            if not self._has_time():
                return
            keys = page.keys[start : start + BATCH]
            gone = await self._batch(walk, keys)
            walk.swept += gone
            walk.skipped += len(keys) - gone
            walk.after = page.place(start + len(keys))
        walk.ended = not page.full

    async def _batch(self, walk: Walk, keys: Sequence[Key]) -> int:
        if walk.subject.guards:
            keys = await self._allowed(walk, keys)
        gone = 0
        for start in range(0, len(keys), PIECE):
            piece = keys[start : start + PIECE]
            begun = monotonic()
            gone += await self._take(walk, piece)
            await self._rest(len(piece), monotonic() - begun)
        return gone

    async def _rest(self, rows: int, took: float) -> None:
        if self._paced:
            await asyncio.sleep(max(0.0, min(max(4 * took, rows / FASTEST), rows / SLOWEST) - took))

    async def _allowed(self, walk: Walk, keys: Sequence[Key]) -> Sequence[Key]:
        rows: list[Any] = await self._read(rows_of, walk.subject, walk.branch, keys)
        for guard in walk.subject.guards:
            if not rows:
                break
            faults.hit("sweeper")
            try:
                rows = await self._blocking(partial(_asked, guard, rows))
            except GuardFailed as failure:
                why = _named(failure.__cause__ or failure)
                self._note(walk, f"guard {_name_of(guard)} failed with {why}; the rows of its batch stay")
                return []
        return [key_of(walk.subject, row) for row in rows]

    async def _take(self, walk: Walk, keys: Sequence[Key]) -> int:
        """Deletes or moves a batch; where one of its rows is refused, its halves, down to that row (N3)."""
        for left in reversed(range(AGAIN)):
            try:
                gone = await self._taken(walk, keys)
            except (DBAPIError, TargetFailed) as error:
                if isinstance(error, DBAPIError) and self._ends_the_sweep(error):
                    raise
                if isinstance(error, DBAPIError) and self._db.dialect.is_conflict(error) and left:
                    continue
                if len(keys) == 1:
                    self._keeps(walk, error.__cause__ if isinstance(error, TargetFailed) else error)
                    return 0
                break
            else:
                walk.refused = 0 if gone else walk.refused
                return gone
        if not self._has_time():
            return 0
        half = len(keys) // 2
        return await self._take(walk, keys[:half]) + await self._take(walk, keys[half:])

    def _keeps(self, walk: Walk, error: BaseException | None) -> None:
        """One row is refused. Where no row is a broken rule, and none goes, it is not the rows: raises that then."""
        assert error is not None
        walk.refused += not isinstance(error, IntegrityError)
        if walk.refused > MOST_REFUSED:
            raise TableFailed from error
        self._note(walk, f"keeps a row, {_named(error)}")

    async def _taken(self, walk: Walk, keys: Sequence[Key]) -> int:
        subject = walk.subject
        faults.hit("sweeper")
        if subject.archive is None:
            statement = self._db.arun(remove, subject, walk.branch, keys, self._turn)
            return await bounded(self._db, statement, PATIENCE_S)
        target = self._databases[subject.archive.database]
        if target is self._db:
            statement = self._db.arun(move, subject, walk.branch, keys, self._turn, None)
            moved: Moved = await bounded(self._db, statement, PATIENCE_S)
        else:
            moved = await self._blocking(lambda: self._db.run(move, subject, walk.branch, keys, self._turn, target))
        for _ in range(moved.taken):
            self._note(walk, f"keeps a row: the archive {subject.archive.table.fullname!r} has another of its key")
        return moved.moved

    # --- inside ---------------------------------------------------------------------------------------------

    async def _read(self, function: Callable[..., Any], *args: Any) -> Any:
        faults.hit("sweeper")
        return await bounded(self._db, self._db.aread(function, *args), PATIENCE_S)

    def _has_time(self) -> bool:
        return monotonic() < self._until

    def _ends_the_sweep(self, error: DBAPIError) -> bool:
        """The database is not there, or is one file that somebody else keeps locked: nothing else would work either."""
        dialect = self._db.dialect
        return is_outage(self._db, error) or (dialect.one_writer and dialect.is_lock_timeout(error))

    def _note(self, walk: Walk, what: str) -> None:
        self._errors[f"table {walk.subject.name!r} of database {self._db.name!r} {what}"] += 1


class GuardFailed(Exception):  # noqa: N818 - it tells what happened
    """A guard raised, or answered something that it can not."""


def _asked(guard: Guard, rows: list[Any]) -> list[Any]:
    """The rows that the guard lets go, in their order. Raises `GuardFailed`."""
    try:
        return _chosen(guard(tuple(rows)), rows)
    except BaseException as error:  # code of the user's own: SystemExit from it must not end the sweeper either (R4)
        raise GuardFailed from error


def _chosen(answer: Any, rows: list[Any]) -> list[Any]:
    if answer is None:
        raise TypeError("a guard answers the rows that may go, and this one answered None")
    chosen = {id(row) for row in answer}
    allowed = [row for row in rows if id(row) in chosen]
    if len(allowed) != len(chosen):
        raise ValueError("a guard answers rows that it was given, and this one answered something else")
    return allowed


def _place(at: Any) -> Place | None:
    return None if at is None else Place(at, None)


def _named(error: BaseException) -> str:
    """The class of what failed, and of the driver's error in it: never its text, which quotes rows (S6)."""
    original: object = getattr(error, "orig", None)
    name = error_class(error)
    return f"{name} ({error_class(original)})" if isinstance(original, BaseException) else name


def _name_of(guard: Guard) -> str:
    return getattr(guard, "__qualname__", type(guard).__name__)
