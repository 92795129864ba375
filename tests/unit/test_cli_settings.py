"""The settings file as the command reads it: strict, the only place that configures, the same as the object (M1)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rowlock import App
from rowlock.cli.lookup import VARIABLE
from support.cli import Result, commands

Cli = Callable[..., Result]

FILE: dict[str, Any] = {
    "database": {"default": {"url": "sqlite:///news.db"}},
    "runtime": {"mode": "worker"},
    "job": {"lease_ms": 5_000, "queues": {"mail": 2}},
}
APP = """
from rowlock import App
app = App(settings="config/setting.json")

@app.job(max_attempts=3, timeout=1, name="hello")
async def hello() -> None: ...
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VARIABLE, raising=False)
    (tmp_path / "config").mkdir()
    (tmp_path / "filed.py").write_text(APP)
    return tmp_path


@pytest.fixture
def write(folder: Path) -> Callable[[Any], None]:
    def write(settings: Any) -> None:
        text = settings if isinstance(settings, str) else json.dumps(settings)
        (folder / "config" / "setting.json").write_text(text)

    write(FILE)
    return write


@pytest.fixture
def cli(folder: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with commands(capsys, folder) as run:
        yield run


def test_the_file_is_what_the_command_shows_and_what_an_object_would_be(
    cli: Cli, folder: Path, write: Callable[[Any], None]
) -> None:
    # contract: M1
    shown = cli("settings", "filed:app", "--json").json
    assert shown["settings"]["job"] == {**shown["settings"]["job"], "lease_ms": 5_000, "queues": {"mail": 2}}
    assert shown["settings"]["job"]["poll_ms"] == 250
    assert set(shown["given"]) >= {"job.lease_ms", "runtime.mode"}
    (folder / "objected.py").write_text(APP.replace('"config/setting.json"', repr(FILE)))
    assert cli("settings", "objected:app", "--json").json["settings"] == shown["settings"]
    assert cli("check", "filed:app").code == 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"job": {"leese_ms": 5_000}}, "job.leese_ms"),
        ({"job": {"lease_ms": None}}, "job.lease_ms is null"),
        ({"job": {"lease_ms": 99}}, "job.lease_ms"),
        ({"database": {"default": {"url": {"env": "RL_NO_SUCH_VARIABLE"}}}}, "RL_NO_SUCH_VARIABLE"),
        ("{", "config/setting.json"),
    ],
    ids=["unknown key", "null", "out of bounds", "missing secret", "no JSON"],
)
@pytest.mark.parametrize("command", [["check"], ["migrate"], ["records", "list"], ["run", "--no-wait"]], ids=" ".join)
def test_a_file_that_is_wrong_stops_every_command_with_its_path(
    folder: Path, write: Callable[[Any], None], cli: Cli, command: list[str], change: Any, says: str
) -> None:
    # contract: M1, J5
    write(change if isinstance(change, str) else {**FILE, **change})
    if command[0] == "run":
        arguments = [sys.executable, "-m", "rowlock", *command, "filed:app"]
        ran = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
        code, said = ran.returncode, ran.stdout + ran.stderr
    else:
        done = cli(*command, "--app", "filed:app") if command[0] == "records" else cli(*command, "filed:app")
        code, said = done.code, done.out + done.err
    assert code == 1
    assert says in said
    assert "Traceback" not in said
    assert not (folder / "news.db").exists()


def test_no_environment_variable_overrides_it(
    cli: Cli, write: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    # contract: M1
    before = cli("settings", "filed:app", "--json").out
    for name in ("JOB_LEASE_MS", "LEASE_MS", "DATABASE_URL", "DATABASE_DEFAULT_URL", "URL", "MODE", "RUNTIME_MODE"):
        for prefix in ("ROWLOCK_", "ROWLOCK__", ""):
            monkeypatch.setenv(prefix + name, "S3CR3T")
    assert cli("settings", "filed:app", "--json").out == before
    assert "S3CR3T" not in before


def test_no_part_of_the_library_reads_the_environment_but_for_references_and_the_application() -> None:
    # contract: M1
    source = Path(sys.modules[App.__module__].__file__ or "").parent
    readers = {
        str(file.relative_to(source))
        for file in source.rglob("*.py")
        if re.search(r"os\.environ|getenv|environ\[", file.read_text()) and "demo" not in file.parts
    }
    assert readers <= {"model/settings_url.py", "cli/lookup.py", "testing/servers.py", "testing/plugin.py"}, readers


def test_flags_choose_what_runs_and_configure_nothing(cli: Cli) -> None:
    # contract: M1
    told = re.sub(r"\x1b\[[\d;]*m", "", cli("run", "--help").out)
    options = set(re.findall(r"--[a-z][a-z-]*", told))
    chosen = {"--app", "--mode", "--queue", "--processes", "--wait", "--no-wait", "--uvloop", "--no-uvloop", "--help"}
    assert options <= chosen | {"--debug"}
    assert {"--mode", "--queue"} <= options


@pytest.mark.parametrize(
    ("file", "flag", "says"),
    [
        ("worker", "all", "narrow"),
        ("worker", "api", "narrow"),
        ("api", "worker", "narrow"),
        (None, None, "runtime.mode is missing"),
    ],
)
def test_a_mode_on_the_command_line_only_narrows_the_files(
    folder: Path, write: Callable[[Any], None], file: str | None, flag: str | None, says: str
) -> None:
    # contract: M1, M3
    write({**FILE, "runtime": {"mode": file} if file else {}})
    arguments = [sys.executable, "-m", "rowlock", "run", "filed:app", "--no-wait", *(["--mode", flag] if flag else [])]
    ran = subprocess.run(
        arguments, cwd=folder, capture_output=True, text=True, timeout=60, check=False, env={**os.environ}
    )
    assert ran.returncode == 1
    assert says in ran.stderr
    assert not (folder / "news.db").exists()
