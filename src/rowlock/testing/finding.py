"""What was enqueued in a case, as a test asks for it: by its decoded input and by its record."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from sqlalchemy.engine import Connection

from rowlock.errors import KitTypeError, KitValueError
from rowlock.model.job import Job
from rowlock.model.limits import shown
from rowlock.model.outcome import State
from rowlock.store import records
from rowlock.store.database import Database
from rowlock.store.records import Filter, Record

In = TypeVar("In")

PAGE = 1_000


@dataclass(frozen=True)
class EnqueuedRecord(Generic[In]):
    """One record of a job: its row as `record`, its input as `input`."""

    record: Record
    _job: Job[In, Any] = field(repr=False, compare=False)
    _payload: bytes = field(repr=False, compare=False)

    @property
    def input(self) -> In:
        """The decoded input. Raises `CorruptPayload`, or LookupError for an input type that the job does not know."""
        if not self._job.knows(self.record.fingerprint):
            raise LookupError(
                f"record {self.record.id} has an input type that job {self._job.name!r} does not know (W4)"
            )
        return self._job.decode(self.record.fingerprint, self._payload)


@dataclass(frozen=True)
class Wanted:
    """What a test asks for. Every given field must match."""

    where: Mapping[str, Any] | None = None
    key: str | None = None
    queue: str | None = None
    state: State | None = None

    def differences(self, found: EnqueuedRecord[Any]) -> list[str]:
        """Where a record is not what is wanted, each as a few words; empty if it is."""
        record = found.record
        differences = [
            f"{name} is {have!r}, not {want!r}"
            for name, have, want in (
                ("key", record.key, self.key),
                ("queue", record.queue, self.queue),
                ("state", str(record.state), None if self.state is None else str(self.state)),
            )
            if want is not None and have != want
        ]
        return differences + self._in_input(found)

    def _in_input(self, found: EnqueuedRecord[Any]) -> list[str]:
        if not self.where:
            return []
        try:
            input = found.input
        except Exception as error:  # noqa: BLE001 - an upgrade function is a user's code
            return [f"its input can not be read ({type(error).__name__})"]
        return [
            f"{name} is {have!r}, not {want!r}"
            for name, want in self.where.items()
            if (have := _get(input, name)) != want
        ]

    def __str__(self) -> str:
        parts = [f"{name}={want!r}" for name, want in (self.where or {}).items()]
        parts += [
            f"{name} {want!r}"
            for name, want in (("key", self.key), ("queue", self.queue), ("state", self.state and str(self.state)))
            if want is not None
        ]
        return ", ".join(parts)


def wanted(
    job: Job[Any, Any], where: Mapping[str, Any] | None, key: str | None, queue: str | None, state: State | str | None
) -> Wanted:
    """Checks what a test asks for: a misspelt field must not make `refute_enqueued` pass. Raises `KitValueError`."""
    if where is not None:
        names = _fields(job)
        if unknown := [name for name in where if name not in names]:
            raise KitValueError(
                f"where names {unknown[0]!r}, and the input of job {job.name!r} has "
                + (f"only the fields {', '.join(names)}" if names else "no fields")
            )
    if state is not None and state not in tuple(State):
        raise KitValueError(f"state is {shown(state)} (S3); the states are {', '.join(State)}")
    return Wanted(where, key, queue, None if state is None else State(state))


def of_job(db: Database, job: Job[In, Any]) -> list[EnqueuedRecord[In]]:
    """The records of a job, under its name or an alias, in the order in which they were enqueued."""

    def read(conn: Connection, db: Database) -> list[EnqueuedRecord[In]]:
        rows = [record for name in job.names for record in _all(conn, db, Filter(job=name))]
        rows.sort(key=lambda record: record.id)
        return [EnqueuedRecord(record, job, records.payload(conn, db, record.id)) for record in rows]

    return db.run(read)


def numbers(db: Database) -> dict[str, int]:
    """How many records there are of each job."""

    def read(conn: Connection, db: Database) -> dict[str, int]:
        counts: dict[str, int] = {}
        for record in _all(conn, db, Filter()):
            counts[record.job] = counts.get(record.job, 0) + 1
        return counts

    return db.run(read)


def _all(conn: Connection, db: Database, filter: Filter) -> Iterator[Record]:
    after: int | None = None
    while True:
        page = records.list_(conn, db, filter, limit=PAGE, after=after)
        yield from page.items
        if page.next is None:
            return
        after = page.next


def _fields(job: Job[Any, Any]) -> list[str]:
    kind = job.wire.python_type
    if kind is None:
        return []
    # Not evaluated: names are all that is asked for, and those of a local class can not be resolved from here.
    return list(dict.fromkeys(name for base in reversed(kind.__mro__) for name in inspect.get_annotations(base)))


def _get(input: Any, name: str) -> Any:
    return input.get(name) if isinstance(input, Mapping) else getattr(input, name)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # a TypedDict's values


def require_job(job: object) -> None:
    """Raises `KitTypeError` for something else than a declared job."""
    if not isinstance(job, Job):
        raise KitTypeError(f"a declared job is expected, not {shown(job)}; give the object that @jobs.job(…) made (J2)")
