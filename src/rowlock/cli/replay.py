"""`rowlock records replay` and `rowlock records purge` (O2)."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rowlock.cli import bulk
from rowlock.cli.bulk import By, DryRun, Most, One, Yes
from rowlock.cli.failing import CommandError, sentences
from rowlock.cli.options import Application, ApplicationOption, DatabaseOption, Json
from rowlock.cli.records import Category, Key, Name, OlderThan, Queue

if TYPE_CHECKING:
    from rowlock.filters import RecordFilter
    from rowlock.store.change import Done

Ended = Annotated[
    Literal["dead", "blocked"] | None,
    typer.Option("--state", "-s", help="Only dead, or only blocked ones.", show_default=False),
]


@sentences
def replay(
    record: One = None,
    app: Application = None,
    app_option: ApplicationOption = None,
    state: Ended = None,
    job: Name = None,
    queue: Queue = None,
    category: Category = None,
    key: Key = None,
    older_than: OlderThan = None,
    limit: Most = None,
    by: By = None,
    database: DatabaseOption = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Try dead and blocked records anew: pending, with all their attempts, due now.

    One by its ID, or those that match every given filter, of which at least one is needed, oldest first. A record whose
    key another active one has by now stays as it is, and is counted as a conflict. Several are asked about first,
    unless --yes is given.

    \b
    Examples:
      rowlock records replay 42 newsroom.main:app
      rowlock records replay --state dead --job news.publish --dry-run
      rowlock records replay --category timed_out --older-than 1d --yes --json
    """
    id, app = bulk.named(record, app)
    wanted = _wanted(id, state, job, queue, category, key, older_than, limit)
    from rowlock.cli import lookup

    with closing(lookup.application(app, app_option)) as program:
        change = program.records.replay

        def run(dry: bool) -> Done:
            return change(id, dry_run=dry, limit=limit, by=by, database=database, **wanted)

        done = bulk.carry_out(run, "Replay", "replayed", dry_run=dry_run, asks=id is None and not yes)
    bulk.tell(done, "replayed", left="as they are", dry_run=dry_run, json=json)


@sentences
def purge(
    record: One = None,
    app: Application = None,
    app_option: ApplicationOption = None,
    state: Ended = None,
    job: Name = None,
    queue: Queue = None,
    category: Category = None,
    key: Key = None,
    older_than: OlderThan = None,
    limit: Most = None,
    by: By = None,
    database: DatabaseOption = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Delete dead and blocked records.

    One by its ID, or those that match every given filter, of which at least one is needed, oldest first. Several are
    asked about first, unless --yes is given.

    \b
    Examples:
      rowlock records purge 42 newsroom.main:app
      rowlock records purge --state dead --older-than 90d --dry-run
      rowlock records purge --job news.publish --category rejected --yes --json
    """
    id, app = bulk.named(record, app)
    wanted = _wanted(id, state, job, queue, category, key, older_than, limit)
    from rowlock.cli import lookup

    with closing(lookup.application(app, app_option)) as program:
        change = program.records.purge

        def run(dry: bool) -> Done:
            return change(id, dry_run=dry, limit=limit, by=by, database=database, **wanted)

        done = bulk.carry_out(run, "Purge", "purged", dry_run=dry_run, asks=id is None and not yes)
    bulk.tell(done, "purged", left="as they are", dry_run=dry_run, json=json)


def _wanted(
    id: int | None,
    state: Literal["dead", "blocked"] | None,
    job: str | None,
    queue: str | None,
    category: str | None,
    key: str | None,
    older_than: str | None,
    limit: int | None,
) -> RecordFilter:
    from rowlock.cli.spans import span

    age = None if older_than is None else span(older_than, "--older-than")
    wanted: RecordFilter = {
        "state": state, "job": job, "queue": queue, "category": category, "key": key, "older_than": age,
    }  # fmt: skip
    filters = any(value is not None for value in wanted.values())
    if id is not None and (filters or limit is not None):
        raise CommandError("an ID and filters are given; give one or the other")
    if id is None and not filters:
        raise CommandError("neither an ID nor a filter is given; give one, as --state dead for all dead records")
    return wanted
