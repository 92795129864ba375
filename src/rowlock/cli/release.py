"""`rowlock records release` (O3)."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import Annotated

import typer

from rowlock.cli import output
from rowlock.cli.failing import CommandError, sentences
from rowlock.cli.options import Application, ApplicationOption, DatabaseOption, Json
from rowlock.cli.records import MOST, Category, Key, Name, OlderThan, Queue

One = Annotated[
    int | None, typer.Option("--id", min=1, max=MOST, metavar="ID", help="Only this record.", show_default=False)
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing; say how many there are.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


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

        def run(*, dry: bool) -> tuple[int, int]:
            done = program.records.release(
                id, dry_run=dry, database=database, job=job, queue=queue, category=category, key=key, older_than=age
            )
            return done.count, done.conflicts

        if not (dry_run or yes):
            _ask(run(dry=True)[0])
        count, conflicts = run(dry=dry_run)
    if json:
        output.document({"count": count, "conflicts": conflicts, "dry_run": dry_run})
        return
    kept = f"; {conflicts} stay blocked, since active records have their keys" if conflicts else ""
    output.line(f"{_records(count)} {'would be ' if dry_run else ''}released{kept}")


def _ask(count: int) -> None:
    if not sys.stdin.isatty():
        raise CommandError(
            f"{_records(count)} would be released, and nobody can be asked here; give --yes, or --dry-run"
        )
    typer.confirm(f"Release {_records(count)}?", abort=True, err=True)


def _records(count: int) -> str:
    return f"{count} record" if count == 1 else f"{count} records"
