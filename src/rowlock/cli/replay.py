"""`rowlock records replay` and `rowlock records purge` (O2)."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rowlock.cli import bulk
from rowlock.cli.bulk import By, DryRun, Most, One, Yes
from rowlock.cli.failing import CommandError, sentences
from rowlock.cli.options import DatabaseOption, Json, OnlyOption
from rowlock.cli.records import Category, Key, Name, OlderThan, Queue

if TYPE_CHECKING:
    from rowlock.filters import RecordFilter

Ended = Annotated[
    Literal["dead", "blocked"] | None,
    typer.Option("--state", "-s", help="Only dead, or only blocked ones.", show_default=False),
]


@sentences
def replay(
    id: One = None,
    app: OnlyOption = None,
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
      rowlock records replay 42 --app newsroom.main:app
      rowlock records replay --state dead --job news.publish --dry-run
      rowlock records replay --category timed_out --older-than 1d --yes --json
    """
    wanted = _wanted(id, state, job, queue, category, key, older_than, limit)
    from rowlock.cli import lookup

    with closing(lookup.application(None, app)) as program:
        change = program.records.replay
        if id is None and not (dry_run or yes):
            bulk.ask("Replay", "replayed", change(dry_run=True, limit=limit, database=database, **wanted).count)
        done = change(id, dry_run=dry_run, limit=limit, by=by, database=database, **wanted)
    bulk.tell(done, "replayed", left="as they are", dry_run=dry_run, json=json)


@sentences
def purge(
    id: One = None,
    app: OnlyOption = None,
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
      rowlock records purge 42 --app newsroom.main:app
      rowlock records purge --state dead --older-than 90d --dry-run
      rowlock records purge --job news.publish --category rejected --yes --json
    """
    wanted = _wanted(id, state, job, queue, category, key, older_than, limit)
    from rowlock.cli import lookup

    with closing(lookup.application(None, app)) as program:
        change = program.records.purge
        if id is None and not (dry_run or yes):
            bulk.ask("Purge", "purged", change(dry_run=True, limit=limit, database=database, **wanted).count)
        done = change(id, dry_run=dry_run, limit=limit, by=by, database=database, **wanted)
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
