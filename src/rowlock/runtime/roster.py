"""What this program serves: which queues of which database, with how many slots, and every job that it can run."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import Any

from rowlock.errors import StartRefused
from rowlock.model.backoff import Backoff
from rowlock.model.job import Job
from rowlock.model.table import JOBS
from rowlock.runtime.program import Program
from rowlock.store.database import Database
from rowlock.store.dialects.base import Branch, Source
from rowlock.store.programs import Pair
from rowlock.store.release import Known

# What a lease has above the timeout on a database whose writers wait for each other (L5).
COVER = timedelta(seconds=10)


class Plan:
    """How records of one (name, fingerprint) pair are run: everything that is looked up once, not once a record."""

    __slots__ = (
        "arguments",
        "backoff",
        "decode",
        "handler",
        "is_async",
        "job",
        "lease_s",
        "name",
        "overrun_s",
        "transactional",
        "wants",
    )

    def __init__(
        self, job: Job[Any, Any], fingerprint: str, lease: timedelta, backoff: Backoff, overrun_s: float
    ) -> None:
        self.job = job
        self.name = job.name
        self.handler: Callable[..., Any] = job.handler
        self.is_async = job.is_async
        self.wants = job.wants_context
        self.transactional = job.transactional
        self.backoff = backoff
        self.lease_s = lease.total_seconds()
        self.overrun_s = overrun_s
        self.arguments = job.arguments
        self.decode: Callable[[bytes | str], Any] = _decoder(job, fingerprint)


def _decoder(job: Job[Any, Any], fingerprint: str) -> Callable[[bytes | str], Any]:
    if fingerprint == job.wire.fingerprint:
        return job.wire.decode
    return lambda payload: job.decode(fingerprint, payload)


class Roster:
    """The jobs of one database that this program has handlers for."""

    def __init__(self, app: Program, db: Database, *, largest_lease: bool = False) -> None:
        self.db = db
        self.jobs = jobs_of(app, db)
        settings = app.settings.job
        default = timedelta(hours=2) if largest_lease else timedelta(milliseconds=settings.lease_ms)
        self.backoff = backoff = Backoff(
            timedelta(milliseconds=settings.retry_base_ms), timedelta(milliseconds=settings.retry_max_ms)
        )
        self.plans: dict[tuple[str, str], Plan] = {}
        self.names: set[str] = set()
        branches: list[Branch] = []
        for job in self.jobs:
            lease = default if largest_lease else lease_of(job, default, db)
            overrun_s = (job.overrun or _overrun(settings.overrun_ms) or lease).total_seconds()
            for name in job.names:
                self.names.add(name)
                for fingerprint in job.fingerprints:
                    self.plans[name, fingerprint] = Plan(job, fingerprint, lease, job.backoff or backoff, overrun_s)
                    branches.append(Branch(name, fingerprint, round(lease.total_seconds() * 1000)))
        self.branches = tuple(branches)
        self.pairs = set(pairs_of(app, db))
        """What this program knows, also of jobs whose handlers live elsewhere (J8)."""
        # Where a handler's writes block renewal, a record whose stored timeout outlasts its lease is not run (S4, L5).
        self.covered = db.dialect.one_writer

    @property
    def shortest_lease_s(self) -> float:
        """What renewal and the search for expired records are paced by."""
        return min((plan.lease_s for plan in self.plans.values()), default=60.0)

    def source(self, queue: str) -> Source:
        """What a claimer of `queue` takes from."""
        return self._source(queue, self.branches)

    def sources_apart(self, queue: str) -> tuple[Source, Source]:
        """The same in two: what runs in a transaction of its handler's own (L8), and the others."""
        mine: dict[bool, list[Branch]] = {True: [], False: []}
        for branch in self.branches:
            mine[self.plans[branch.job, branch.fingerprint].transactional].append(branch)
        return self._source(queue, tuple(mine[True])), self._source(queue, tuple(mine[False]))

    @property
    def transactional(self) -> bool:
        """Whether a handler here works in a transaction of its own (L8)."""
        return any(job.transactional for job in self.jobs)

    @staticmethod
    def _source(queue: str, branches: tuple[Branch, ...]) -> Source:
        return Source(JOBS, queue, branches, f"{socket.gethostname()}:{os.getpid()}"[:128])


