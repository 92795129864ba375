"""Where in a program something is declared: for messages, for default names, and for annotations in local scopes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import PurePath
from types import FrameType
from typing import Any, NamedTuple


class Site(NamedTuple):
    """A place in the source."""

    module: str
    """The name under which other programs import it."""
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def caller() -> FrameType:
    """The frame that called the function which calls this."""
    return sys._getframe(2)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]  # inspect's way may answer None


def site_of(frame: FrameType) -> Site:
    """Where `frame` stands."""
    return Site(import_name(frame.f_globals), frame.f_code.co_filename, frame.f_lineno)


def local_names(frame: FrameType) -> dict[str, Any]:
    """The local names of the code that declares; a module's are its globals, which need no mention."""
    return {} if frame.f_locals is frame.f_globals else dict(frame.f_locals)


def import_name(module: Mapping[str, Any]) -> str:
    """The name under which other programs import a module, given its globals.

    A name that records are stored under must not depend on how the program was started: the module that was run as
    `python -m newsroom.main` or `python main.py` is called `__main__` only there, and `newsroom.main` or `main` in
    every process that imports it.
    """
    name: str = module.get("__name__") or "__main__"
    if name not in ("__main__", "__mp_main__"):
        return name
    spec = module.get("__spec__")
    if spec is not None and spec.name != name:
        return str(spec.name)
    file: str | None = module.get("__file__")
    return PurePath(file).stem if file else name
