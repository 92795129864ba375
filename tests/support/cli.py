"""The command in this process, as a user would call it: `result = cli("records", "list", "--json")`."""

from __future__ import annotations

import json
import signal
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rowlock.cli import failing, main
from rowlock.model import group


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def sentence(self) -> str:
        """What a failed command says: one line on stderr, and nothing else."""
        assert self.code == 1, self
        assert self.out == "", self
        assert "Traceback" not in self.err, self
        assert self.err.startswith("rowlock: "), self
        assert self.err.count("\n") == 1, self
        return self.err


@contextmanager
def commands(capsys: pytest.CaptureFixture[str], folder: Path) -> Iterator[Callable[..., Result]]:
    """Commands run in `folder`; the modules that they import from it are forgotten afterwards.

    They see the groups that are declared from here on, and not those of other test modules.
    """
    path, modules, groups = list(sys.path), set(sys.modules), group._groups
    group._groups = weakref.WeakSet()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def run(*arguments: str) -> Result:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        printed = capsys.readouterr()
        return Result(int(ended.value.code or 0), printed.out, printed.err)

    try:
        yield run
    finally:
        for number, handler in handlers.items():  # `demo` has one of its own, which would outlive the command here
            signal.signal(number, handler)
        failing._Debug.on = False
        group._groups = groups
        sys.path[:] = path
        for name in set(sys.modules) - modules:
            file = getattr(sys.modules[name], "__file__", None)
            if file and Path(file).is_relative_to(folder):
                del sys.modules[name]