def jobs_of(app: Program, db: Database) -> list[Job[Any, Any]]:
    """The jobs of `db` that this program has handlers for."""
    return [job for name, job in app.jobs.items() if name == job.name and job.database == db.name and job.has_handler]


def pairs_of(app: Program, db: Database) -> dict[Pair, Job[Any, Any]]:
    """Every pair of `db` that the program knows, also of jobs whose handlers live elsewhere (J8)."""
    return {
        Pair(name, fingerprint): job
        for job in app.jobs.values()
        if job.database == db.name
        for name in job.names
        for fingerprint in job.fingerprints
    }


def known_of(app: Program, db: Database) -> dict[Pair, Known]:
    """The same, with what it takes to give a blocked record back (O3)."""
    default = timedelta(milliseconds=app.settings.job.lease_ms)

    def lease_ms(job: Job[Any, Any]) -> int | None:
        covers = db.dialect.one_writer and job.has_handler
        return round(lease_of(job, default, db).total_seconds() * 1000) if covers else None

    return {pair: Known(tuple(job.names), lease_ms(job)) for pair, job in pairs_of(app, db).items()}


def _overrun(milliseconds: int | None) -> timedelta | None:
    return None if milliseconds is None else timedelta(milliseconds=milliseconds)


def lease_of(job: Job[Any, Any], default: timedelta, db: Database) -> timedelta:
    """The lease that a job's records get (L5). Raises `StartRefused` for one given too short."""
    if not db.dialect.one_writer:
        return job.lease or default
    if job.lease is None:
        return max(default, job.timeout + COVER)
    if job.lease <= job.timeout:
        raise StartRefused(
            f"job {job.name!r} ({job.file}:{job.line}): lease={job.lease.total_seconds():g} s does not cover "
            f"timeout={job.timeout.total_seconds():g} s, and on SQLite a handler's write transaction blocks renewal "
            f"(L5); give a longer lease, or none: then it is derived from the timeout"
        )
    return job.lease


def queues_of(app: Program, rosters: Mapping[str, Roster], only: Collection[str] | None = None) -> dict[str, list[str]]:
    """The queues that are served, by database, in order of name. Raises `StartRefused` for an unknown name in `only`.

    A queue is served on each database whose jobs name it; one that is only declared or only in the settings is
    served on every database with jobs, since any record may be sent to it.
    """
    declared = {job.queue for roster in rosters.values() for job in roster.jobs}
    extra = (set(app.queues) | set(app.settings.job.queues)) - declared
    served = {
        name: sorted({job.queue for job in roster.jobs} | extra) for name, roster in rosters.items() if roster.jobs
    }
    if only is None:
        return served
    known = declared | extra
    if unknown := sorted(set(only) - known):
        raise StartRefused(
            f"queue {unknown[0]!r} is not served by this program (M1); "
            f"its queues are {', '.join(sorted(known)) or 'none'}"
        )
    return {name: [queue for queue in queues if queue in only] for name, queues in served.items()}


def slots_of(app: Program, queue: str) -> int:
    """How many attempts of `queue` one process runs at once (M2)."""
    declared = app.queues.get(queue)
    workers = None if declared is None else declared.workers
    return workers or app.settings.workers_for(queue)


def transactions_of(app: Program, roster: Roster, queues: Collection[str]) -> int:
    """How many transactions of handlers the queues of this database have at once in one process (C8, L8)."""
    theirs = {job.queue for job in roster.jobs if job.transactional} & set(queues)
    slots = sum(slots_of(app, queue) for queue in theirs)
    return min(slots, 1) if roster.db.dialect.one_writer else slots
