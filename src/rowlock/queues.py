"""The queues of an application: `app.queues` (O1, O5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.engine import Connection

from rowlock.binding import Async, Sync, async_connection, sync_connection
from rowlock.filters import checked_by, checked_queue
from rowlock.runtime.program import Program
from rowlock.runtime.roster import slots_of
from rowlock.store import operate, pause
from rowlock.store.counts import Count, counts
from rowlock.store.database import Database
from rowlock.store.operate import Operation


@dataclass(frozen=True, slots=True)
class DeclaredQueue:
    """What `app.queue(…)` said of a queue; `workers` is None if the settings say."""

    workers: int | None


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """One queue of a database. Times are aware and in UTC."""

    name: str
    paused_at: datetime | None
    """Since when nobody claims from it; None if it is not paused."""
    workers: int | None
    """How many attempts one process of this program runs at once; None if this program does not serve it."""
    counts: tuple[Count, ...]
    """Its records by state, as of `records.counts()`."""


class Queues(Mapping[str, DeclaredQueue]):
    """The queues that `app.queue(…)` declared, by name; and pausing any queue (O5).

    `database` is the name of a configured one; it may be left out where there is only one. `connection` is what an
    enqueue takes: the change is then part of that transaction.
    """

    def __init__(self, database: Callable[[str | None], Database], program: Program) -> None:
        self._declared: dict[str, DeclaredQueue] = {}
        self._database = database
        self._program = program

    def __getitem__(self, name: str) -> DeclaredQueue:
        return self._declared[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._declared)

    def __len__(self) -> int:
        return len(self._declared)

    def declare(self, name: str, queue: DeclaredQueue) -> None:
        """Add one, or say something else of one."""
        self._declared[name] = queue

    def pause(
        self, name: str, *, by: str | None = None, connection: Sync | None = None, database: str | None = None
    ) -> bool:
        """Let nobody claim from a queue, in whatever process, until it is resumed (O5).

        It need not be a queue of this program; `name` is 1..128 bytes. Its records stay pending, those in work go on to
        their end; claims that begin after the commit take nothing. `by` who does it, for the audit table (O6). Answers
        False if it was paused already. Raises FilterError, and with a `connection` what an enqueue raises.
        """
        return self._run(pause.pause, name, by, connection, database)

    async def apause(
        self, name: str, *, by: str | None = None, connection: Async | None = None, database: str | None = None
    ) -> bool:
        """`pause` from a coroutine."""
        return await self._arun(pause.pause, name, by, connection, database)

    def resume(
        self, name: str, *, by: str | None = None, connection: Sync | None = None, database: str | None = None
    ) -> bool:
        """End a pause; workers notice within a poll. Otherwise as `pause`; answers False if it was not paused."""
        return self._run(pause.resume, name, by, connection, database)

    async def aresume(
        self, name: str, *, by: str | None = None, connection: Async | None = None, database: str | None = None
    ) -> bool:
        """`resume` from a coroutine."""
        return await self._arun(pause.resume, name, by, connection, database)

    def list(self, *, database: str | None = None) -> tuple[QueueInfo, ...]:
        """Every queue that this program serves, that has records, or that is paused, in order of name."""
        db = self._database(database)
        return db.run(self._list)

    async def alist(self, *, database: str | None = None) -> tuple[QueueInfo, ...]:
        """`list` from a coroutine."""
        db = self._database(database)
        return await db.aread(self._list)

    # `list` is a method by now, hence the other ways to write the type.
    def _list(self, conn: Connection, db: Database) -> tuple[QueueInfo, ...]:
        program = self._program
        jobs = {job.queue for job in program.jobs.values() if job.database == db.name and job.has_handler}
        served = jobs | set(self._declared) | set(program.settings.job.queues)
        paused = pause.paused(conn, db)
        of_queue: dict[str, tuple[Count, ...]] = {}
        for count in counts(conn, db):
            of_queue[count.queue] = (*of_queue.get(count.queue, ()), count)
        return tuple(
            QueueInfo(
                name, paused.get(name), slots_of(program, name) if name in served else None, of_queue.get(name, ())
            )
            for name in sorted(served | set(paused) | set(of_queue))
        )

    def _run(
        self,
        what: Callable[..., Operation[bool]],
        name: str,
        by: str | None,
        connection: Sync | None,
        database: str | None,
    ) -> bool:
        db = self._database(database)
        operation = what(db, checked_queue(name), by=checked_by(by))
        caller = None if connection is None else sync_connection(connection, who="queues.pause or resume")
        return operate.run(db, operation, caller)

    async def _arun(
        self,
        what: Callable[..., Operation[bool]],
        name: str,
        by: str | None,
        connection: Async | None,
        database: str | None,
    ) -> bool:
        db = self._database(database)
        operation = what(db, checked_queue(name), by=checked_by(by))
        caller = None if connection is None else await async_connection(connection, who="queues.apause or aresume")
        return await operate.arun(db, operation, caller)
