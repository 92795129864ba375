"""`rowlock records release` (O3)."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from rowlock.cli import bulk
from rowlock.cli.bulk import MOST, By, DryRun, Most, Yes
from rowlock.cli.failing import sentences
from rowlock.cli.options import Application, ApplicationOption, DatabaseOption, Json
from rowlock.cli.records import Category, Key, Name, OlderThan, Queue

if TYPE_CHECKING:
    from rowlock.filters import OperationFilter

One = Annotated[
    int | None, typer.Option("--id", min=1, max=MOST, metavar="ID", help="Only this record.", show_default=False)
]


@sentences
def release(
    app: Application = None,
    app_option: ApplicationOption = None,
    id: One = None,
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
    """Give blocked records that this program can run back to its workers: pending, due now, no attempt spent.

    Those are records blocked as unknown_job, schema_mismatch or invalid_policy whose job, input and limits fit now.
    One with --id, those that match every given filter, or all. A record whose key another active one has by now stays
    blocked, and is counted as a conflict. It asks first, unless --yes is given.

    \b
    Examples:
      rowlock records release newsroom.main:app --dry-run
      rowlock records release --job news.publish --yes
      rowlock records release --id 42 --yes --json
    """
    from rowlock.cli import lookup
    from rowlock.cli.spans import span

    age = None if older_than is None else span(older_than, "--older-than")
    with closing(lookup.application(app, app_option)) as program:
        wanted: OperationFilter = {
            "job": job, "queue": queue, "category": category, "key": key, "older_than": age,
        }  # fmt: skip
        change = program.records.release
        if not (dry_run or yes):
            bulk.ask("Release", "released", change(id, dry_run=True, limit=limit, database=database, **wanted).count)
        done = change(id, dry_run=dry_run, limit=limit, by=by, database=database, **wanted)
    bulk.tell(done, "released", left="blocked", dry_run=dry_run, json=json)
