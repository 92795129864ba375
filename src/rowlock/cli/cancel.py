"""`rowlock records cancel` (O4)."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rowlock.cli import bulk, output
from rowlock.cli.bulk import By, DryRun, Most, One, Yes
from rowlock.cli.failing import CommandError, sentences
from rowlock.cli.options import Application, ApplicationOption, DatabaseOption, Json
from rowlock.cli.records import Category, Key, Name, OlderThan, Queue

if TYPE_CHECKING:
    from rowlock.filters import RecordFilter
    from rowlock.store.change import Done

Active = Annotated[
    Literal["pending", "running"] | None,
    typer.Option("--state", "-s", help="Only what waits, or only what is in work.", show_default=False),
]


@sentences
def cancel(
    record: One = None,
    app: Application = None,
    app_option: ApplicationOption = None,
    state: Active = None,
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
    """Cancel records: what waits ends at once, and what is in work is asked to end.

    One by its ID, or all that match every given filter, of which at least one is needed. A record in work stays running
    until its worker, which sees it within a poll, has ended its handler; it is never tried again, and ends as cancelled
    unless the work was completed all the same. Several are asked about first, unless --yes is given.

    \b
    Examples:
      rowlock records cancel 42 newsroom.main:app
      rowlock records cancel --job news.publish --state pending --dry-run
      rowlock records cancel --queue billing --older-than 2d --yes --json
    """
    from rowlock.cli import lookup
    from rowlock.cli.spans import span

    id, app = bulk.named(record, app)
    age = None if older_than is None else span(older_than, "--older-than")
    wanted: RecordFilter = {
        "state": state, "job": job, "queue": queue, "category": category, "key": key, "older_than": age,
    }  # fmt: skip
    if id is not None and (limit is not None or any(value is not None for value in wanted.values())):
        raise CommandError("an ID and filters are given; give one or the other")
    with closing(lookup.application(app, app_option)) as program:
        if id is not None:
            left = program.records.cancel(id, dry_run=dry_run, by=by, database=database)
            _say_one(id, left, dry_run=dry_run, json=json)
            return

        def run(dry: bool) -> Done:
            return program.records.cancel(dry_run=dry, by=by, limit=limit, database=database, **wanted)

        count = bulk.carry_out(run, "Cancel", "cancelled", dry_run=dry_run, asks=not yes).count
    if json:
        output.document({"count": count, "conflicts": 0, "dry_run": dry_run})
        return
    output.line(f"{bulk.records(count)} {'would be ' if dry_run else ''}cancelled, or asked to end if in work")


def _say_one(id: int, state: str, *, dry_run: bool, json: bool) -> None:
    if json:
        output.document({"id": id, "state": state, "dry_run": dry_run})
    elif state == "running":
        output.line(f"record {id} is in work; its worker {'would be' if dry_run else 'is'} asked to end it")
    else:
        output.line(f"record {id} {'would be' if dry_run else 'is'} {state}")
