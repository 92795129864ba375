"""The command: how it finds the application, how it fails, what it prints, and that it starts at once."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import get_args

import pytest

from rowlock import State
from rowlock.cli import output, records
from rowlock.cli.failing import CommandError
from rowlock.cli.lookup import VARIABLE
from rowlock.cli.spans import span
from support.cli import Result, commands

Cli = Callable[..., Result]

APP = """
from rowlock import App
app = App("sqlite:///news.db")
other = App("sqlite:///other.db")

@app.job(max_attempts=3, timeout=5, name="hello")
async def hello() -> None: ...
"""
COMMANDS = [
    ["run"],
    ["check"],
    ["migrate"],
    ["settings"],
    ["demo"],
    ["records", "list"],
    ["records", "show"],
    ["records", "counts"],
    ["schedules", "list"],
    ["schedules", "accept"],
    ["schedules", "forget"],
    ["schedules", "explain"],
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that a command is started in, with an application in the module `news`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VARIABLE, raising=False)
    (tmp_path / "news.py").write_text(APP)
    return tmp_path


@pytest.fixture
def cli(folder: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with commands(capsys, folder) as run:
        yield run


# --- starting ------------------------------------------------------------------------------------------------


def test_help_is_there_before_sqlalchemy_is() -> None:
    # contract: M6, a command listens for signals before it imports what takes long
    code = (
        "import sys\nfrom rowlock.cli import main\n"
        "try: main(['--help'])\nfinally: sys.stderr.write(repr({'sqlalchemy', 'asyncio'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "set()")
    assert "Durable jobs" in done.stdout


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_each_command_explains_itself_with_an_example(cli: Cli, command: list[str]) -> None:
    told = cli(*command, "--help")
    assert told.code == 0
    assert "Example" in told.out
    assert f"rowlock {' '.join(command)}" in told.out


def test_python_m_rowlock_is_the_same_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rowlock", "--version"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.startswith("rowlock ")


def test_a_shell_can_complete_it() -> None:
    env = {**os.environ, "_ROWLOCK_COMPLETE": "complete_bash", "COMP_WORDS": "rowlock rec", "COMP_CWORD": "1"}
    command = [sys.executable, "-c", "from rowlock.cli import main; main()"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["records"]


# --- finding the application ---------------------------------------------------------------------------------


def test_the_application_is_found_by_argument_option_variable_or_pyproject(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # contract: M3
    def database(*arguments: str) -> str:
        return cli("settings", "--json", *arguments).json["settings"]["database"]["default"]["url"]

    (folder / "pyproject.toml").write_text('[tool.rowlock]\napp = "news:other"\n')
    assert database() == "sqlite:///other.db"
    monkeypatch.setenv(VARIABLE, "news:app")
    assert database() == "sqlite:///news.db"
    assert database("news:other") == "sqlite:///other.db"
    assert database("--app", "news:other") == "sqlite:///other.db"
    assert database("-a", "news:app", "news:app") == "sqlite:///news.db"


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("news", "APP 'news' does not name an application; write module:name"),
        ("news:", "does not name an application"),
        ("news.py:app", "there is no module 'news.py'"),
        ("nowhere.at.all:app", "APP 'nowhere.at.all:app': there is no module 'nowhere' in "),
        ("news:ap", "the module news has no 'ap' (an App there is 'app')"),
        ("news:hello", "'news:hello' is of type rowlock.model.job.Job, not a rowlock.App"),
        ("news:app.jobs", "is of type builtins.mappingproxy, not a rowlock.App"),
    ],
)
def test_a_wrong_reference_is_one_sentence(cli: Cli, reference: str, says: str) -> None:
    assert says in cli("check", reference).sentence


def test_without_any_reference_it_says_where_one_can_stand(cli: Cli) -> None:
    said = cli("records", "counts").sentence
    assert "give APP" in said
    assert "$ROWLOCK_APP" in said
    assert "[tool.rowlock] in pyproject.toml" in said


def test_two_references_that_differ_are_refused(cli: Cli) -> None:
    assert "APP is 'news:app' and --app is 'news:other'" in cli("check", "news:app", "--app", "news:other").sentence


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[tool.rowlock", "pyproject.toml can not be read"),
        ("[tool.rowlock]\napp = 3\n", "app under [tool.rowlock] is no text"),
        ("[tool]\nrowlock = 3\n", "no application is named"),
        ("[project]\nname = 'x'\n", "no application is named"),
    ],
)
def test_a_pyproject_that_names_none_is_one_sentence(cli: Cli, folder: Path, text: str, says: str) -> None:
    (folder / "pyproject.toml").write_text(text)
    assert says in cli("check").sentence


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import json\n\nnothing_here\n", "importing broken fails: NameError: name 'nothing_here' is not defined"),
        ("import not_installed\n", "ModuleNotFoundError: No module named 'not_installed' (broken.py:1)"),
        ("def f(:\n", "SyntaxError"),
        ("raise SystemExit(0)\n", "SystemExit: 0 (broken.py:1)"),
        ("raise ValueError('postgresql://me:S3CR3T@host/x')\n", "ValueError: postgresql://me:***@host/x (broken.py:1)"),
    ],
)
def test_a_module_that_fails_is_one_sentence_with_its_place(cli: Cli, folder: Path, text: str, says: str) -> None:
    (folder / "broken.py").write_text(text)
    said = cli("migrate", "broken:app").sentence
    assert says in said
    assert "S3CR3T" not in said


def test_debug_shows_the_traceback_wherever_it_stands(cli: Cli, folder: Path) -> None:
    (folder / "broken.py").write_text("1 / 0\n")
    for arguments in (("--debug", "migrate", "broken:app"), ("migrate", "broken:app", "--debug")):
        said = cli(*arguments)
        assert said.code == 1
        assert "Traceback" in said.err
        assert "ZeroDivisionError: division by zero" in said.err


# --- check ---------------------------------------------------------------------------------------------------


def test_check_finds_nothing_in_a_good_application_and_touches_no_table(cli: Cli, folder: Path) -> None:
    # contract: J6
    done = cli("check", "news:app")
    assert (done.code, done.out) == (0, "")
    assert "nothing found: 1 job, 1 database" in done.err
    assert not (folder / "news.db").exists()


def test_check_prints_a_line_for_each_finding(cli: Cli, folder: Path) -> None:
    # contract: J6, J11, M2
    (folder / "bad.py").write_text(
        "from rowlock import App, Jobs\n"
        "jobs = Jobs(database='reports')\n"
        "@jobs.job(max_attempts=3, timeout=5)\n"
        "def report() -> None: ...\n"
        "forgotten = Jobs()\n"
        "@forgotten.job(max_attempts=3, timeout=5)\n"
        "def lost() -> None: ...\n"
        "app = App('sqlite:///a.db', include=[jobs], settings={'job': {'queues': {'mail': 2}}})\n"
        "app.queue('mail', workers=3)\n"
    )
    done = cli("check", "bad:app")
    lines = done.out.splitlines()
    assert done.code == 1
    assert done.err == ""
    assert [line.split(" ")[:2] for line in lines] == [
        ["bad.py:8:", "queue"],
        ["bad.py:3:", "database"],
        ["bad.py:5:", "not-included"],
    ]


def test_check_reports_what_a_declaration_refuses_where_it_stands(cli: Cli, folder: Path) -> None:
    # contract: J5, J6
    (folder / "bad.py").write_text(
        "from rowlock import App\n"
        "app = App('sqlite:///a.db')\n\n"
        "@app.job(max_attempts=0, timeout=5)\n"
        "def report() -> None: ...\n"
    )
    done = cli("check", "bad:app")
    assert done.code == 1
    assert done.out.startswith("bad.py:4: declaration ")
    assert "max_attempts" in done.out
    assert done.out.count("\n") == 1


def test_check_wants_a_mode_in_the_file_of_a_program_with_jobs(cli: Cli, folder: Path) -> None:
    # contract: M3, J6
    (folder / "setting.json").write_text('{"database": {"default": {"url": "sqlite:///a.db"}}}')
    (folder / "filed.py").write_text(APP.replace('"sqlite:///news.db"', 'settings="setting.json"'))
    done = cli("check", "filed:app")
    assert (done.code, done.err) == (1, "")
    assert done.out.startswith("setting.json:1: mode setting.json: runtime.mode is missing")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            "a.enqueue(connection=create_engine('sqlite:///a.db').connect())",
            "import database 'default' (sqlite:///a.db)",
        ),
        ("a()", "declaration job 'a'"),
        ("App(settings={'job': {'poll_ms': 0}})", "settings "),
        ("create_engine('nothing://')", "import APP 'mine:app'"),
    ],
)
def test_check_names_the_line_of_the_users_own_code(cli: Cli, folder: Path, line: str, says: str) -> None:
    # contract: J6, where the error comes through Rowlock, SQLAlchemy and the standard library
    (folder / "mine.py").write_text(
        "from rowlock import App\nfrom sqlalchemy import create_engine\napp = App('sqlite:///a.db')\n"
        f"@app.job(max_attempts=3, timeout=5, name='a')\ndef a() -> None: ...\n{line}\n"
    )
    done = cli("check", "mine:app")
    assert done.code == 1
    assert done.out.startswith(f"mine.py:6: {says}"), done.out


def test_check_passes_a_program_that_only_enqueues(cli: Cli, folder: Path) -> None:
    # contract: J8
    (folder / "api.py").write_text(
        "from rowlock import App\napp = App('sqlite:///a.db')\napp.declare('render', max_attempts=3, timeout=5)\n"
    )
    assert cli("check", "api:app").code == 0


# --- settings ------------------------------------------------------------------------------------------------


def test_settings_show_what_holds_where_it_is_from_and_its_bounds(cli: Cli, folder: Path) -> None:
    # contract: M1, M2
    (folder / "set.py").write_text(
        "from rowlock import App\n"
        "app = App(settings={'database': {'default': {'url': 'postgresql://me:S3CR3T@host/x?sslpassword=S3CR3T'},"
        " 'b': {'url': {'env': 'B_URL'}}}, 'job': {'lease_ms': 5000, 'queues': {'mail': 2}}})\n"
    )
    os.environ["B_URL"] = "sqlite:///b.db"
    try:
        text, document = cli("settings", "set:app"), cli("settings", "set:app", "--json")
    finally:
        del os.environ["B_URL"]
    assert "S3CR3T" not in text.out + text.err + document.out
    rows = {line.split()[0]: line.split()[1:] for line in text.out.splitlines()}
    assert rows["job.lease_ms"] == ["5000", "settings", "100", "to", "7,200,000"]
    assert rows["job.poll_ms"] == ["250", "default", "1", "to", "60,000"]
    assert rows["job.queues.mail"] == ["2", "settings", "1", "to", "256"]
    assert rows["database.default.url"] == ["postgresql://me:***@host/x?sslpassword=***", "settings"]
    assert rows["database.b.url"] == ["env", "B_URL", "settings"]
    found = document.json
    assert found["settings"]["job"]["lease_ms"] == 5000
    assert found["bounds"]["job.lease_ms"] == {"low": 100, "high": 7_200_000}
    assert found["bounds"]["runtime.mode"] == {"words": ["api", "worker", "all"]}
    assert "job.lease_ms" in found["given"]


# --- running -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--mode", "api"], "mode 'api' serves HTTP, and settings names no application: http.app is missing (M3)"),
        (["--queue", "nowhere"], "queue 'nowhere' is not served by this program"),
    ],
)
def test_run_refuses_what_the_program_can_not_do(folder: Path, arguments: list[str], says: str) -> None:
    # contract: M3
    command = [sys.executable, "-m", "rowlock", "run", "news:app", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("rowlock: ")
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "news.db").exists()


def test_run_refuses_a_setting_that_would_have_no_effect() -> None:
    # contract: J1, M1
    from rowlock import App
    from rowlock.errors import StartRefused
    from rowlock.runtime.start import mode_of

    app = App(settings={"database": {"default": {"url": "sqlite:///x.db"}}, "health": {"port": 9090}})
    with pytest.raises(StartRefused, match=r"health\.port is 9090, .* leave health out"):
        mode_of(app, None)


def test_uvloop_that_is_not_there_is_refused_with_its_remedy(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("rowlock.runtime.signals.SIGNALS.install", lambda: None)
    assert "pip install 'rowlock[fast]'" in cli("run", "news:app", "--uvloop").sentence


# --- small things --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("15m", 900), ("12h", 43_200), ("7d", 604_800), ("2 w", 1_209_600)]
)
def test_a_span_is_a_number_and_a_unit(text: str, seconds: int) -> None:
    assert span(text, "--older-than") == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "h", "1.5h", "-1h", "1 hour", "999999999999y", "٣h"])
def test_any_other_span_is_refused_by_its_name(text: str) -> None:
    with pytest.raises(CommandError, match="--older-than is"):
        span(text, "--older-than")


def test_the_states_on_the_command_line_are_those_that_there_are() -> None:
    # contract: S3
    assert get_args(records.States) == tuple(State)


def test_stored_text_can_not_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    output.table(("key",), [("a\x1b[2Jb\nc",)])
    assert capsys.readouterr().out == "key\na\\x1b[2Jb\\nc\n"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_drawn_table_in_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "TERM", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys, "stdout", Terminal())
    output.table(("state", "key"), [("dead", "[red]"), ("succeeded", "b")])
    text = sys.stdout.getvalue()
    assert "\x1b[31mdead" in text
    assert "[red]" in text
