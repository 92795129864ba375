"""The command's tree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from rowlock.cli import queues, records, schedules
from rowlock.cli.audit import audit
from rowlock.cli.cancel import cancel
from rowlock.cli.check import check
from rowlock.cli.demo import demo
from rowlock.cli.explain import explain
from rowlock.cli.migrate import migrate
from rowlock.cli.options import unwrapped
from rowlock.cli.release import release
from rowlock.cli.replay import purge, replay
from rowlock.cli.retention import retention
from rowlock.cli.run import run
from rowlock.cli.settings import settings


def _tree(help: str, **commands: Callable[..., Any]) -> typer.Typer:
    tree = typer.Typer(
        help=help,
        no_args_is_help=True,
        pretty_exceptions_enable=False,  # they show local variables
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name, command in commands.items():
        tree.command(name, help=unwrapped(command))(command)
    return tree


_HELP = """Durable jobs in the database you already have.

APP, which every command but demo takes, is module:name of a rowlock.App, as newsroom.main:app. If not given, it is \
$ROWLOCK_APP, or app under \\[tool.rowlock] in the pyproject.toml of the current directory."""

root = _tree(
    _HELP, run=run, check=check, migrate=migrate, settings=settings, retention=retention, audit=audit, demo=demo
)
root.add_typer(
    _tree(
        "Look at records: what waits, what runs, what failed and why; replay, purge, release, cancel.",
        list=records.list_,
        show=records.show,
        counts=records.counts,
        explain=explain,
        replay=replay,
        purge=purge,
        release=release,
        cancel=cancel,
    ),
    name="records",
)
root.add_typer(
    _tree("Look at queues, pause and resume them.", list=queues.list_, pause=queues.pause, resume=queues.resume),
    name="queues",
)
_schedules = _tree(
    "Jobs that run by themselves: when, how far they are, and what was changed. Without a command it lists them.",
    list=schedules.list_,
    accept=schedules.accept,
    forget=schedules.forget,
    explain=schedules.explain,
)
_schedules.callback(invoke_without_command=True, no_args_is_help=False)(schedules.bare)
root.add_typer(_schedules, name="schedules")


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
    """The options of the command itself; its text is `_HELP`."""
