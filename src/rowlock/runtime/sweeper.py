"""Deletes what is due, hourly, one process at a time (N3); the only clean-up that there is."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any

from rowlock.model.retention import SweepReport
from rowlock.runtime import faults
from rowlock.runtime.bounds import bounded
from rowlock.runtime.describe import log
from rowlock.runtime.events import Event, Events
from rowlock.runtime.outage import DATABASE_FAILURES, Guard
from rowlock.runtime.sweep import PATIENCE_S, Blocking, Sweep
from rowlock.store.own import left_behind
from rowlock.store.reclaim import reclaim
from rowlock.store.turn import TurnLost, give_back, peek, take

if TYPE_CHECKING:
    from rowlock.runtime.program import Program
    from rowlock.store.database import Database

EVERY = timedelta(hours=1)
FIRST_S = 60.0
LONGEST_PAUSE_S = 300.0
"""Others' turns are looked at so often, and a killed one's is found."""
RECLAIM_S = 5.0


class Sweeper:
    """One for each database of a worker.

    `blocking` runs what may take its time off the loop; `first_s` is how long after the start the first sweep is due.
    """

    def __init__(
        self, program: Program, db: Database, guard: Guard, events: Events, *, blocking: Blocking | None = None,
        first_s: float | None = None, token: str | None = None, paced: bool = True,
    ) -> None:  # fmt: skip
        self._program = program
        self._db = db
        self._guard = guard
        self._events = events
        self._blocking = blocking or on_a_thread
        self._first_s = FIRST_S if first_s is None else first_s
        self._token = token or secrets.token_hex(16)
        self._paced = paced
        self._complained: set[str] = set()

    async def run(self) -> None:
        """For ever; the first time after a minute."""
        self._guard.rests(self._first_s)
        await asyncio.sleep(self._first_s)
        while True:
            try:
                pause = await self._turn()
            except DATABASE_FAILURES as error:
                await asyncio.sleep(self._guard.failed(error))
                continue
            self._guard.worked(pause)
            await asyncio.sleep(pause)

    async def run_once(self, *, early: bool = True) -> SweepReport | None:
        """One sweep, due or not (`early`); None: another process has the turn, or it is not due."""
        db = self._db
        faults.hit("sweeper")
        turn = await bounded(db, db.arun(take, self._token, EVERY, early=early), self._guard.patience_s)
        if turn is None:
            return None
        longest_s = self._program.settings.job.sweep_ms / 1000
        self._guard.worked(longest_s + RECLAIM_S + PATIENCE_S)  # a guard that hangs is told by the beat
        begun = monotonic()
        lifecycles, overrides = self._program.lifecycles, self._program.settings.retention.overrides
        subjects = lifecycles.subjects(db, overrides)
        sweep = Sweep(
            db, subjects, turn, databases=self._program.databases, blocking=self._blocking,
            until=begun + longest_s, paced=self._paced,
        )  # fmt: skip
        try:
            await sweep.run()
        except TurnLost:
            return sweep.report()
        report = sweep.report()
        took = monotonic() - begun
        violations = [each.violation for each in subjects if each.violation is not None]
        violations += lifecycles.unknown_overrides(overrides)
        violations += await bounded(db, db.aread(left_behind, list(self._program.databases)), self._guard.patience_s)
        report = replace(report, violations=tuple(violations), seconds=took)
        if report.swept:
            report = replace(report, reclaimed=await self._reclaim())
        faults.hit("sweeper")
        pause = EVERY if report.finished else timedelta(seconds=took)
        await bounded(db, db.arun(give_back, turn, pause, sweep.position()), self._guard.patience_s)
        self._say(report)
        return report

    def stop(self) -> None:
        """The loop has been ended."""
        self._guard.ended()

    async def _turn(self) -> float:
        """Sweeps if it is time; answers how long to wait before the next look."""
        db = self._db
        wait, _ = await bounded(db, db.aread(peek, EVERY), self._guard.patience_s)
        if not wait and await self.run_once(early=False) is not None:
            wait, _ = await bounded(db, db.aread(peek, EVERY), self._guard.patience_s)
        return min(max(wait, 0.05), LONGEST_PAUSE_S)

    async def _reclaim(self) -> int:
        """Space, in small steps: each of them is a write, and others want to write as well (N10)."""
        until = monotonic() + RECLAIM_S
        total, more = 0, True
        while more and monotonic() < until:
            given, more = await self._db.arun(reclaim)
            total += given
        return total

    def _say(self, report: SweepReport) -> None:
        for sentence in report.violations:
            if sentence not in self._complained:
                self._complained.add(sentence)
                log.warning("%s", sentence)
        if report.swept or report.errors:
            where = ", ".join(f"{each.swept} of {each.table}" for each in report.tables if each.swept) or "nothing"
            log.info(
                "database %r: swept %s in %.1f s%s%s%s%s",
                self._db.name, where, report.seconds,
                f"; {report.skipped} due rows stay" if report.skipped else "",
                f"; {report.reclaimed} bytes reclaimed" if report.reclaimed else "",
                "" if report.finished else "; not finished, it goes on",
                "".join(f"; {error}" for error in report.errors),
            )  # fmt: skip
        if self._events.wanted("swept"):
            for table in report.tables:
                if table.swept:
                    self._events.tell(Event(
                        "swept", outcome=table.table, seconds=report.seconds, database=self._db.name, count=table.swept
                    ))  # fmt: skip


async def on_a_thread(work: Callable[[], Any]) -> Any:
    """Runs `work` on a thread of its own: a guard may take long, and the loop's default executor is the user's (L4)."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def run() -> None:
        try:
            answer: Mapping[str, Any] = {"result": work()}
        except BaseException as error:  # noqa: BLE001 - it belongs to who waits, whatever it is
            answer = {"error": error}
        try:
            loop.call_soon_threadsafe(_deliver, future, answer)
        except RuntimeError:
            return  # the loop is closed: nobody waits any more

    threading.Thread(target=run, name="rowlock-sweeper", daemon=True).start()
    return await future


def _deliver(future: asyncio.Future[Any], answer: Mapping[str, Any]) -> None:
    if future.done():
        return
    if "error" in answer:
        error = answer["error"]
        # StopIteration can not be raised into a future, and SystemExit would end the loop.
        future.set_exception(
            error if isinstance(error, Exception) and not isinstance(error, StopIteration) else _Ended(error)
        )
    else:
        future.set_result(answer["result"])


class _Ended(Exception):  # noqa: N818 - it tells what happened
    """A guard ended with something that is no Exception, or that no future takes."""
