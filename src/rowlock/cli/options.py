"""Arguments and options that several commands take."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

_APP = "module:name of the application. If not given: $ROWLOCK_APP, else \\[tool.rowlock] app in pyproject.toml."

Application = Annotated[
    str | None,
    typer.Argument(
        metavar="APP",
        show_default=False,
        help=_APP,
    ),
]
ApplicationOption = Annotated[
    str | None, typer.Option("--app", "-a", metavar="APP", show_default=False, help="The same as an option.")
]
DatabaseOption = Annotated[
    str | None,
    typer.Option("--database", "-d", metavar="NAME", show_default=False, help="The database, if there are several."),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, for programs.")]


def unwrapped(command: Callable[..., Any]) -> str:
    """The docstring as help: the lines of a paragraph joined, so that the terminal's width breaks them anew."""
    paragraphs = inspect.getdoc(command).split("\n\n")  # pyright: ignore[reportOptionalMemberAccess]  # each has one
    return "\n\n".join(each if each.startswith("\b") else " ".join(each.split()) for each in paragraphs)
