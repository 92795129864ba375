"""What operators ask of an application's records: `app.records` (O1, O2, O3, H4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

from rowlock.binding import Async, Sync, async_connection, sync_connection
from rowlock.cancelling import Cancelling
from rowlock.errors import FilterError
from rowlock.filters import (
    OperationFilter,
    RecordFilter,
    checked_after,
    checked_by,
    checked_filter,
    checked_id,
    checked_limit,
    checked_most,
)
from rowlock.model.limits import shown
from rowlock.runtime.program import Program
from rowlock.runtime.roster import known_of
from rowlock.store import change, operate, records
from rowlock.store.change import Change, Done
from rowlock.store.counts import Count, counts
from rowlock.store.database import Database
from rowlock.store.explain import Explanation, explain
from rowlock.store.operate import Operation
from rowlock.store.records import Filter, Page, Record
from rowlock.store.release import Release
from rowlock.store.replay import Purge, Replay


class Records(Cancelling):
    """Records, for operators (O1, O2, O3, O4, H4).

    `database` is the name of a configured one; it may be left out where there is only one. `connection` is what an
    enqueue takes: the change is then part of that transaction.
    """

    def __init__(self, database: Callable[[str | None], Database], program: Program) -> None:
        super().__init__(database)
        self._program = program

    def get(self, id: int, *, database: str | None = None) -> Record:
        """One record, without its payload. Raises NotFound."""
        return self._database(database).run(records.get, checked_id(id))

    async def aget(self, id: int, *, database: str | None = None) -> Record:
        """`get` from a coroutine."""
        return await self._database(database).aread(records.get, checked_id(id))

    def payload(self, id: int, *, database: str | None = None) -> bytes:
        """One record's stored payload as it is, for those who may see it. Raises NotFound."""
        return self._database(database).run(records.payload, checked_id(id))

    async def apayload(self, id: int, *, database: str | None = None) -> bytes:
        """`payload` from a coroutine."""
        return await self._database(database).aread(records.payload, checked_id(id))

    def list(
        self,
        *,
        limit: int = 50,
        after: int | None = None,
        database: str | None = None,
        **wanted: Unpack[RecordFilter],
    ) -> Page:
        """The records that match every given argument, newest first, a page at a time.

        `limit` 1..1,000; `after` the `next` of the page before; the others are those of `RecordFilter`. Answers a page:
        `.items`, and `.next`, None on the last one. Raises FilterError.
        """
        return self._database(database).run(
            records.list_, checked_filter(**wanted), limit=checked_limit(limit), after=checked_after(after)
        )

    async def alist(
        self,
        *,
        limit: int = 50,
        after: int | None = None,
        database: str | None = None,
        **wanted: Unpack[RecordFilter],
    ) -> Page:
        """`list` from a coroutine."""
        db = self._database(database)
        return await db.aread(
            records.list_, checked_filter(**wanted), limit=checked_limit(limit), after=checked_after(after)
        )

    # `list` is a method by now, hence the other way to write the type.
    def counts(self, *, database: str | None = None) -> tuple[Count, ...]:
        """How many records there are of each queue and state, due and future apart (O1).

        What is pending, running, dead or blocked is counted; of more than 10,000 succeeded or cancelled records it is
        an estimate, which says so: `count.estimated`. The states are read one after the other.
        """
        return tuple(self._database(database).run(counts))

    async def acounts(self, *, database: str | None = None) -> tuple[Count, ...]:
        """`counts` from a coroutine."""
        return tuple(await self._database(database).aread(counts))

    def explain(self, id: int, *, database: str | None = None) -> Explanation:
        """Why a record is not running, or what became of it: a fixed word, a sentence, facts (H4). Raises NotFound."""
        db = self._database(database)
        return db.run(explain, checked_id(id), known_of(self._program, db), self._program.settings.job.unknown_ms)

    async def aexplain(self, id: int, *, database: str | None = None) -> Explanation:
        """`explain` from a coroutine."""
        db = self._database(database)
        return await db.aread(
            explain, checked_id(id), known_of(self._program, db), self._program.settings.job.unknown_ms
        )

    def release(
        self,
        id: int | None = None,
        *,
        limit: int | None = None,
        dry_run: bool = False,
        by: str | None = None,
        connection: Sync | None = None,
        database: str | None = None,
        **wanted: Unpack[OperationFilter],
    ) -> Done:
        """Give blocked records that this program can run (again) back: pending, due now, no attempt spent (O3).

        One by its `id`, or those that match every filter (none given: all), oldest first, at most `limit`, 200 in one
        transaction; those that somebody else has locked are passed over. They keep id, key and attempt. Answers
        `Done(count, conflicts)`; a conflict is a record whose key an active one has by now. `dry_run` changes nothing;
        `by` who does it, for the audit table (O6). Raises FilterError; with an `id` NotFound, InvalidState, and
        KeyTaken or EnqueueBusy for its key; with a `connection` what an enqueue raises.
        """
        db = self._database(database)
        return self._run(db, self._releasing(db, id, limit, dry_run, by, wanted), connection, "release")

    async def arelease(
        self,
        id: int | None = None,
        *,
        limit: int | None = None,
        dry_run: bool = False,
        by: str | None = None,
        connection: Async | None = None,
        database: str | None = None,
        **wanted: Unpack[OperationFilter],
    ) -> Done:
        """`release` from a coroutine."""
        db = self._database(database)
        return await self._arun(db, self._releasing(db, id, limit, dry_run, by, wanted), connection, "arelease")

    def replay(
        self,
        id: int | None = None,
        *,
        limit: int | None = None,
        dry_run: bool = False,
        by: str | None = None,
        connection: Sync | None = None,
        database: str | None = None,
        **wanted: Unpack[RecordFilter],
    ) -> Done:
        """Try dead and blocked records anew: pending, attempt 0, due now (O2).

        They keep id, key, queue, priority, limits, headers and creation, and show their last failure until they end
        again. One by its `id`, or those that match every filter, of which at least one is given; otherwise as
        `release`. Of a blocked record nothing is looked at: whether it can run now is the caller's to know. Raises what
        `release` does; InvalidState also for a `state` that is neither dead nor blocked.
        """
        db = self._database(database)
        return self._run(db, self._replaying(db, id, limit, dry_run, by, wanted), connection, "replay")

    async def areplay(
        self,
        id: int | None = None,
        *,
        limit: int | None = None,
        dry_run: bool = False,
        by: str | None = None,
        connection: Async | None = None,
        database: str | None = None,
        **wanted: Unpack[RecordFilter],
    ) -> Done:
        """`replay` from a coroutine."""
        db = self._database(database)
        return await self._arun(db, self._replaying(db, id, limit, dry_run, by, wanted), connection, "areplay")

    def purge(
        self,
        id: int | None = None,
        *,
        limit: int | None = None,
        dry_run: bool = False,
        by: str | None = None,
        connection: Sync | None = None,
        database: str | None = None,
        **wanted: Unpack[RecordFilter],
    ) -> Done:
        """Delete dead and blocked records (O2). Arguments, answer and errors as of `replay`; there are no conflicts."""
        db = self._database(database)
        return self._run(db, self._purging(db, id, limit, dry_run, by, wanted), connection, "purge")

    async def apurge(
        self,
        id: int | None = None,
        *,
        limit: int | None = None,
        dry_run: bool = False,
        by: str | None = None,
        connection: Async | None = None,
        database: str | None = None,
        **wanted: Unpack[RecordFilter],
    ) -> Done:
        """`purge` from a coroutine."""
        db = self._database(database)
        return await self._arun(db, self._purging(db, id, limit, dry_run, by, wanted), connection, "apurge")

    # --- one code path ------------------------------------------------------------------------------------

    def _releasing(
        self, db: Database, id: int | None, limit: int | None, dry_run: bool, by: str | None, wanted: OperationFilter
    ) -> Operation[Done]:
        filter = checked_filter(**wanted)
        return _changing(Release(db, known_of(self._program, db)), id, filter, limit, dry_run, by)

    def _replaying(
        self, db: Database, id: int | None, limit: int | None, dry_run: bool, by: str | None, wanted: RecordFilter
    ) -> Operation[Done]:
        filter = checked_filter(**wanted)
        _refuse_all(id, filter, "replay")
        return _changing(Replay(db, known_of(self._program, db)), id, filter, limit, dry_run, by)

    def _purging(
        self, db: Database, id: int | None, limit: int | None, dry_run: bool, by: str | None, wanted: RecordFilter
    ) -> Operation[Done]:
        filter = checked_filter(**wanted)
        _refuse_all(id, filter, "purge")
        return _changing(Purge(db), id, filter, limit, dry_run, by)

    def _run(self, db: Database, operation: Operation[Done], connection: Sync | None, what: str) -> Done:
        caller = None if connection is None else sync_connection(connection, who=f"records.{what}")
        return operate.run(db, operation, caller)

    async def _arun(self, db: Database, operation: Operation[Done], connection: Async | None, what: str) -> Done:
        caller = None if connection is None else await async_connection(connection, who=f"records.{what}")
        return await operate.arun(db, operation, caller)


def _refuse_all(id: int | None, filter: Filter, what: str) -> None:
    if id is None and filter == Filter():  # an id that is None by mistake must not stand for all of them
        raise FilterError(f"{what} is given neither an id nor a filter (O2); for all dead records say state='dead'")


def _changing(
    wanted: Change, id: int | None, filter: Filter, limit: int | None, dry_run: bool, by: str | None
) -> Operation[Done]:
    by, limit = checked_by(by), checked_most(limit)
    if id is None:
        return change.many(wanted, filter, limit=limit, dry_run=dry_run, by=by)
    if filter != Filter() or limit is not None:
        raise FilterError(f"an id ({shown(id)}) and filters or a limit are given (O2); give one or the other")
    return change.one(wanted, checked_id(id), dry_run=dry_run, by=by)
