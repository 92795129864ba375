"""What operators ask of an application's schedules: `app.schedules` (T7, T8)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from rowlock.binding import Async, Sync, async_connection, sync_connection
from rowlock.errors import InvalidState, NotFound
from rowlock.filters import checked_by
from rowlock.model.job import Job
from rowlock.model.limits import shown
from rowlock.model.policy import job_name
from rowlock.model.schedule import due_at
from rowlock.runtime.program import Program
from rowlock.runtime.roster import jobs_of
from rowlock.store import cursors, operate
from rowlock.store.cursors import Cursor, Look
from rowlock.store.database import Database


class ScheduleState(StrEnum):
    """How a schedule and its cursor stand to each other."""

    OK = "ok"
    NEW = "new"
    """No worker has seen it yet: it begins with the minute in which one does (T4)."""
    CHANGED = "changed"
    """Its cron is another one than the cursor's: no worker starts before it is accepted (T7)."""
    GONE = "gone"
    """A cursor that no schedule of this application has: of an earlier one, or of another program's."""


@dataclass(frozen=True, slots=True)
class ScheduleInfo:
    """One schedule, as it is now. Times are aware and in UTC."""

    name: str
    """The job's name."""
    database: str
    state: ScheduleState
    cron: str | None
    """Its text; None if it is gone."""
    last: datetime | None
    """The minute of the occurrence that was made last; None if none has been."""
    next: datetime | None
    """The first minute that is not made yet; None if it is gone or changed."""
    lag: timedelta
    """How late that minute is: zero, or a few milliseconds, while a worker runs."""
    last_minute: datetime | None
    """Where the cursor stands: every minute up to this one is made, or left out for ever."""


class Schedules:
    """Schedules, for operators (T7, T8).

    `by` says who did it, at most 255 bytes, for `app.audit`; `connection` is what an enqueue takes: the change is then
    part of that transaction.
    """

    def __init__(
        self, databases: Callable[[], Mapping[str, Database]], database: Callable[[str | None], Database],
        program: Program,
    ) -> None:  # fmt: skip
        self._databases = databases
        self._database = database
        self._program = program

    def list(self) -> list[ScheduleInfo]:
        """Every schedule of this application and every cursor, in order of database and name."""
        return [info for db in self._databases().values() for info in self._infos(db, db.run(cursors.read))]

    async def alist(self) -> list[ScheduleInfo]:
        """`list` from a coroutine."""
        return [info for db in self._databases().values() for info in self._infos(db, await db.aread(cursors.read))]

    def accept(self, name: str, *, by: str | None = None, connection: Sync | None = None) -> bool:
        """Let a schedule's changed cron count, from this minute on (T7); minutes before it are not made.

        `name` is the job's. True; False if nothing had changed. Raises NotFound: the application has no such schedule,
        or it has no cursor yet.
        """
        db, job = self._scheduled(name)
        caller = None if connection is None else sync_connection(connection, who="schedules.accept")
        return operate.run(db, cursors.accept(db, job, checked_by(by)), caller)

    async def aaccept(self, name: str, *, by: str | None = None, connection: Async | None = None) -> bool:
        """`accept` from a coroutine."""
        db, job = self._scheduled(name)
        caller = None if connection is None else await async_connection(connection, who="schedules.aaccept")
        return await operate.arun(db, cursors.accept(db, job, checked_by(by)), caller)

    def forget(
        self, name: str, *, by: str | None = None, connection: Sync | None = None, database: str | None = None
    ) -> None:
        """Delete the cursor of a schedule that is gone (T7). Should it come back, it begins with the minute that it is.

        Raises NotFound: no cursor has this name; InvalidState: the application has this schedule.
        """
        db = self._gone(name, database)
        caller = None if connection is None else sync_connection(connection, who="schedules.forget")
        operate.run(db, cursors.forget(db, name, checked_by(by)), caller)

    async def aforget(
        self, name: str, *, by: str | None = None, connection: Async | None = None, database: str | None = None
    ) -> None:
        """`forget` from a coroutine."""
        db = self._gone(name, database)
        caller = None if connection is None else await async_connection(connection, who="schedules.aforget")
        await operate.arun(db, cursors.forget(db, name, checked_by(by)), caller)

    # --- inside -------------------------------------------------------------------------------------------

    def _scheduled(self, name: str) -> tuple[Database, Job[Any, Any]]:
        job = self._program.jobs.get(job_name(name, what="schedule"))
        if job is None or job.schedule is None:
            raise NotFound(
                f"the application has no schedule {shown(name)} (T7); the cursor of one that is gone is not accepted, "
                f"but forgotten"
            )
        return self._database(job.database), job

    def _gone(self, name: str, database: str | None) -> Database:
        job = self._program.jobs.get(job_name(name, what="schedule"))
        if job is not None and job.schedule is not None:
            raise InvalidState(
                f"schedule {shown(name)} is not gone: {job!r} has it, and a worker would make its cursor anew (T7); "
                f"remove the schedule first, or `rowlock schedules accept` a changed one"
            )
        return self._database(database)

    def _infos(self, db: Database, look: Look) -> list[ScheduleInfo]:
        jobs = {job.name: job for job in jobs_of(self._program, db) if job.schedule is not None}
        named = {name for job in jobs.values() for name in job.names}
        gone = [_gone(db, cursor) for name, cursor in look.cursors.items() if name not in named]
        return sorted([*(_info(db, job, look) for job in jobs.values()), *gone], key=lambda info: info.name)


def _info(db: Database, job: Job[Any, Any], look: Look) -> ScheduleInfo:
    there, schedule = look.of(job), job.schedule
    assert schedule is not None
    cron = schedule.cron
    if not there:
        following = next(cron.between(look.now, None), None)
        return ScheduleInfo(job.name, db.name, ScheduleState.NEW, cron.text, None, following, timedelta(0), None)
    last = cursors.last_of(there)
    if cursors.is_changed(job, there):
        state, following = ScheduleState.CHANGED, None
    else:
        state, following = ScheduleState.OK, due_at(schedule, last.last_minute)
    lag = timedelta(0) if following is None else max(look.now - following, timedelta(0))
    return ScheduleInfo(job.name, db.name, state, cron.text, last.last_run_at, following, lag, last.last_minute)


def _gone(db: Database, cursor: Cursor) -> ScheduleInfo:
    return ScheduleInfo(
        cursor.name, db.name, ScheduleState.GONE, None, cursor.last_run_at, None, timedelta(0), cursor.last_minute
    )
