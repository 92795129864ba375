"""`rowlock schedules`: list, accept, forget, explain (T7, T8)."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rowlock.cli import output
from rowlock.cli.bulk import By
from rowlock.cli.failing import CommandError, sentences
from rowlock.cli.options import Application, ApplicationOption, DatabaseOption, Json

if TYPE_CHECKING:
    from rowlock.schedules import ScheduleInfo

MOST = 1_000
Name = Annotated[str, typer.Argument(metavar="NAME", help="The job's name.")]
Expression = Annotated[str, typer.Argument(metavar="EXPR", help='Five cron fields, quoted: "0 9 * * 1-5".')]
From = Annotated[
    str | None,
    typer.Option("--from", metavar="TIME", show_default=False, help="After when, as 2027-03-01 or 2027-03-01T09:00."),
]
CountOption = Annotated[int, typer.Option("--count", "-n", min=1, max=MOST, help="How many minutes to show.")]


def bare(context: typer.Context) -> None:
    """`rowlock schedules`, with nothing behind it, is `rowlock schedules list` (T8)."""
    if context.invoked_subcommand is None:
        list_()


@sentences
def list_(app: Application = None, app_option: ApplicationOption = None, json: Json = False) -> None:
    """Show each schedule: its cron text, when it ran last, when it will next, and how late that is.

    The state is ok; new, if no worker has seen it yet; changed, if its text is another one than its cursor's, so that
    no worker starts before it is accepted; or gone, if a cursor has no schedule in this application any more.

    \b
    Examples:
      rowlock schedules list newsroom.main:app
      rowlock schedules list --json
    """
    from rowlock.cli import lookup

    with closing(lookup.application(app, app_option)) as program:
        found = program.schedules.list()
    if json:
        output.document([_plain(each) for each in found])
        return
    several = len({each.database for each in found}) > 1
    columns = ["name", *(["database"] if several else []), "state", "cron", "last", "next", "lag"]
    rows = [[_cell(each, column) for column in columns] for each in found]
    output.table(columns, rows)


@sentences
def accept(
    name: Name,
    app: Application = None,
    app_option: ApplicationOption = None,
    by: By = None,
    json: Json = False,
) -> None:
    """Let a schedule's changed cron text count, from this minute on.

    A program whose text is another one than its cursor's does not start before that. Earlier minutes are not made.

    \b
    Examples:
      rowlock schedules accept report.daily newsroom.main:app --by ann
    """
    from rowlock.cli import lookup

    with closing(lookup.application(app, app_option)) as program:
        accepted = program.schedules.accept(name, by=by)
    if json:
        output.document({"name": name, "accepted": accepted})
        return
    output.line(output.readable(f"{name}: {'accepted' if accepted else 'nothing has changed'}"))


@sentences
def forget(
    name: Name,
    app: Application = None,
    app_option: ApplicationOption = None,
    by: By = None,
    database: DatabaseOption = None,
    json: Json = False,
) -> None:
    """Delete the cursor of a schedule that is gone.

    If it comes back it begins anew, with the minute in which a worker sees it. A schedule that the application has is
    not forgotten.

    \b
    Examples:
      rowlock schedules forget report.weekly newsroom.main:app
    """
    from rowlock.cli import lookup

    with closing(lookup.application(app, app_option)) as program:
        program.schedules.forget(name, by=by, database=database)
    if json:
        output.document({"name": name, "forgotten": True})
        return
    output.line(output.readable(f"{name}: forgotten"))


@sentences
def explain(expr: Expression, start: From = None, count: CountOption = 5, json: Json = False) -> None:
    """Say a cron text in words and dates, in UTC. Needs no application and no database.

    \b
    Examples:
      rowlock schedules explain "0 9 * * 1-5"
      rowlock schedules explain "0 0 29 2 *" --from 2027-01-01 --count 3 --json
    """
    from rowlock.model.cron import Cron

    cron = Cron(expr)
    words, minutes = cron.describe(), cron.next(_moment(start), count)
    if json:
        output.document({"cron": expr, "words": words, "next": minutes})
        return
    output.line(words)
    for minute in minutes:
        output.line(f"{minute:%a} {output.instant(minute)}")


def _moment(given: str | None) -> datetime:
    if given is None:
        return datetime.now(UTC)
    try:
        moment = datetime.fromisoformat(given)
    except ValueError:
        raise CommandError(
            f"--from {given!r} is no time; write one as 2027-03-01 or 2027-03-01T09:00, in UTC"
        ) from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _plain(info: ScheduleInfo) -> dict[str, Any]:
    return asdict(info) | {"lag": info.lag.total_seconds()}


def _cell(info: ScheduleInfo, column: str) -> str:
    value: object = getattr(info, column)
    if isinstance(value, timedelta):
        return _span(value) if value else ""
    return output.instant(value) if isinstance(value, datetime) else "" if value is None else str(value)


def _span(span: timedelta) -> str:
    seconds = int(span.total_seconds())
    days, hours, minutes = seconds // 86_400, seconds // 3_600 % 24, seconds // 60 % 60
    parts = [
        f"{number}{unit}" for number, unit in ((days, "d"), (hours, "h"), (minutes, "m"), (seconds % 60, "s")) if number
    ]
    return " ".join(parts[:2]) or "0s"
