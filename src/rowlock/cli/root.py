"""The command's tree."""

from __future__ import annotations

from typing import Annotated

import typer

from rowlock.cli.options import unwrapped
from rowlock.cli.run import run

root = typer.Typer(
    name="rowlock",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # they show local variables
    context_settings={"help_option_names": ["-h", "--help"]},
)

for function in (run,):
    root.command(help=unwrapped(function))(function)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"rowlock {version('rowlock')}")
        raise typer.Exit


@root.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a failure's traceback; may stand anywhere.")] = False,
) -> None:
    """Durable jobs in the database you already have.

    APP, which every command takes, is module:name of a rowlock.App, as newsroom.main:app. If it is not given, it is
    $ROWLOCK_APP, or app under \\[tool.rowlock] in the pyproject.toml of the current directory.
    """
