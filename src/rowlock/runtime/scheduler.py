"""Makes the records of schedules whose minute has come (T4-T6), whatever the slots are busy with (C43)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any

from sqlalchemy.exc import DBAPIError

from rowlock.model.job import Job
from rowlock.model.outcome import State
from rowlock.model.schedule import due_at, floor_minute
from rowlock.runtime import faults
from rowlock.runtime.bounds import bounded
from rowlock.runtime.describe import log
from rowlock.runtime.events import Event, Events
from rowlock.runtime.metrics import Meter
from rowlock.runtime.outage import DATABASE_FAILURES, Guard
from rowlock.store import cursors
from rowlock.store.cursors import Look, Made

if TYPE_CHECKING:
    from rowlock.store.database import Database

LONGEST_PAUSE_S = 60.0
"""A clock can be set, and a cursor forgotten: so often all are looked at in any case."""
BUSY_PAUSE_S = 0.5
"""Somebody else makes a schedule's minutes: so soon it is looked whether that was all of them."""
_JUST_AFTER_S = 0.001  # a timer may be early by its resolution


class Scheduler:
    """One for each database with schedules: wakes with the next minute that is due, by the database's clock (L2).

    An idle pass is one statement, however many schedules there are. `jobs` have a schedule each; `on_made` gets the
    queues in which records were made; after `is_draining` answers True nothing is made any more.
    """

    def __init__(
        self, db: Database, guard: Guard, events: Events, meter: Meter, jobs: Sequence[Job[Any, Any]], *,
        on_made: Callable[[Collection[str]], None], is_draining: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._db = db
        self._guard = guard
        self._events = events
        self._meter = meter
        self._jobs = sorted(jobs, key=lambda job: job.name)
        self._on_made = on_made
        self._is_draining = is_draining
        self._due: dict[str, tuple[datetime, datetime | None]] = {}
        """Of each schedule the cursor that was seen last, and the first minute after it."""
        self._warned: set[str] = set()

    async def run(self) -> None:
        """For ever; the first time at once, since minutes may have been missed."""
        while not self._is_draining():
            try:
                wait = await self.run_once()
            except DATABASE_FAILURES as error:
                await asyncio.sleep(self._guard.failed(error))
                continue
            self._guard.worked(wait)
            await asyncio.sleep(wait)
        self._guard.ended()

    async def run_once(self) -> float:
        """One pass over all schedules: at most 256 minutes of each. Answers in how many seconds the next is worth it.

        Zero: there is more to do already.
        """
        faults.hit("scheduler")
        sent = monotonic()
        look = await self._look()
        due = self._due_in(look)
        made, busy = await self._make_all(due, look)
        if made:
            return 0.0
        if busy:
            return BUSY_PAUSE_S
        wait = self._next_in(look) - (monotonic() - sent) + _JUST_AFTER_S
        return min(max(wait, _JUST_AFTER_S), LONGEST_PAUSE_S)

    async def catch_up(self) -> None:
        """Passes until no cursor is behind: for the test kit, whose clock stands still (X1)."""
        while await self.run_once() == 0.0:
            pass

    def stop(self) -> None:
        """The loop has been ended."""
        self._guard.ended()

    # --- inside -------------------------------------------------------------------------------------------

    async def _look(self) -> Look:
        db, patience_s = self._db, self._guard.patience_s
        look = await bounded(db, db.aread(cursors.read), patience_s)
        if any(job.name not in look.cursors and not cursors.is_changed(job, look.of(job)) for job in self._jobs):
            missing = [job for job in self._jobs if job.name not in look.cursors]
            await bounded(db, db.arun(cursors.begin, missing, look), patience_s)
            look = await bounded(db, db.aread(cursors.read), patience_s)
        return look

    def _due_in(self, look: Look) -> list[Job[Any, Any]]:
        current = floor_minute(look.now)
        due: list[Job[Any, Any]] = []
        for job in self._jobs:
            there = look.of(job)
            if cursors.is_changed(job, there):
                self._warn_changed(job)
            elif there and (at := self._due_at(job, cursors.last_of(there).last_minute)) is not None and at <= current:
                due.append(job)
        return due

    def _due_at(self, job: Job[Any, Any], last: datetime) -> datetime | None:
        known = self._due.get(job.name)
        if known is None or known[0] != last:
            assert job.schedule is not None
            known = self._due[job.name] = (last, due_at(job.schedule, last))
        return known[1]

    async def _make_all(self, due: Sequence[Job[Any, Any]], look: Look) -> tuple[bool, bool]:
        """(whether one of them advanced, whether one could not). A statement that fails for one leaves the others."""
        advanced = busy = False
        fault: DBAPIError | None = None
        for job in due:
            if self._is_draining():
                break
            try:
                made = await self._make(job, look)
            except DBAPIError as error:
                if not self._db.dialect.is_statement_fault(error):
                    raise
                fault = fault or error
                continue
            advanced, busy = advanced or made is not None, busy or made is None
            if made is not None:
                self._tell(job, made)
        if fault is not None:
            raise fault
        return advanced, busy

    async def _make(self, job: Job[Any, Any], look: Look) -> Made | None:
        def advanced() -> None:
            faults.hit("cursor-advanced")

        work = self._db.arun(cursors.materialise, job, look, advanced)
        return await bounded(self._db, work, self._guard.patience_s)

    def _tell(self, job: Job[Any, Any], made: Made) -> None:
        if made.left_out:
            log.warning(
                "job %r: %d occurrences since %s were missed, and are left out by catch_up (T6)",
                job.name, made.left_out, f"{made.since:%Y-%m-%d %H:%M}Z",
            )  # fmt: skip
        if made.skipped:
            log.info(
                "job %r: %d occurrences since %s are skipped, as the previous one has not ended (T6)",
                job.name, made.skipped, f"{made.since:%Y-%m-%d %H:%M}Z",
            )  # fmt: skip
        if made.ids:
            self._meter.enqueued(job.queue, job.name, len(made.ids), 0)
            if self._events.wanted("enqueued"):
                for id_ in made.ids:
                    about = (id_, job.name, job.queue)
                    self._events.tell(Event("enqueued", *about, state=State.PENDING, database=self._db.name))
            self._on_made({job.queue})

    def _next_in(self, look: Look) -> float:
        following = [at for _, at in self._due.values() if at is not None and at > look.now]
        return (min(following) - look.now) / timedelta(seconds=1) if following else LONGEST_PAUSE_S

    def _warn_changed(self, job: Job[Any, Any]) -> None:
        if job.name not in self._warned:
            self._warned.add(job.name)
            log.warning(
                "job %r: its cursor is of another cron than %r by now, so that this program makes no occurrences of it "
                "any more (T7); restart it with the text that was accepted",
                job.name, job.schedule.cron.text if job.schedule else "",
            )  # fmt: skip
