"""`rowlock records …` (O1)."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rowlock.cli import output
from rowlock.cli.bulk import MOST
from rowlock.cli.failing import sentences
from rowlock.cli.options import Application, ApplicationOption, DatabaseOption, Json
from rowlock.cli.output import instant, shortened

if TYPE_CHECKING:
    from rowlock.store.counts import Count
    from rowlock.store.records import Record

States = Literal["pending", "running", "succeeded", "dead", "blocked", "cancelled"]
StateOption = Annotated[States | None, typer.Option("--state", "-s", help="Only in this state.", show_default=False)]
Name = Annotated[str | None, typer.Option("--job", "-j", metavar="NAME", help="Only of this job.", show_default=False)]
Queue = Annotated[
    str | None, typer.Option("--queue", "-q", metavar="NAME", help="Only of this queue.", show_default=False)
]
Category = Annotated[
    str | None,
    typer.Option(metavar="WORD", help="Only of this error category, as failed or unknown_job.", show_default=False),
]
Key = Annotated[str | None, typer.Option(metavar="KEY", help="Only with exactly this key.", show_default=False)]
OlderThan = Annotated[
    str | None,
    typer.Option(metavar="SPAN", help="Only created at least so long ago: 90s, 12h, 7d.", show_default=False),
]
Limit = Annotated[int, typer.Option(min=1, max=1000, help="How many at most.")]
After = Annotated[
    int | None,
    typer.Option(min=1, max=MOST, metavar="ID", help="Go on after this one, the end of a page.", show_default=False),
]
Id = Annotated[int, typer.Argument(metavar="ID", min=1, max=MOST, help="The record's id.", show_default=False)]
Payload = Annotated[bool, typer.Option("--payload", help="Show the payload as well; it may have secrets in it.")]


@sentences
def list_(
    app: Application = None,
    app_option: ApplicationOption = None,
    state: StateOption = None,
    job: Name = None,
    queue: Queue = None,
    category: Category = None,
    key: Key = None,
    older_than: OlderThan = None,
    limit: Limit = 50,
    after: After = None,
    database: DatabaseOption = None,
    json: Json = False,
) -> None:
    """List records, newest first, a page at a time. Every given filter must match.

    \b
    Examples:
      rowlock records list newsroom.main:app --state dead --limit 20
      rowlock records list --job news.publish --older-than 1d --json
    """
    from rowlock.cli import lookup
    from rowlock.cli.spans import span

    age = None if older_than is None else span(older_than, "--older-than")
    with closing(lookup.application(app, app_option)) as program:
        page = program.records.list(
            state=state,
            job=job,
            queue=queue,
            category=category,
            key=key,
            older_than=age,
            limit=limit,
            after=after,
            database=database,
        )
    if json:
        output.document({"items": [_as_json(record) for record in page.items], "next": page.next})
        return
    columns = ("id", "state", "job", "queue", "attempt", "run at", "key", "error")
    output.table(columns, [_row(record) for record in page.items])
    if page.next is not None:
        output.note(f"there are more: --after {page.next}")


@sentences
def show(
    id: Id,
    app: Application = None,
    app_option: ApplicationOption = None,
    payload: Payload = False,
    database: DatabaseOption = None,
    json: Json = False,
) -> None:
    """Show one record. Its payload is left out unless asked for.

    \b
    Examples:
      rowlock records show 42 newsroom.main:app
      rowlock records show 42 --payload --json
    """
    from rowlock.cli import lookup

    with closing(lookup.application(app, app_option)) as program:
        record = program.records.get(id, database=database)
        stored = program.records.payload(id, database=database) if payload else None
    more = {} if stored is None else {"payload": stored.decode("utf-8", "backslashreplace")}
    if json:
        output.document({**_as_json(record), **more})
        return
    output.table(("field", "value"), [(name, _cell(value)) for name, value in {**asdict(record), **more}.items()])


@sentences
def counts(
    app: Application = None,
    app_option: ApplicationOption = None,
    database: DatabaseOption = None,
    json: Json = False,
) -> None:
    """Count records by queue and state; of pending ones those that are due, and those of the future.

    A count with ~ before it is an estimate: of more than 10,000 succeeded or cancelled records.

    \b
    Example:
      rowlock records counts newsroom.main:app
    """
    from rowlock.cli import lookup

    with closing(lookup.application(app, app_option)) as program:
        found = program.records.counts(database=database)
    rows = [(each, each.count - each.future if each.state == "pending" else 0) for each in found]
    if json:
        output.document([{**asdict(each), "due": due} for each, due in rows])
        return
    output.table(
        ("queue", "state", "records", "due", "future"),
        [
            (each.queue, str(each.state), number(each), *((str(due), str(each.future)) if pending else ("", "")))
            for each, due in rows
            for pending in [each.state == "pending"]
        ],
    )


def number(count: Count) -> str:
    """A count, with ~ before it if it is an estimate."""
    return f"{'~' if count.estimated else ''}{count.count}"


def _row(record: Record) -> tuple[str, ...]:
    return (
        str(record.id),
        str(record.state),
        record.job,
        record.queue,
        f"{record.attempt}/{record.max_attempts}",
        instant(record.run_at),
        shortened(record.key or ""),
        record.error_category or "",
    )


def _cell(value: object) -> str:
    from datetime import datetime

    if isinstance(value, datetime):
        return value.isoformat(sep=" ").replace("+00:00", "Z")
    return "" if value is None else str(value)


def _as_json(record: Record) -> dict[str, Any]:
    """The record by the table's names; headers as the object that they are, if they are one."""
    import msgspec

    values = asdict(record)
    if record.headers is not None:
        try:
            values["headers"] = msgspec.json.decode(record.headers)
        except (msgspec.MsgspecError, RecursionError):
            values["headers"] = record.headers
    return values
