"""The types as a user meets them: pyright in strict mode over `good_*.py` and `bad_*.py` beside this file.

A bad file has errors on exactly the lines that end in `# error`.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import rowlock
from rowlock import App, Context, Jobs

HERE = Path(__file__).parent
GOOD = sorted(HERE.glob("good_*.py"))
BAD = sorted(HERE.glob("bad_*.py"))
Report = dict[str, dict[int, list[str]]]


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """What pyright says, by file and line: one run over all files, as its start is what costs."""
    project = tmp_path_factory.mktemp("project")
    for path in GOOD + BAD:
        shutil.copy(path, project)
    options: dict[str, Any] = {
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
        # A user who drops a coroutine, or writes an expression for nothing, is told so.
        "reportUnusedCoroutine": "error",
        # The examples declare jobs in their own classes and functions and never use them.
        "reportUnusedFunction": "none",
        "reportUnusedClass": "none",
    }
    (project / "pyrightconfig.json").write_text(json.dumps(options), encoding="utf-8")
    ran = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(project)],
        capture_output=True,
        text=True,
        timeout=110,
    )
    try:
        found = json.loads(ran.stdout)
    except ValueError:
        pytest.fail(f"pyright did not run: {ran.stdout}\n{ran.stderr}")
    assert found["summary"]["filesAnalyzed"] == len(GOOD) + len(BAD), found["summary"]
    lines: Report = defaultdict(lambda: defaultdict(list))
    for each in found["generalDiagnostics"]:
        if each["severity"] == "error":
            lines[Path(each["file"]).name][each["range"]["start"]["line"] + 1].append(each["message"])
    return lines


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.name)
def test_what_is_right_has_no_error(path: Path, reported: Report) -> None:
    """contract: J2 J3 E1 (C92)"""
    assert dict(reported.get(path.name, {})) == {}


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.name)
def test_what_is_wrong_has_an_error_on_its_line(path: Path, reported: Report) -> None:
    """contract: J2 J3 E1 E2 (C92)"""
    text = path.read_text(encoding="utf-8").splitlines()
    marked = {number for number, line in enumerate(text, 1) if line.endswith("# error")}
    found = reported.get(path.name, {})
    assert marked, "nothing is marked in this file"
    assert {line: found[line] for line in found if line not in marked} == {}, "an error where none is marked"
    assert {line: text[line - 1] for line in marked if line not in found} == {}, "no error where one is marked"


def test_the_types_are_shipped() -> None:
    """contract: E1 (C92)"""
    assert (Path(rowlock.__file__).parent / "py.typed").is_file()


def section(name: str) -> list[str]:
    """The marked lines of `bad_jobs.py` under a heading, but for those within its coroutine."""
    lines = (HERE / "bad_jobs.py").read_text(encoding="utf-8").partition(f"# --- {name} -")[2].partition("\n# --- ")[0]
    marked = [line for line in lines.splitlines() if line.endswith("# error") and not line.startswith(" ")]
    return [line.removesuffix("# error").strip() for line in marked]


@pytest.mark.parametrize("line", [*section("calling")[:-1], *section("enqueueing")])
def test_what_is_wrong_is_a_type_error_before_a_write_too(line: str, tmp_path: Path) -> None:
    """contract: J2 E1 Z1 (C92); a handler is the plain function, which Python does not check"""

    @dataclass(frozen=True)
    class Publish:
        article: int

    @dataclass(frozen=True)
    class Other:
        article: int

    jobs, app = Jobs(), App(f"sqlite:///{tmp_path}/bad.db")

    @jobs.job(max_attempts=5, timeout=30)
    def publish(input: Publish, ctx: Context) -> None: ...

    @jobs.job(max_attempts=5, timeout=30)
    def cleanup() -> None: ...

    remote = jobs.declare("media.render", input=Publish, max_attempts=3, timeout=600)
    names = {"publish": publish, "cleanup": cleanup, "remote": remote, "Publish": Publish, "Other": Other}
    app.include(jobs)
    app.migrate()
    try:
        with pytest.raises((TypeError, rowlock.DeclarationError)):
            eval(line, names)
        if ".enqueue" in line:
            with pytest.raises(TypeError):
                asyncio.run(eval(line.replace(".enqueue", ".aenqueue"), names))
        assert app.records.list().items == []
    finally:
        app.close()
