"""A test case: an application on databases of the case's own, with a clock that the test moves (X1-X5)."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack
from datetime import datetime, timedelta
from typing import Any, Literal, NamedTuple, Self, TypeVar, Unpack

from sqlalchemy import Connection, Engine, create_engine
from sqlalchemy.engine import URL

from rowlock.app import App
from rowlock.errors import KitError, KitTypeError, KitValueError
from rowlock.model.context import Context
from rowlock.model.job import Job
from rowlock.model.limits import shown
from rowlock.model.outcome import State
from rowlock.model.retention import SweepReport
from rowlock.operations import Records
from rowlock.runtime.roster import jobs_of
from rowlock.runtime.worker import Worker
from rowlock.schedules import Schedules
from rowlock.store import cursors, records
from rowlock.store.clock import Clock
from rowlock.store.database import Database
from rowlock.store.records import Record
from rowlock.testing import asserts, finding, routing, sweeping
from rowlock.testing.clock import Parts, StandingClock
from rowlock.testing.databases import ConnectionDatabase, Engines, make_databases
from rowlock.testing.finding import EnqueuedRecord
from rowlock.testing.program import CaseProgram
from rowlock.testing.work import AtWork

In = TypeVar("In")
T = TypeVar("T")

MOST = 10_000


class Failure(NamedTuple):
    """An exception that a handler let out, and the record that it worked on, as it was after the drain."""

    record: Record
    exception: BaseException


class TestApp:
    """An application under test: `with TestApp(app) as t:`, or the fixture `rowlock_test`.

    Within the block the application's databases are SQLite files of the case's own, made when first used, and its
    settings are the defaults. Arguments: `now` where the clock stands (aware; the real time if not given); `leases`
    "largest" lets no lease run out within an hour and more of the case's time, "declared" gives the jobs' own; `engine`
    the case's own engine (of the database named "default", or the only one; others by name), on which tables are made
    and Rowlock's rows removed; `connection` a sqlalchemy.Connection: everything happens in its transaction, in a
    savepoint that the case rolls back. Raises `KitTypeError`, `KitValueError`. (X1, X5)
    """

    __test__ = False  # pytest: not a class of tests

    def __init__(
        self, app: App, *, now: datetime | None = None, leases: Literal["largest", "declared"] = "largest",
        engine: Engines | None = None, connection: Connection | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(app, App):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers need not be typed
            raise KitTypeError(f"TestApp takes a rowlock.App, not {shown(app)}")
        if leases not in ("largest", "declared"):
            raise KitValueError(f'leases is {shown(leases)}; it must be "largest" or "declared" (X1)')
        if engine is not None and connection is not None:
            raise KitValueError("engine and connection exclude each other (X1): give the case one of them")
        self.app = app
        self._leases = leases
        self._engine = engine
        self._connection = connection
        self._clock = StandingClock(now)
        self._began = self._clock.now()
        self._at_work = AtWork(self._clock)
        self._program = CaseProgram(self, self._at_work)
        self._databases: Mapping[str, Database] | None = None
        self._engines: dict[str, Engine] = {}
        self._raised: list[tuple[BaseException, Context]] = []
        self._failures: list[Failure] = []
        self._draining = False
        self._ending = ExitStack()
        self._runner: asyncio.Runner | None = None
        self.records = Records(self._one, self._program)
        """Operations on the case's records, as `app.records`."""
        self.schedules = Schedules(lambda: self.databases, self._one, self._program)
        """The case's schedules, as `app.schedules`."""

    # --- the block ----------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._databases is not None:
            raise KitError("this case is open already; make another TestApp for another one (X5)")
        with ExitStack() as ending:
            given = self._connection if self._connection is not None else self._engine
            self._databases = make_databases(routing.names_of(self.app), given, Clock(self._clock.now), ending)
            routing.enter(self)
            ending.callback(routing.leave, self)
            self._ending = ending.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        if self._runner is not None:
            self._runner.close()
        self._ending.close()
        self._runner = self._databases = None

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(self, *_: object) -> None:
        self.__exit__()

    @property
    def databases(self) -> Mapping[str, Database]:
        """The case's databases, by name. Raises `KitError` outside of the block."""
        if self._databases is None:
            raise KitError("the case is not open: use `with TestApp(app) as t:`, or the fixture rowlock_test (X1)")
        return self._databases

    def engine(self, name: str | None = None) -> Engine:
        """A SQLAlchemy engine on a database of the case, for the test's own rows and transactions.

        `name` as in `records`. Where the case was given an Engine it is that one. Raises `KitError` with `connection=`.
        """
        db = self._one(name)
        if isinstance(db, ConnectionDatabase):
            raise KitError("this case lives in one connection (X1); use that one in the test")
        if isinstance(db.target, Engine):
            return db.target
        engine = self._engines.get(db.name)
        if engine is None:
            db.engine()  # the file is there from here on, with its tables
            engine = self._engines[db.name] = create_engine(db.dialect.urls(db.url)[0])
            self._ending.callback(engine.dispose)
        return engine

    def url(self, name: str | None = None) -> URL:
        """The URL of a database of the case, as a user writes it; for an engine of another kind than `engine()`."""
        db = self._one(name)
        return db.url.set(drivername=db.url.get_backend_name())

    # --- time ---------------------------------------------------------------------------------------------

    @property
    def now(self) -> datetime:
        """Where the case's clock stands, in UTC."""
        return self._clock.now()

    def advance(self, delta: timedelta | float | None = None, /, **parts: Unpack[Parts]) -> datetime:
        """Moves the clock forward, by a timedelta, by seconds or by `advance(hours=2)`; answers the new time.

        Zero is fine. In a handler it also renews the leases of what is in work, and an attempt whose deadline it
        passes is timed out. Raises `KitValueError` for a step back, `KitTypeError` for what is no duration. (X1)
        """
        self._at_work.move(self._clock.target(delta, parts))
        return self.now

    # --- running ------------------------------------------------------------------------------------------

    def drain(self, limit: int = MOST) -> int:
        """Runs due records until none is due, also those that they enqueue; answers how many were claimed (X1, X2).

        First the records of schedules are made whose minutes have come since the case began, or since the last drain.

        At most `limit` (1..10,000). A failing handler does not raise out of it: look at `failures`. Raises `KitError`
        inside a running loop, where it is `await t.adrain()`.
        """
        self._may_drain(limit)
        return self._run(lambda: self._drain(limit), "drain")

    async def adrain(self, limit: int = MOST) -> int:
        """`drain` from a coroutine."""
        self._may_drain(limit)
        # A task of its own, so that what is set in its context is not seen by the caller.
        return await asyncio.create_task(self._drain(limit), name="rowlock drain")

    def sweep(self) -> SweepReport:
        """Sweeps every database of the case, as a worker does hourly, until nothing is due at its time (N3, X1).

        Guards run in this thread. Raises `KitError` inside a running loop, where it is `await t.asweep()`.
        """
        return self._run(lambda: sweeping.sweep(self._program), "sweep")

    async def asweep(self) -> SweepReport:
        """`sweep` from a coroutine."""
        return await asyncio.create_task(sweeping.sweep(self._program), name="rowlock sweep")

    @property
    def failures(self) -> list[Failure]:
        """(record, exception) of every handler that raised, or was timed out, in a drain of this case; in order."""
        while self._raised:
            error, context = self._raised.pop(0)
            db = self.databases[self.app.jobs[context.job].database]
            self._failures.append(Failure(db.run(records.get, context.id), error))
        return list(self._failures)

    def _may_drain(self, limit: int) -> None:
        if isinstance(limit, bool) or not isinstance(limit, int):  # pyright: ignore[reportUnnecessaryIsInstance]  # callers need not be typed
            raise KitTypeError(f"limit is {shown(limit)}; it must be a whole number, 1..{MOST:,} (X1)")
        if not 1 <= limit <= MOST:
            raise KitValueError(f"limit is {limit}; it must be 1..{MOST:,} (X1)")
        _ = self.databases
        if self._draining:
            raise KitError("this case is being drained already; records of a handler are run by the same drain (X2)")

    async def _drain(self, limit: int) -> int:
        routing.mean(self)
        self._draining = True
        try:
            worker = Worker(
                self._program, jitter=lambda: 0.0, on_failure=self._failed, largest_lease=self._leases == "largest"
            )  # fmt: skip
            for db in self.databases.values():
                await self._begin_schedules(db)
            claimed = await worker.drain(limit)
        finally:
            self._draining = False
        _ = self.failures  # the records as they are now
        return claimed

    def _run(self, work: Callable[[], Coroutine[Any, Any, T]], name: str) -> T:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise KitError(f"{name}() would block the running event loop (X1): say `await t.a{name}()`")
        if self._runner is None:
            # Not asyncio.run: that would put the loop of the thread, which may be somebody else's, aside.
            self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        return self._runner.run(work(), context=contextvars.copy_context())

    async def _begin_schedules(self, db: Database) -> None:
        """Schedules are seen first when the case begins, not when it is first drained (T4)."""
        scheduled = [job for job in jobs_of(self._program, db) if job.schedule is not None]
        if scheduled:
            look = await db.aread(cursors.read)
            if missing := [job for job in scheduled if job.name not in look.cursors]:
                await db.arun(cursors.begin, missing, look, at=self._began)

    def _failed(self, error: BaseException, context: Context) -> None:
        self._raised.append((error, context))

    # --- looking ------------------------------------------------------------------------------------------

    def enqueued(self, job: Job[In, Any]) -> list[EnqueuedRecord[In]]:
        """The records of a job, of any state, in the order of their enqueueing; each has `input` and `record`."""
        return finding.of_job(self._of(job), job)

    def assert_enqueued(
        self, job: Job[In, Any], *, where: Mapping[str, Any] | None = None, count: int | None = None,
        key: str | None = None, queue: str | None = None, state: State | str | None = None,
    ) -> list[EnqueuedRecord[In]]:  # fmt: skip
        """Asserts that `count` records of the job (not given: at least one) are as is said; answers them.

        `where` are fields of the input and their values. Records of every state count, also those that a drain has run
        already, unless `state` is given. AssertionError: the message shows what comes nearest.
        """
        db, wanted = self._of(job), finding.wanted(job, where, key, queue, state)
        found = finding.of_job(db, job)
        matches = [record for record in found if not wanted.differences(record)]
        if len(matches) == count or (count is None and matches):
            return matches
        raise AssertionError(asserts.too_few(job, wanted, count, found, finding.numbers(db), self.now))

    def refute_enqueued(
        self, job: Job[Any, Any], *, where: Mapping[str, Any] | None = None, key: str | None = None,
        queue: str | None = None, state: State | str | None = None,
    ) -> None:  # fmt: skip
        """Asserts that no record of the job is as is said; the arguments are those of `assert_enqueued`."""
        db, wanted = self._of(job), finding.wanted(job, where, key, queue, state)
        matches = [record for record in finding.of_job(db, job) if not wanted.differences(record)]
        if matches:
            raise AssertionError(asserts.too_many(job, wanted, matches, self.now))

    # --- inside -------------------------------------------------------------------------------------------

    def _one(self, name: str | None) -> Database:
        if name is None:
            name = next(iter(self.databases), "default") if len(self.databases) == 1 else "default"
        if name not in self.databases:
            raise KitValueError(f"no database {shown(name)}; there is {', '.join(self.databases) or 'none'} (J5)")
        return self.databases[name]

    def _of(self, job: Job[Any, Any]) -> Database:
        finding.require_job(job)
        if self.app.jobs.get(job.name) is not job:
            raise KitValueError(f"job {job.name!r} is not one of this application; include its group (J11)")
        return self._one(job.database)
