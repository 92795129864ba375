"""The command `rowlock`. Nothing is imported before it is needed: `rowlock --help` must not wait for SQLAlchemy."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rowlock.runtime.signals import SIGNALS


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command with these arguments (those of the process if None). Ends by SystemExit with its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if "run" in given:  # the only one that drains; any other is simply broken off
        SIGNALS.install()  # M6: from the command's first instruction on

    from rowlock.cli import failing
    from rowlock.cli.root import root

    if "--debug" in given:
        given.remove("--debug")  # it may stand anywhere
        failing.show_tracebacks()
    root(given, prog_name="rowlock")
