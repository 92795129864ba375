"""`rowlock records release` (O3)."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from rowlock.cli import bulk
from rowlock.cli.bulk import By, DryRun, Most, One, Yes
from rowlock.cli.failing import sentences
from rowlock.cli.options import Application, ApplicationOption, DatabaseOption, Json
from rowlock.cli.records import Category, Key, Name, OlderThan, Queue

if TYPE_CHECKING:
    from rowlock.filters import OperationFilter
    from rowlock.store.change import Done


@sentences
def release(
    record: One = None,
    app: Application = None,
    app_option: ApplicationOption = None,
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
    One by its ID, those that match every given filter, or all. A record whose key another active one has by now stays
    blocked, and is counted as a conflict. Several are
    asked about first, unless --yes is given.

    \b
    Examples:
      rowlock records release newsroom.main:app --dry-run
      rowlock records release --job news.publish --yes
      rowlock records release 42 newsroom.main:app --json
    """
    from rowlock.cli import lookup
    from rowlock.cli.spans import span

    id, app = bulk.named(record, app)
    age = None if older_than is None else span(older_than, "--older-than")
    with closing(lookup.application(app, app_option)) as program:
        wanted: OperationFilter = {
            "job": job, "queue": queue, "category": category, "key": key, "older_than": age,
        }  # fmt: skip
        change = program.records.release

        def run(dry: bool) -> Done:
            return change(id, dry_run=dry, limit=limit, by=by, database=database, **wanted)

        done = bulk.carry_out(run, "Release", "released", dry_run=dry_run, asks=id is None and not yes)
    bulk.tell(done, "released", left="blocked", dry_run=dry_run, json=json)
