"""`rowlock queues …` (O1, O5)."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from rowlock.cli import output
from rowlock.cli.bulk import By
from rowlock.cli.failing import sentences
from rowlock.cli.options import Application, ApplicationOption, DatabaseOption, Json
from rowlock.cli.records import number

if TYPE_CHECKING:
    from rowlock.queues import QueueInfo

Name = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.", show_default=False)]
STATES = ("running", "dead", "blocked", "succeeded", "cancelled")


@sentences
def list_(
    app: Application = None,
    app_option: ApplicationOption = None,
    database: DatabaseOption = None,
    json: Json = False,
) -> None:
    """List the queues: those that this program serves, with its workers a process, that have records, or are paused.

    A count with ~ before it is an estimate.

    \b
    Examples:
      rowlock queues list newsroom.main:app
      rowlock queues list --json
    """
    from rowlock.cli import lookup

    with closing(lookup.application(app, app_option)) as program:
        found = program.queues.list(database=database)
    if json:
        output.document([_as_json(queue) for queue in found])
        return
    output.table(("queue", "paused", "workers", "due", "future", *STATES), [_row(queue) for queue in found])


@sentences
def pause(
    name: Name,
    app: Application = None,
    app_option: ApplicationOption = None,
    by: By = None,
    database: DatabaseOption = None,
    json: Json = False,
) -> None:
    """Let nobody claim from a queue until it is resumed, in whatever process. What is in work goes on to its end.

    \b
    Examples:
      rowlock queues pause billing newsroom.main:app
      rowlock queues pause billing --by ann --json
    """
    from rowlock.cli import lookup

    with closing(lookup.application(app, app_option)) as program:
        changed = program.queues.pause(name, by=by, database=database)
    _tell(name, paused=True, changed=changed, json=json)


@sentences
def resume(
    name: Name,
    app: Application = None,
    app_option: ApplicationOption = None,
    by: By = None,
    database: DatabaseOption = None,
    json: Json = False,
) -> None:
    """End the pause of a queue; workers notice within a poll.

    \b
    Example:
      rowlock queues resume billing newsroom.main:app
    """
    from rowlock.cli import lookup

    with closing(lookup.application(app, app_option)) as program:
        changed = program.queues.resume(name, by=by, database=database)
    _tell(name, paused=False, changed=changed, json=json)


def _tell(name: str, *, paused: bool, changed: bool, json: bool) -> None:
    if json:
        output.document({"queue": name, "paused": paused, "changed": changed})
        return
    now = "paused" if paused else "not paused"
    output.line(output.readable(f"queue {name!r} is {now}{'' if changed else ', as it was before'}"))


def _row(queue: QueueInfo) -> tuple[str, ...]:
    counts = {str(count.state): count for count in queue.counts}
    pending = counts.get("pending")
    due, future = (pending.count - pending.future, pending.future) if pending else (0, 0)
    return (
        queue.name,
        output.instant(queue.paused_at),
        "" if queue.workers is None else str(queue.workers),
        str(due),
        str(future),
        *(number(counts[state]) if state in counts else "0" for state in STATES),
    )


def _as_json(queue: QueueInfo) -> dict[str, object]:
    from dataclasses import asdict

    counts = [
        {**asdict(count), "due": count.count - count.future if count.state == "pending" else 0}
        for count in queue.counts
    ]
    return {"name": queue.name, "paused_at": queue.paused_at, "workers": queue.workers, "counts": counts}
