"""`rowlock records explain` (H4)."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict

from rowlock.cli import output
from rowlock.cli.failing import sentences
from rowlock.cli.options import Application, ApplicationOption, DatabaseOption, Json
from rowlock.cli.records import Id


@sentences
def explain(
    id: Id,
    app: Application = None,
    app_option: ApplicationOption = None,
    database: DatabaseOption = None,
    json: Json = False,
) -> None:
    """Say why a record is not running, or what became of it.

    With --json the document has a fixed word as `reason`, the sentence, and the facts in it by name.

    \b
    Examples:
      rowlock records explain 42 newsroom.main:app
      rowlock records explain 42 --json
    """
    from rowlock.cli import lookup

    with closing(lookup.application(app, app_option)) as program:
        found = program.records.explain(id, database=database)
    if json:
        output.document(asdict(found))
        return
    output.line(output.readable(f"record {found.id} is {found.state}: {found.sentence}"))
