"""The package's names: imported when asked for, and the same for a program as for a type checker."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import rowlock
from rowlock.runtime.signals import Signals


def test_every_public_name_is_there_and_is_what_a_type_checker_sees() -> None:
    tree = ast.parse(Path(rowlock.__file__).read_text(encoding="utf-8"))
    typed = {
        name.name: node.module
        for block in ast.walk(tree)
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    assert typed == rowlock._HOMES
    assert sorted(rowlock.__all__) == sorted(typed)
    for name in rowlock.__all__:
        assert getattr(rowlock, name).__name__ == name
    assert set(rowlock.__all__) <= set(dir(rowlock))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'rowlock' has no attribute 'Nothing'"):
        _ = rowlock.Nothing


def test_importing_the_package_imports_nothing_else() -> None:
    code = (
        "import sys, rowlock; print(sorted(name for name in sys.modules if name.startswith(('rowlock', 'sqlalchemy'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "['rowlock']"


def test_a_signal_whose_exit_was_swallowed_stops_the_worker_when_it_begins() -> None:
    # contract: M6
    class Loop:
        def call_soon(self, call: object) -> None:
            called.append(call)

    called: list[object] = []
    signals = Signals()
    with pytest.raises(SystemExit):
        signals._handle(15, None)
    signals.attach(Loop(), lambda: called.append("gate"), lambda: None)  # type: ignore[arg-type]
    assert called[0] == "gate"
    assert len(called) == 2
