"""Runs the code of a documentation page: `python -m support.pages PAGE`, in the folder in which it shall work.

Blocks of one page run in order and share one namespace. ```python is executed (top-level `await` works); the `$ ` lines
of ```console and ```shell go to bash and must end with 0. A comment before a block changes that:

    <!-- docs: skip REASON -->       not run
    <!-- docs: file PATH -->         written to this file instead, in any language; later blocks can import or read it
    <!-- docs: exit CODE -->         the commands end with this code
    <!-- docs: until TEXT -->        the command runs until it prints this, gets SIGTERM, and must then end with 0
    <!-- docs: raises NAME -->       the block ends with this exception
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<language>[\w+-]*)")
_MARKER = re.compile(r"^\s*<!-- docs: (?P<verb>skip|file|exit|until|raises) (?P<rest>.+?) *-->\s*$")
_RUN = ("python", "console", "shell")
BOUND = 60  # seconds for one command


class BadPage(Exception):
    """A block did not do what the page says."""


@dataclass(frozen=True)
class Block:
    language: str
    code: str
    line: int  # of the first line of code, from 1
    verb: str | None = None
    rest: str = ""


def blocks(text: str) -> Iterator[Block]:
    """All fenced blocks of a page that a marker or their language makes ours."""
    lines = text.splitlines()
    number, marker = 0, None
    while number < len(lines):
        line = lines[number]
        number += 1
        if found := _MARKER.match(line):
            marker = found
        elif fence := _FENCE.match(line):
            first, closing = number, re.compile(rf"^ *{fence['fence']}`*~*\s*$")
            while number < len(lines) and not closing.match(lines[number]):
                number += 1
            code = "\n".join(one.removeprefix(fence["indent"]) for one in lines[first:number]) + "\n"
            number += 1
            if marker or fence["language"] in _RUN:
                verb, rest = (marker["verb"], marker["rest"]) if marker else (None, "")
                yield Block(fence["language"], code, first + 1, verb, rest)
            marker = None
        elif line.strip():
            if "<!-- docs:" in line:
                raise BadPage(f"line {number}: not a marker that is known: {line.strip()}")
            marker = None


def commands(code: str) -> list[str]:
    """The `$ ` lines; a backslash at the end of one goes on in the next."""
    found: list[str] = []
    goes_on = False
    for line in code.splitlines():
        if goes_on:
            found[-1] += "\n" + line
        elif line.startswith("$ "):
            found.append(line[2:])
        else:
            continue
        goes_on = line.endswith("\\")
    return found


class Page:
    """One page on its way through its blocks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # A module, so that annotations of classes that the page declares can be resolved.
        self.module = ModuleType(re.sub(r"\W", "_", path.stem.lower()))
        sys.modules[self.module.__name__] = self.module
        self.env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}

    def run(self) -> None:
        with asyncio.Runner() as runner:
            for block in blocks(self.path.read_text(encoding="utf-8")):
                where = f"{self.path.name}:{block.line}"
                if block.verb == "skip":
                    print(f"{where}: skipped: {block.rest}")
                elif block.verb == "file":
                    Path(block.rest).parent.mkdir(parents=True, exist_ok=True)
                    Path(block.rest).write_text(block.code, encoding="utf-8")
                elif block.language == "python":
                    self._python(block, where, runner)
                else:
                    for command in commands(block.code):
                        self._command(command, block, where)

    def _python(self, block: Block, where: str, runner: asyncio.Runner) -> None:
        source = "\n" * (block.line - 1) + block.code  # so that a traceback shows the page's own lines
        code = compile(source, str(self.path), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        wanted = block.rest if block.verb == "raises" else None
        try:
            if code.co_flags & inspect.CO_COROUTINE:
                runner.run(eval(code, self.module.__dict__))
            else:
                exec(code, self.module.__dict__)
        except Exception as failure:
            if wanted not in [kind.__name__ for kind in type(failure).__mro__]:
                raise
        else:
            if wanted:
                raise BadPage(f"{where}: ends without the {wanted} that it announces")

    def _command(self, command: str, block: Block, where: str) -> None:
        until = block.rest if block.verb == "until" else None
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", command if until is None else f"exec {command}"],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        limit = threading.Timer(BOUND, process.kill)
        limit.start()
        printed = ""
        with process:
            assert process.stdout
            for line in process.stdout:
                printed += line
                if until and until in line:
                    process.send_signal(signal.SIGTERM)
        limit.cancel()
        expected = int(block.rest) if block.verb == "exit" else 0
        if process.returncode != expected:
            raise BadPage(
                f"{where}: `{command}` ended with {process.returncode}, not {expected}. It printed:\n{printed}"
            )
        if until and until not in printed:
            raise BadPage(f"{where}: `{command}` ended without printing {until!r}. It printed:\n{printed}")


if __name__ == "__main__":
    Page(Path(sys.argv[1])).run()
