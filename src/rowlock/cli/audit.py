"""`rowlock audit` (O6)."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from typing import Annotated, Literal

import typer

from rowlock.cli import output
from rowlock.cli.failing import sentences
from rowlock.cli.options import Application, ApplicationOption, DatabaseOption, Json
from rowlock.cli.records import After, Limit

Actions = Literal["replay", "purge", "release", "cancel", "pause", "resume", "accept", "forget"]
ActionOption = Annotated[Actions | None, typer.Option("--action", help="Only this.", show_default=False)]
ByOption = Annotated[
    str | None, typer.Option("--by", metavar="NAME", help="Only by whom, as they said it.", show_default=False)
]


@sentences
def audit(
    app: Application = None,
    app_option: ApplicationOption = None,
    action: ActionOption = None,
    by: ByOption = None,
    limit: Limit = 50,
    after: After = None,
    database: DatabaseOption = None,
    json: Json = False,
) -> None:
    """List what operators did, newest first: when, what, of what, how many, by whom if they said so. Kept for 90 days.

    \b
    Examples:
      rowlock audit newsroom.main:app
      rowlock audit --action purge --by ann --json
    """
    from rowlock.cli import lookup

    with closing(lookup.application(app, app_option)) as program:
        page = program.audit.list(action=action, by=by, limit=limit, after=after, database=database)
    if json:
        output.document({"items": [asdict(entry) for entry in page.items], "next": page.next})
        return
    output.table(
        ("id", "at", "action", "of", "count", "by"),
        [
            (
                str(entry.id),
                output.instant(entry.at),
                entry.action,
                output.shortened(", ".join(f"{name}={value}" for name, value in entry.detail.items())),
                str(entry.count),
                entry.by or "",
            )
            for entry in page.items
        ],
    )
    if page.next is not None:
        output.note(f"there are more: --after {page.next}")
