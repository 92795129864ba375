"""`rowlock run`."""

from __future__ import annotations

import importlib.util
from typing import Annotated, Literal

import typer

from rowlock.cli.failing import CommandError, sentences
from rowlock.cli.options import Application, ApplicationOption

Mode = Annotated[
    Literal["api", "worker", "all"] | None,
    typer.Option(help="What of the program runs; narrows runtime.mode of the settings.", show_default=False),
]
Queue = Annotated[
    list[str] | None,
    typer.Option("--queue", "-q", metavar="NAME", show_default=False, help="Serve only this queue; may be repeated."),
]
Wait = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Wait for a database that is not there, or fail within 5 seconds.")
]
Uvloop = Annotated[
    bool | None,
    typer.Option("--uvloop/--no-uvloop", show_default=False, help="The event loop; uvloop if it is installed."),
]


@sentences
def run(
    app: Application = None,
    app_option: ApplicationOption = None,
    mode: Mode = None,
    queue: Queue = None,
    wait: Wait = True,
    uvloop: Uvloop = None,
) -> None:
    """Run the program: work on its jobs, and serve its ASGI application, until SIGTERM or SIGINT.

    The first signal drains: nothing new is claimed, attempts in work finish until runtime.shutdown_ms, the exit code
    is 0. A second one ends at once. Its log is on stderr; one line `ready: queues=…` says that it may claim now.

    \b
    Examples:
      rowlock run newsroom.main:app
      rowlock run newsroom.main:app --queue billing --queue mail
      ROWLOCK_APP=newsroom.main:app rowlock run --mode worker --no-wait
    """
    from rowlock.cli import logs, lookup
    from rowlock.runtime import serve

    there = importlib.util.find_spec("uvloop") is not None
    if uvloop and not there:
        raise CommandError("--uvloop is given, and uvloop is not installed; pip install 'rowlock[fast]'")
    program = lookup.application(app, app_option)
    logs.set_up()
    code = serve.main(program, mode=mode, queues=queue or None, wait=wait, uvloop=there if uvloop is None else uvloop)
    raise typer.Exit(code)
