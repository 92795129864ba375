"""What operators ask of an application: `app.records` and `app.queues` (O1, O3, H4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TypedDict, Unpack

from rowlock.binding import Async, Sync, async_connection, sync_connection
from rowlock.errors import FilterError, FilterTypeError
from rowlock.model.durations import MAX_DELAY
from rowlock.model.limits import Refusals, check_int, check_span, shown
from rowlock.model.outcome import State
from rowlock.runtime.program import Program
from rowlock.runtime.roster import known_of
from rowlock.store import operate, records
from rowlock.store.database import Database
from rowlock.store.explain import Explanation, explain
from rowlock.store.operate import Operation
from rowlock.store.records import Count, Filter, Page, Record
from rowlock.store.release import Done, release_all, release_one

_REFUSE = Refusals(FilterError, FilterTypeError)
LIMIT_MAX = 1_000


@dataclass(frozen=True, slots=True)
class DeclaredQueue:
    """What `app.queue(…)` said of a queue; `workers` is None if the settings say."""

    workers: int | None


class Queues(Mapping[str, DeclaredQueue]):
    """The queues that `app.queue(…)` declared, by name."""

    def __init__(self) -> None:
        self._declared: dict[str, DeclaredQueue] = {}

    def __getitem__(self, name: str) -> DeclaredQueue:
        return self._declared[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._declared)

    def __len__(self) -> int:
        return len(self._declared)

    def declare(self, name: str, queue: DeclaredQueue) -> None:
        """Add one, or say something else of one."""
        self._declared[name] = queue


class OperationFilter(TypedDict, total=False):
    """Which records an operation takes: every given argument must match (O2, O3)."""

    job: str | None
    queue: str | None
    category: str | None
    key: str | None
    older_than: timedelta | float | None
    """The least age since creation, a timedelta or seconds."""


class RecordFilter(OperationFilter, total=False):
    """Which records: every given argument must match (O1)."""

    state: State | str | None


class Records:
    """Records, for operators (O1, O3, H4).

    `database` is the name of a configured one; it may be left out where there is only one. `connection` is what an
    enqueue takes: the change is then part of that transaction.
    """

    def __init__(self, database: Callable[[str | None], Database], program: Program) -> None:
        self._database = database
        self._program = program

    def get(self, id: int, *, database: str | None = None) -> Record:
        """One record, without its payload. Raises NotFound."""
        return self._database(database).run(records.get, _id(id))

    async def aget(self, id: int, *, database: str | None = None) -> Record:
        """`get` from a coroutine."""
        return await self._database(database).aread(records.get, _id(id))

    def payload(self, id: int, *, database: str | None = None) -> bytes:
        """One record's stored payload as it is, for those who may see it. Raises NotFound."""
        return self._database(database).run(records.payload, _id(id))

    async def apayload(self, id: int, *, database: str | None = None) -> bytes:
        """`payload` from a coroutine."""
        return await self._database(database).aread(records.payload, _id(id))

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
        return self._database(database).run(records.list_, _filter(**wanted), limit=_limit(limit), after=_after(after))

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
        return await db.aread(records.list_, _filter(**wanted), limit=_limit(limit), after=_after(after))

    # `list` is a method by now, hence the other way to write the type.
    def counts(self, *, database: str | None = None) -> tuple[Count, ...]:
        """How many records there are of each queue and state, due and future apart."""
        return tuple(self._database(database).run(records.counts))

    async def acounts(self, *, database: str | None = None) -> tuple[Count, ...]:
        """`counts` from a coroutine."""
        return tuple(await self._database(database).aread(records.counts))

    def explain(self, id: int, *, database: str | None = None) -> Explanation:
        """Why a record is not running, or what became of it: a fixed word, a sentence, facts (H4). Raises NotFound."""
        db = self._database(database)
        return db.run(explain, _id(id), known_of(self._program, db), self._program.settings.job.unknown_ms)

    async def aexplain(self, id: int, *, database: str | None = None) -> Explanation:
        """`explain` from a coroutine."""
        db = self._database(database)
        return await db.aread(explain, _id(id), known_of(self._program, db), self._program.settings.job.unknown_ms)

    def release(
        self,
        id: int | None = None,
        *,
        dry_run: bool = False,
        connection: Sync | None = None,
        database: str | None = None,
        **wanted: Unpack[OperationFilter],
    ) -> Done:
        """Give blocked records that this program can run (again) back: pending, due now, no attempt spent (O3).

        One by its `id`, or all that match every filter (none given: all), 200 in one transaction; those that somebody
        else has locked are passed over. They keep id, key and attempt. Answers `Done(count, conflicts)`; a conflict is
        a record whose key an active one has by now. `dry_run` changes nothing. Raises FilterError; with an `id`
        NotFound, InvalidState, and KeyTaken or EnqueueBusy for its key; with a `connection` what an enqueue raises.
        """
        db = self._database(database)
        caller = None if connection is None else sync_connection(connection, who="records.release")
        return operate.run(db, self._releasing(db, id, dry_run, wanted), caller)

    async def arelease(
        self,
        id: int | None = None,
        *,
        dry_run: bool = False,
        connection: Async | None = None,
        database: str | None = None,
        **wanted: Unpack[OperationFilter],
    ) -> Done:
        """`release` from a coroutine."""
        db = self._database(database)
        caller = None if connection is None else await async_connection(connection, who="records.arelease")
        return await operate.arun(db, self._releasing(db, id, dry_run, wanted), caller)

    def _releasing(self, db: Database, id: int | None, dry_run: bool, wanted: OperationFilter) -> Operation[Done]:
        filter = _filter(**wanted)
        program = known_of(self._program, db)
        if id is None:
            return release_all(db, program, filter, dry_run=dry_run)
        if filter != Filter():
            raise FilterError(f"an id ({shown(id)}) and filters are given (O3); give one or the other")
        return release_one(db, program, _id(id), dry_run=dry_run)


def _filter(
    *,
    state: State | str | None = None,
    job: str | None = None,
    queue: str | None = None,
    category: str | None = None,
    key: str | None = None,
    older_than: timedelta | float | None = None,
) -> Filter:
    for name, value in (("state", state), ("job", job), ("queue", queue), ("category", category), ("key", key)):
        if value is not None and not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers need not be typed
            raise FilterTypeError(f"{name} is {shown(value)}, not a str (O1); give the text to look for")
        if value is not None and ("\0" in value or not _is_utf8(value)):  # one rule on every database
            raise FilterError(
                f"{name} is {shown(value)}, with a NUL or a lone surrogate in it (O1); no record has such"
            )
    if state is not None and state not in tuple(State):
        raise FilterError(f"state is {shown(state)} (S3); the states are {', '.join(State)}")
    age = None
    if older_than is not None:
        age = check_span(older_than, what="older_than", low=timedelta(0), high=MAX_DELAY, rule="O1", refuse=_REFUSE)
    return Filter(
        state=None if state is None else State(state), job=job, queue=queue, category=category, key=key, older_than=age
    )


def _is_utf8(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _after(after: int | None) -> int | None:
    return (
        None if after is None else check_int(after, what="after", low=0, high=records.MAX_ID, rule="O1", refuse=_REFUSE)
    )


def _id(id: int) -> int:
    if type(id) is not int:
        raise FilterTypeError(f"id is {shown(id)}, not an int (O1); give the id that an enqueue answered")
    return id


def _limit(limit: int) -> int:
    return check_int(limit, what="limit", low=1, high=LIMIT_MAX, rule="O1", refuse=_REFUSE)
