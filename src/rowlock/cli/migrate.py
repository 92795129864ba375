"""`rowlock migrate` (S1)."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from rowlock.cli import output
from rowlock.cli.failing import sentences
from rowlock.cli.options import Application, ApplicationOption, Json

Check = Annotated[bool, typer.Option("--check", help="Change nothing; print what is missing, exit 1 if anything is.")]


@sentences
def migrate(
    app: Application = None, app_option: ApplicationOption = None, check: Check = False, json: Json = False
) -> None:
    """Create, upgrade and repair Rowlock's tables in every database of the application.

    Any number of processes may do it at once. What was made is printed, a line for each database.

    \b
    Examples:
      rowlock migrate newsroom.main:app
      rowlock migrate newsroom.main:app --check
    """
    from rowlock.cli import lookup
    from rowlock.store import migrations
    from rowlock.store.failures import where

    done: dict[str, list[str]] = {}
    with closing(lookup.application(app, app_option)) as program:
        for name, db in program.databases.items():
            done[name] = db.run(migrations.check if check else migrations.migrate)
            if json:
                continue
            if check:
                for problem in done[name] or ["nothing is missing"]:
                    output.line(f"{name} ({where(db)}): {problem}")
            else:
                made = f"made {', '.join(done[name])}" if done[name] else "nothing to do"
                output.line(f"{name} ({where(db)}): {made}")
    if json:
        output.document({name: {"problems" if check else "made": names} for name, names in done.items()})
    if check and any(done.values()):
        raise typer.Exit(1)
