"""`app.records.cancel` (O4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack, overload

from rowlock.binding import Async, Sync, async_connection, sync_connection
from rowlock.errors import FilterError
from rowlock.filters import RecordFilter, checked_by, checked_filter, checked_id, checked_most
from rowlock.model.limits import shown
from rowlock.model.outcome import State
from rowlock.store import operate
from rowlock.store.cancel import cancel_all, cancel_one
from rowlock.store.change import Done
from rowlock.store.database import Database
from rowlock.store.operate import Operation
from rowlock.store.records import Filter


class Cancelling:
    """What `app.records` can do to records that have not ended."""

    def __init__(self, database: Callable[[str | None], Database]) -> None:
        self._database = database

    @overload
    def cancel(
        self,
        id: int,
        *,
        dry_run: bool = False,
        by: str | None = None,
        connection: Sync | None = None,
        database: str | None = None,
    ) -> State: ...

    @overload
    def cancel(
        self,
        *,
        limit: int | None = None,
        dry_run: bool = False,
        by: str | None = None,
        connection: Sync | None = None,
        database: str | None = None,
        **wanted: Unpack[RecordFilter],
    ) -> Done: ...

    def cancel(
        self,
        id: int | None = None,
        *,
        limit: int | None = None,
        dry_run: bool = False,
        by: str | None = None,
        connection: Sync | None = None,
        database: str | None = None,
        **wanted: Unpack[RecordFilter],
    ) -> State | Done:
        """Cancel records: what waits ends at once, and frees its key; what is in work is asked to end (O4).

        The worker of a record in work sees it within one poll: `ctx.stopping` is set, and an async handler is cancelled
        at its next await. However the attempt ends then, the record ends as cancelled and is never tried again, unless
        its handler completed the work all the same. A record that somebody has locked counts as being in work.

        One by its `id`: answers the state that it left, cancelled or running. Or those that match every filter, of
        which at least one is given (`state` pending or running, for all of them), oldest first, at most `limit`, 200 in
        one transaction: answers `Done(count, 0)`, both kinds in it. `dry_run` changes nothing; `by` who does it, at
        most 255 bytes, for the audit table (O6). Raises FilterError; NotFound and InvalidState for an `id`,
        InvalidState for a `state` that is neither; with a `connection` what an enqueue raises.
        """
        db = self._database(database)
        caller = None if connection is None else sync_connection(connection, who="records.cancel")
        return operate.run(db, _cancelling(db, id, limit, dry_run, by, checked_filter(**wanted)), caller)

    @overload
    async def acancel(
        self,
        id: int,
        *,
        dry_run: bool = False,
        by: str | None = None,
        connection: Async | None = None,
        database: str | None = None,
    ) -> State: ...

    @overload
    async def acancel(
        self,
        *,
        limit: int | None = None,
        dry_run: bool = False,
        by: str | None = None,
        connection: Async | None = None,
        database: str | None = None,
        **wanted: Unpack[RecordFilter],
    ) -> Done: ...

    async def acancel(
        self,
        id: int | None = None,
        *,
        limit: int | None = None,
        dry_run: bool = False,
        by: str | None = None,
        connection: Async | None = None,
        database: str | None = None,
        **wanted: Unpack[RecordFilter],
    ) -> State | Done:
        """`cancel` from a coroutine."""
        db = self._database(database)
        caller = None if connection is None else await async_connection(connection, who="records.acancel")
        return await operate.arun(db, _cancelling(db, id, limit, dry_run, by, checked_filter(**wanted)), caller)


def _cancelling(
    db: Database, id: int | None, limit: int | None, dry_run: bool, by: str | None, filter: Filter
) -> Operation[State] | Operation[Done]:
    by, limit = checked_by(by), checked_most(limit)
    if id is not None:
        if filter != Filter() or limit is not None:
            raise FilterError(f"an id ({shown(id)}) and filters or a limit are given (O4); give one or the other")
        return cancel_one(db, checked_id(id), by=by, dry_run=dry_run)
    if filter == Filter():  # an id that is None by mistake must not stand for all of them
        raise FilterError("cancel is given neither an id nor a filter (O4); for all that waits say state='pending'")
    return cancel_all(db, filter, limit=limit, by=by, dry_run=dry_run)
