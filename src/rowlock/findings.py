"""What is wrong with a declared application, found without touching a table (J5, J6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from rowlock.errors import RowlockError, StartRefused
from rowlock.model.group import Jobs
from rowlock.model.job import Job
from rowlock.model.site import Site
from rowlock.runtime.program import Program
from rowlock.runtime.roster import lease_of
from rowlock.runtime.start import refuse_small_pool
from rowlock.store.database import Database


class Finding(NamedTuple):
    """One refusal: where, a short fixed code, and a sentence."""

    file: str
    line: int
    code: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.code} {self.message}"


def findings(app: Program, site: Site) -> list[Finding]:
    """Everything that would be refused at start and needs no table. `site` is where the application is made."""
    found = [Finding(site.file, site.line, "queue", message) for message in _of_queues(app)]
    try:
        databases = app.databases
    except RowlockError as exc:  # a referred secret that is not there, a URL that is none
        return [*found, Finding(site.file, site.line, "settings", str(exc))]
    found += [Finding(site.file, site.line, code, message) for code, message in _of_databases(databases)]
    for name, job in app.jobs.items():
        if name == job.name:
            found += [Finding(job.file, job.line, code, message) for code, message in _of_job(app, job, databases)]
    return found


def not_included(groups: list[Jobs]) -> list[Finding]:
    """The groups that have jobs and that no application has included (J11)."""
    return [
        Finding(
            group.site.file,
            group.site.line,
            "not-included",
            f"a Jobs group with {len(group.jobs)} job{'s' * (len(group.jobs) != 1)} is in no application (J11); "
            f"name its module in App(include=[…]), or say app.include(…)",
        )
        for group in groups
        if group.jobs and group.app is None
    ]


def refuse(found: list[Finding]) -> None:
    """Raise StartRefused with every finding, if there is one."""
    if len(found) == 1:
        raise StartRefused(found[0].message)
    if found:
        raise StartRefused("\n".join([f"{len(found)} refusals:", *(f"- {each.message}" for each in found)]))


def _of_queues(app: Program) -> Iterator[str]:
    for name, queue in app.queues.items():
        if queue.workers is not None and name in app.settings.job.queues:
            yield (
                f"queue {name!r} has workers={queue.workers} in code and job.queues.{name} of "
                f"{app.settings.job.queues[name]} in the settings (M2); give the number in one place"
            )


def _of_databases(databases: Mapping[str, Database]) -> Iterator[tuple[str, str]]:
    """Two names whose URLs are one. What only the databases can tell is found at start, by installation (J5)."""
    seen: dict[object, str] = {}
    for name, db in databases.items():
        try:
            refuse_small_pool(db)
        except StartRefused as exc:
            yield "pool", str(exc)
        url = db.url
        if url.database in (None, "", ":memory:"):  # nothing to tell them apart by
            continue
        identity = (url.get_backend_name(), url.host, url.port, url.database, tuple(sorted(url.query.items())))
        first = seen.setdefault(identity, name)
        if first != name:
            yield (
                "database",
                f"databases {first!r} and {name!r} have URLs of one database (J5); give one name to one database",
            )


def _of_job(app: Program, job: Job[Any, Any], databases: Mapping[str, Database]) -> Iterator[tuple[str, str]]:
    db = databases.get(job.database)
    if db is None:
        yield "database", not_configured(job, databases)
    elif job.has_handler:
        try:
            lease_of(job, timedelta(milliseconds=app.settings.job.lease_ms), db)
        except StartRefused as exc:
            yield "lease", str(exc)


def not_configured(job: Job[Any, Any], databases: Mapping[str, Database]) -> str:
    """The refusal of a job whose database the application does not have (J5)."""
    there = f"configured are {', '.join(map(repr, databases))}" if databases else "none is configured"
    return (
        f"job {job.name!r} ({job.file}:{job.line}) is declared on the database {job.database!r}, and {there} (J5); "
        f"give its URL, as App(url) or App(databases={{{job.database!r}: url}}) or in the settings"
    )
