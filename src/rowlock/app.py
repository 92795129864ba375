"""An application: the jobs, databases, settings and hooks that a program declares, bound together."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from os import PathLike
from types import MappingProxyType
from typing import Any, Never, Unpack, overload

from rowlock import findings
from rowlock.auditing import Audit
from rowlock.binding import Async, Binding, Sync, async_connection, sync_connection
from rowlock.collecting import groups_of, with_names_of
from rowlock.databases import Configured, Target
from rowlock.errors import DeclarationError, KitError, NotBuiltYet
from rowlock.findings import Finding
from rowlock.hooks import HookDecorators
from rowlock.model.durations import whole_ms
from rowlock.model.group import Declarator, Jobs, groups
from rowlock.model.job import In, Job
from rowlock.model.lifecycle import dedupe_floor
from rowlock.model.limits import DECLARING, QUEUE_BYTES, check_int, check_text, shown
from rowlock.model.policy import DeclareOptions, JobOptions
from rowlock.model.request import Enqueued, EnqueueRequest
from rowlock.model.settings import Settings
from rowlock.model.site import caller, site_of
from rowlock.model.table import Lease
from rowlock.operations import Records
from rowlock.queues import DeclaredQueue, Queues
from rowlock.retaining import Retaining
from rowlock.runtime import serve
from rowlock.runtime.events import Events
from rowlock.runtime.health import HealthReport
from rowlock.runtime.metrics import Meter, Metric
from rowlock.schedules import Schedules
from rowlock.store import enqueue, migrations
from rowlock.store.database import Database


class App(HookDecorators, Retaining):
    """What a program declares and is bound to.

    Arguments: `url_or_engine` the database named "default": a URL (sqlite:///file, postgresql://, mysql://,
    mariadb://), an Engine or an AsyncEngine; `databases` others by name; `settings` the settings file's path, or its
    keys as a dict; `include` groups of jobs, or names of modules that have them. A URL in code and in the settings
    at once is refused (M1). Nothing is connected to before it is used. Raises DeclarationError, SettingsError.
    """

    def __init__(
        self,
        url_or_engine: Target | None = None,
        *,
        databases: Mapping[str, Target] | None = None,
        settings: Settings | Mapping[str, Any] | str | PathLike[str] | None = None,
        include: Iterable[Jobs | str] = (),
    ) -> None:
        super().__init__()
        self._site = site_of(caller())
        self._settings = Settings.load(settings)
        self._configured = Configured(url_or_engine, databases, self._settings)
        self._binding = Binding()
        self._jobs: dict[str, Job[Any, Any]] = {}
        self._queues = Queues(self._configured.one, self)
        self.meter = Meter()
        """Where enqueues and attempts are counted; read by `metrics()`."""
        self._events = Events(self.hooks)
        self._lock = threading.Lock()
        self._under_test = False
        self.records = Records(self._configured.one, self)
        self.audit = Audit(self._configured.one)
        configured = self._configured
        self._retain(
            self._settings, lambda: configured.names, lambda: configured.databases, configured.one,
            overrides=lambda: self._settings.retention.overrides,
        )  # fmt: skip
        self.schedules = Schedules(lambda: self._configured.databases, self._configured.one, self)
        self._own = Jobs()
        self.include(self._own, *groups_of(include))

    def __repr__(self) -> str:
        return f"<App ({self._site}), {len({id(job) for job in self._jobs.values()})} jobs>"

    # --- what it has --------------------------------------------------------------------------------------

    @property
    def jobs(self) -> Mapping[str, Job[Any, Any]]:
        """The included jobs, by name and by alias."""
        return MappingProxyType(self._jobs)

    @property
    def settings(self) -> Settings:
        """The settings, complete with defaults."""
        return self._settings

    @property
    def databases(self) -> Mapping[str, Database]:
        """The configured databases, by name. SettingsError: a secret that a URL refers to is not there."""
        return self._configured.databases

    @property
    def queues(self) -> Queues:
        """The queues that `app.queue(…)` declared, by name; and pausing, resuming and listing queues (O5)."""
        return self._queues

    @property
    def payload_max(self) -> int:
        """The most bytes of an encoded payload (W3)."""
        return self._settings.job.payload_max

    def job_for(self, name: str) -> Job[Any, Any] | None:
        """The job of this name or alias, None if there is none."""
        return self._jobs.get(name)

    # --- declaring ----------------------------------------------------------------------------------------

    def job(self, **options: Unpack[JobOptions]) -> Declarator:
        """Declare a function as a job of this application; as `Jobs.job` (J1)."""
        return Declarator(self._own, options)

    @overload
    def declare(self, name: str, *, input: type[In], **options: Unpack[DeclareOptions]) -> Job[In, None]: ...
    @overload
    def declare(self, name: str, *, input: None = None, **options: Unpack[DeclareOptions]) -> Job[None, None]: ...
    def declare(self, name: str, *, input: Any = None, **options: Any) -> Job[Any, Any]:
        """Declare a job whose handler lives in another program; as `Jobs.declare` (J8)."""
        return self._own.declare_at(caller(), name, input, options)

    def subscribe(self, table: object, **options: object) -> Never:
        """Consume a queue table of the user's own (Q). Refused: this version does not have it."""
        self._own.subscribe(table, **options)

    def include(self, *jobs: Jobs | str) -> None:
        """Include groups, or the groups of modules (J11). Again is harmless. DeclarationError: a name is taken (J4)."""
        for group in groups_of(jobs):
            group.include_in(self)

    def adopt(self, jobs: Sequence[Job[Any, Any]]) -> None:
        """Take jobs in, all or none; called by their group.

        Raises DeclarationError for a taken name or alias (J4), and a `dedupe_for` above the retention (E5, N4).
        """
        with self._lock:
            taken = with_names_of(jobs, self._jobs)
            for job in jobs:
                if job.dedupe_for:
                    self.lifecycles.add_floor("rowlock_job", dedupe_floor(job.name, job.dedupe_for))
            self._jobs = taken

    def queue(self, name: str, *, workers: int | None = None, claim: Lease | None = None) -> None:
        """Say how a queue is served: `workers` slots of one process, 1..256; the settings say if not given (M2).

        Other claim forms than the lease are refused: this version does not have them. Raises DeclarationError.
        """
        name = check_text(name, what="app.queue: name", high=QUEUE_BYTES, rule="J1", refuse=DECLARING)
        what = f"queue {shown(name)}: workers"
        if claim is not None:
            raise NotBuiltYet(
                f"queue {shown(name)}: claim={shown(claim)} asks for a form of claim that this version does not have "
                f"(J1); leave it out: the job table is claimed by lease"
            )
        if workers is not None:
            workers = check_int(workers, what=what, low=1, high=256, rule="M2", refuse=DECLARING)
        self._queues.declare(name, DeclaredQueue(workers))

    # --- enqueueing ---------------------------------------------------------------------------------------

    def bind(self, connection: Sync | Async) -> AbstractContextManager[None]:
        """Let every enqueue inside the block join this connection or session (E2); nested blocks restore the outer.

        Takes what `connection=` takes, of either kind. Raises ConnectionTypeError.
        """
        return self._binding.bind(connection)

    def enqueue(
        self, job: Job[Any, Any], requests: Sequence[EnqueueRequest], connection: object, detached: bool
    ) -> list[Enqueued]:
        """Write prepared records; users call `job.enqueue`, which is typed (E1)."""
        who = f"job {job.name!r}"
        db, target = self._target(job)
        joined = self._binding.choose(connection, detached=detached, who=who)
        conn = None if joined is None else sync_connection(joined, who=who)
        if not requests:
            return []
        if conn is None:
            answers = enqueue.enqueue(db, target, requests)
        else:
            answers = enqueue.enqueue_joined(conn, db, target, requests)
        return self._events.enqueued(self.meter, job.name, db.name, requests, answers)

    async def aenqueue(
        self, job: Job[Any, Any], requests: Sequence[EnqueueRequest], connection: object, detached: bool
    ) -> list[Enqueued]:
        """The same from a coroutine."""
        who = f"job {job.name!r}"
        db, target = self._target(job)
        joined = self._binding.choose(connection, detached=detached, who=who)
        conn = None if joined is None else await async_connection(joined, who=who)
        if not requests:
            return []
        if conn is None:
            answers = await enqueue.aenqueue(db, target, requests)
        else:
            answers = await enqueue.aenqueue_joined(conn, db, target, requests)
        return self._events.enqueued(self.meter, job.name, db.name, requests, answers)

    def _target(self, job: Job[Any, Any]) -> tuple[Database, enqueue.JobTarget]:
        databases = self.databases
        db = databases.get(job.database)
        if db is None:
            raise DeclarationError(findings.not_configured(job, databases))
        return db, enqueue.JobTarget(job.names, job.max_attempts, whole_ms(job.timeout), whole_ms(job.dedupe_for))

    # --- the life cycle -----------------------------------------------------------------------------------

    def findings(self) -> list[Finding]:
        """What `rowlock check` reports of this application, in order of declaration; touches no table (J6)."""
        return [*findings.findings(self, self._site), *findings.not_included(groups())]

    def validate(self) -> None:
        """Refuse what a start would refuse and needs no table. Raises StartRefused with every refusal (J5)."""
        findings.refuse(findings.findings(self, self._site))

    def migrate(self) -> dict[str, list[str]]:
        """Create, upgrade and repair Rowlock's tables in every database (S1); answers what was made in each."""
        return {name: db.run(migrations.migrate) for name, db in self.databases.items()}

    async def amigrate(self) -> dict[str, list[str]]:
        """`migrate` from a coroutine."""
        return {name: await db.arun(migrations.migrate) for name, db in self.databases.items()}

    def close(self) -> None:
        """Give back every connection of this process; the next use opens new ones."""
        self._configured.close()

    async def aclose(self) -> None:
        """`close`, with the connections of the running loop."""
        await self._configured.aclose()

    @asynccontextmanager
    async def worker(self, *, queues: Collection[str] | None = None) -> AsyncGenerator[None]:
        """Work on the running loop for as long as the block lasts: `async with app.worker():`. No signal handlers (M6).

        `queues` are served, None for all. In `api` mode it does nothing (M3). Raises what a start refuses.
        """
        self._refuse_under_test("app.worker()")
        if self._settings.runtime.mode == "api":
            yield
            return
        async with serve.embedded(self, queues=queues):
            yield

    @contextmanager
    def worker_thread(self, *, queues: Collection[str] | None = None) -> Generator[None]:
        """Work on a thread beside the program: `with app.worker_thread():`; otherwise as `worker`."""
        self._refuse_under_test("app.worker_thread()")
        if self._settings.runtime.mode == "api":
            yield
            return
        with serve.in_thread(self, queues=queues):
            yield

    @asynccontextmanager
    async def lifespan(self, _asgi: object = None) -> AsyncGenerator[None]:
        """An ASGI application's lifespan with a worker in it: `FastAPI(lifespan=app.lifespan)`. Closes at the end.

        In a test case it has no worker, and closes nothing: the case runs what is due when the test says so (X1).
        """
        if self._under_test:
            yield
            return
        try:
            async with self.worker():
                yield
        finally:
            await self.aclose()

    def stop(self) -> None:
        """Ask this application's workers in this process to drain, from any thread or handler; does not wait (M6)."""
        serve.stop(self)

    def health(self) -> HealthReport:
        """`{status, loops: {name: {beat, error, …}}, counters}` of this application's workers in this process (H1).

        Reads what is in memory, from any thread: it works while a handler blocks the loop, and touches no database.
        """
        return serve.health(self)

    def metrics(self) -> dict[str, Metric]:
        """Counters, gauges and histograms of this process, by name; for a bridge to what collects yours (H2).

        A counter goes up for as long as the process lives, whatever workers come and go. From any thread; no database.
        """
        return serve.metrics(self)

    # --- for the test kit ---------------------------------------------------------------------------------

    @property
    def _database_names(self) -> tuple[str, ...]:
        return self._configured.names

    @contextmanager
    def _swap(self, databases: Mapping[str, Database], settings: Settings) -> Generator[Mapping[str, Database] | None]:
        """Other databases and settings within the block, and no worker; answers the configured ones, if made yet."""
        old, was, meter = self._configured.swap(databases), self._settings, self.meter
        self._settings, self._under_test, self.meter = settings, True, Meter()
        try:
            yield old
        finally:
            self._settings, self._under_test, self.meter = was, False, meter
            self._configured.swap(old)

    def _refuse_under_test(self, what: str) -> None:
        if self._under_test:
            raise KitError(
                f"{what} is refused while a test case has this application: a case has no serve() and no worker, it "
                f"runs due records with drain(), or await adrain(), on a clock that stands still (X1)"
            )
