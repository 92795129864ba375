"""The door to `rowlock demo`."""

from __future__ import annotations

import importlib.util
import signal
from pathlib import Path
from typing import Annotated

import typer

from rowlock.cli.failing import CommandError, sentences

Input = Annotated[
    list[Path] | None,
    typer.Option(
        "--input",
        metavar="PATH",
        show_default=False,
        help="A folder of Markdown, or one file; may be repeated. Without it: a handful of articles of Rowlock's own.",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        metavar="DIR",
        show_default=False,
        help="Where database and pages go, and stay; else a temporary one.",
    ),
]
Keep = Annotated[bool, typer.Option("--keep", help="Keep the temporary directory.")]


@sentences
def demo(input: Input = None, output: Output = None, keep: Keep = False) -> None:
    """Run a newsroom on one SQLite file: two workers, one of which is killed in mid-job.

    Articles are written together with the jobs that publish them, rendered to HTML at their time, retried when a
    source fails, and recovered when a worker dies. It takes about ten seconds, and ends with a summary that is
    read from the tables; exit code 1 if anything in it is not as it should be.

    \b
    Examples:
      rowlock demo
      rowlock demo --input docs --output demo-out
    """
    if importlib.util.find_spec("markdown_it") is None:
        raise CommandError(
            "the demo renders Markdown, and markdown-it-py is not installed; pip install 'rowlock[demo]'"
        )
    from rowlock.demo import show

    signal.signal(signal.SIGTERM, _end)
    raise typer.Exit(show(list(input or []), output, keep=keep))


def _end(_number: int, _frame: object) -> None:
    """SIGTERM is an exception, so that the demo's workers and its directory go with it."""
    raise SystemExit(143)
