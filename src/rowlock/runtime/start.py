"""Everything between "started" and "may claim", in the order of M5; nothing is claimed when any of it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from rowlock.errors import DatabaseUnavailable, RowlockError, StartRefused
from rowlock.model.job import Job
from rowlock.runtime.bounds import bounded
from rowlock.runtime.describe import log
from rowlock.runtime.outage import Pauses
from rowlock.runtime.program import Program
from rowlock.runtime.roster import jobs_of
from rowlock.runtime.sweeper import on_a_thread
from rowlock.runtime.worker import Worker
from rowlock.store import cursors
from rowlock.store.database import Database
from rowlock.store.migrations import migrate, verify

FAIL_FAST_S = 4.0  # within 5 s, with what it takes to get there
# Of a single try while waiting: a migration that another process does is waited for in it.
TRY_S = 30.0
# A claim, and a settlement beside it (C8).
PER_DATABASE = 2


async def prepare(
    app: Program, *, queues: Collection[str] | None = None, wait: bool = False, new: Callable[..., Worker] = Worker
) -> Worker:
    """A worker that can be started: everything is validated, migrated and verified (J5, L5, C8, M5, E3).

    `wait`: a database that is not there is waited for, which is said once; else `DatabaseUnavailable` within 5 s.
    Raises `StartRefused`, `NotMigrated`, `SchemaTooNew`, and what the application's own validation raises.
    """
    app.validate()
    worker = new(app, queues=queues)
    databases = list(app.databases.values())
    for db in databases:
        refuse_small_pool(db)
    installations: dict[str, str] = {}
    for db in databases:
        installation = await _waited_for(db, automatic=_auto_migrate(app, db.name), wait=wait)
        if other := installations.get(installation):
            raise StartRefused(
                f"databases {other!r} and {db.name!r} are one database (installation {installation}); "
                f"two names for one database are refused (J5): use one name for it"
            )
        await _refuse_two_places(db, installation)
        installations[installation] = db.name
        db.installation = installation
    for db in databases:
        await _refuse_changed(app, db)
    return worker


async def _refuse_two_places(db: Database, installation: str) -> None:
    """A given engine is of one kind; what the other kind needs is made from its URL, and may lead elsewhere (E3)."""
    if db.dialect.one_writer or not isinstance(db.target, Engine | AsyncEngine):
        return
    try:
        other = await bounded(db, on_a_thread(lambda: db.run(verify)), TRY_S)
    except (RowlockError, SQLAlchemyError, OSError):
        if isinstance(db.target, AsyncEngine):  # a program that is async throughout never uses the other kind
            return
        raise
    if other != installation:
        raise StartRefused(
            f"database {db.name!r}: the given engine leads to other tables than its URL does (installations {other} "
            f"and {installation}), and Rowlock needs connections of both kinds, sync and async (E3); what the engine "
            f"sets beside the URL, a search_path in connect_args or in a listener, say, belongs into the URL: on "
            f"PostgreSQL ?options=-csearch_path%3D…"
        )


def mode_of(app: Program, mode: str | None) -> str:
    """What runs: api, worker or all. Raises `StartRefused` for what this program can not do (M3)."""
    of_file, origin = app.settings.runtime.mode, app.settings.origin
    if app.settings.health.port is not None:
        raise StartRefused(
            f"{origin}: health.port is {app.settings.health.port}, and this version serves no health of its own (H1); "
            f"leave health out, and answer with app.health() from a route of your ASGI application"
        )
    if mode is not None and of_file not in (None, "all", mode):
        raise StartRefused(
            f"mode {mode!r} is not part of runtime.mode {of_file!r}; "
            f"a flag narrows the file's mode, it does not widen it (M1)"
        )
    jobs = any(job.has_handler for job in app.jobs.values())
    http = app.settings.http.app is not None
    if jobs and mode is None and of_file is None and origin != "settings":
        raise StartRefused(
            f"{origin}: runtime.mode is missing; an application with jobs says in its settings file "
            f"which of api, worker and all a deployment is (M3)"
        )
    asked = mode or of_file or (("all" if http else "worker") if jobs else "api")
    if asked != "worker" and not http:
        raise StartRefused(
            f"mode {asked!r} serves HTTP, and {origin} names no application: http.app is missing (M3); "
            + ("give it, or use mode 'worker'" if jobs else "give it: there is no job with a handler to work on either")
        )
    if asked != "api" and not jobs:
        raise StartRefused(
            f"mode {asked!r} works on jobs, and this application has none with a handler (M3); "
            "declare one, or name its module in App(include=[…])"
        )
    return asked


async def _refuse_changed(app: Program, db: Database) -> None:
    """A schedule whose cursor is of another cron is not served: nobody knows which minutes were meant (T7)."""
    scheduled = [job for job in jobs_of(app, db) if job.schedule is not None]
    if not scheduled:
        return
    try:
        look = await bounded(db, db.aread(cursors.read), TRY_S)
    except TimeoutError:
        raise _silent(db, TRY_S) from None
    changed = [job for job in scheduled if cursors.is_changed(job, look.of(job))]
    if changed:
        raise StartRefused("\n".join(_changed(job) for job in changed))


def _changed(job: Job[Any, Any]) -> str:
    text = "" if job.schedule is None else job.schedule.cron.text
    return (
        f"job {job.name!r} ({job.file}:{job.line}): schedule={text!r} is another one than its cursor in database "
        f"{job.database!r} is of (T7); if that is meant, say `rowlock schedules accept {job.name}`, and it holds from "
        f"that minute on; else restore the earlier text"
    )


def _auto_migrate(app: Program, name: str) -> bool:
    configured = app.settings.database.get(name)
    return True if configured is None else configured.auto_migrate


def refuse_small_pool(db: Database) -> None:
    """Raises StartRefused, with the arithmetic, for a pool that a worker would wait in for itself (C8)."""
    needed = db.for_handlers + PER_DATABASE
    if db.pool is not None and db.pool < needed:
        slots = (
            f"{db.for_handlers} for the slots of transactional jobs"
            if db.for_handlers
            else ("0 for its slots, since the lease form holds none,")
        )
        raise StartRefused(
            f"database {db.name!r}: pool={db.pool} is too small (C8): a worker needs {slots} + {PER_DATABASE} for the "
            f"database = {needed} connections; renewal has {PER_DATABASE} of its own on top. "
            f"Raise database.{db.name}.pool, or leave it out"
        )


async def _waited_for(db: Database, *, automatic: bool, wait: bool) -> str:
    pauses = Pauses()
    said = False
    while True:
        try:
            return await _installation(db, TRY_S if wait else FAIL_FAST_S, automatic=automatic)
        except DatabaseUnavailable as error:
            if not wait:
                raise
            if not said:
                said = True
                log.warning("%s; waiting until it can", error)
        await asyncio.sleep(pauses.next())


async def _installation(db: Database, seconds: float, *, automatic: bool) -> str:
    try:
        if automatic:
            made: Sequence[str] = await bounded(db, db.arun(migrate), seconds)
            if made:
                log.info("database %r: made %s", db.name, ", ".join(made))
        return await bounded(db, db.aread(verify), seconds)
    except TimeoutError:
        raise _silent(db, seconds) from None


def _silent(db: Database, seconds: float) -> DatabaseUnavailable:
    return DatabaseUnavailable(
        f"database {db.name!r} did not answer within {seconds:g} s; look whether it runs, and at its URL"
    )
