"""`rowlock retention` (N8)."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rowlock.cli import output
from rowlock.cli.failing import sentences
from rowlock.cli.options import Application, ApplicationOption, DatabaseOption, Json

if TYPE_CHECKING:
    from rowlock.model.retention import Planned

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Count the rows that would go now. Reads, and changes nothing.")
]


@sentences
def retention(
    app: Application = None,
    app_option: ApplicationOption = None,
    database: DatabaseOption = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Show how long each table's rows are kept, what would go, and when. Nothing is deleted by it: workers sweep.

    With --dry-run the rows that are due now are counted, and it is said when the oldest of the others goes. Overrides
    that are rejected are printed on stderr.

    \b
    Examples:
      rowlock retention newsroom.main:app
      rowlock retention --dry-run --json
    """
    from rowlock.cli import lookup

    with closing(lookup.application(app, app_option)) as program:
        plans = program.retention.plan(dry_run=dry_run, database=database)
        violations = program.retention.violations()
    if json:
        output.document({"tables": [_as_json(each) for each in plans], "violations": violations})
        return
    columns = ["database", "table", "class", "by", "kept", "at least", "next sweep"]
    rows = [_row(each) for each in plans]
    if dry_run:
        columns += ["due", "next row goes"]
        rows = [[*row, *_counted(each)] for row, each in zip(rows, plans, strict=True)]
    output.table(columns, rows)
    for sentence in (*violations, *(f"table {each.table!r}: {each.error}" for each in plans if each.error)):
        output.note(sentence)


def _row(planned: Planned) -> list[str]:
    from rowlock.model.durations import show

    kept = "for ever" if planned.window is None else show(planned.window)
    if planned.window != planned.declared and planned.declared is not None:
        kept += f" (declared {show(planned.declared)})"
    if planned.archive is not None:
        kept += f", then {planned.archive}"
    least = "" if planned.at_least is None else f"{show(planned.at_least)} ({planned.who})"
    when = "" if planned.window is None else output.instant(planned.next_at) or "with a worker"
    return [planned.database, planned.table, planned.kind, planned.column or "", kept, least, when]


def _counted(planned: Planned) -> list[str]:
    return ["" if planned.due is None else str(planned.due), output.instant(planned.oldest_goes_at)]


def _as_json(planned: Planned) -> dict[str, Any]:
    """Durations in seconds, their names ending in _s."""
    from dataclasses import asdict

    values = asdict(planned)
    for name in ("declared", "window", "at_least"):
        span = values.pop(name)
        values[f"{name}_s"] = None if span is None else span.total_seconds()
    return values
