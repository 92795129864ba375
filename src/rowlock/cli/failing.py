"""How a command fails: one sentence on stderr and exit code 1; a traceback only if asked for (Z1)."""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import typer

from rowlock.errors import RowlockError

P = ParamSpec("P")
T = TypeVar("T")


class CommandError(RowlockError):
    """A command can not do what it was asked for."""


class _Debug:
    on = False


def show_tracebacks() -> None:
    """Show the traceback of a failure as well, for the rest of this process: `--debug`."""
    _Debug.on = True


def sentences(command: Callable[P, T]) -> Callable[P, T]:
    """Wrap a command so that whatever it raises ends it with a sentence, and exit code 1."""

    @functools.wraps(command)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return command(*args, **kwargs)
        except (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError):
            raise
        except Exception as error:  # noqa: BLE001 - nobody else tells the user
            say(error)
            raise typer.Exit(1) from None

    return guarded


def say(error: Exception) -> None:
    """The sentence of a failure. Of errors that are not Rowlock's only the class and the place: texts have secrets."""
    from rowlock.runtime.describe import brief

    if _Debug.on:
        traceback.print_exception(error)
    more = "" if _Debug.on or isinstance(error, RowlockError) else "; --debug shows the traceback"
    sys.stderr.write(f"rowlock: {brief(error)}{more}\n")
