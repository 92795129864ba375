"""What operators ask of an application: `app.records` and `app.queues` (O1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TypedDict, Unpack

from rowlock.errors import FilterError, FilterTypeError
from rowlock.model.durations import MAX_DELAY
from rowlock.model.limits import Refusals, check_int, check_span, shown
from rowlock.model.outcome import State
from rowlock.store import records
from rowlock.store.database import Database
from rowlock.store.records import Count, Filter, Page, Record

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


class RecordFilter(TypedDict, total=False):
    """Which records: every given argument must match (O1)."""

    state: State | str | None
    job: str | None
    queue: str | None
    category: str | None
    key: str | None
    older_than: timedelta | float | None
    """The least age since creation, a timedelta or seconds."""


class Records:
    """Reading records (O1). `database` is the name of a configured one; it may be left out where there is only one."""

    def __init__(self, database: Callable[[str | None], Database]) -> None:
        self._database = database

    def get(self, id: int, *, database: str | None = None) -> Record:
        """One record, without its payload. Raises NotFound."""
        return self._database(database).run(records.get, id)

    async def aget(self, id: int, *, database: str | None = None) -> Record:
        """`get` from a coroutine."""
        return await self._database(database).aread(records.get, id)

    def payload(self, id: int, *, database: str | None = None) -> bytes:
        """One record's stored payload as it is, for those who may see it. Raises NotFound."""
        return self._database(database).run(records.payload, id)

    async def apayload(self, id: int, *, database: str | None = None) -> bytes:
        """`payload` from a coroutine."""
        return await self._database(database).aread(records.payload, id)

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
        return self._database(database).run(records.list_, _filter(**wanted), limit=_limit(limit), after=after)

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
        return await db.aread(records.list_, _filter(**wanted), limit=_limit(limit), after=after)

    # `list` is a method by now, hence the other way to write the type.
    def counts(self, *, database: str | None = None) -> tuple[Count, ...]:
        """How many records there are of each queue and state, due and future apart."""
        return tuple(self._database(database).run(records.counts))

    async def acounts(self, *, database: str | None = None) -> tuple[Count, ...]:
        """`counts` from a coroutine."""
        return tuple(await self._database(database).aread(records.counts))


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
    if state is not None and state not in tuple(State):
        raise FilterError(f"state is {shown(state)} (S3); the states are {', '.join(State)}")
    age = None
    if older_than is not None:
        age = check_span(older_than, what="older_than", low=timedelta(0), high=MAX_DELAY, rule="O1", refuse=_REFUSE)
    return Filter(
        state=None if state is None else State(state), job=job, queue=queue, category=category, key=key, older_than=age
    )


def _limit(limit: int) -> int:
    return check_int(limit, what="limit", low=1, high=LIMIT_MAX, rule="O1", refuse=_REFUSE)
