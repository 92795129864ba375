"""The commands that change something: replay, purge, queues, and the audit that they leave (O2, O5, O6)."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.cli import Result, commands
from support.databases import Database
from support.jobtable import JobTable

Cli = Callable[..., Result]

PROGRAM = """
import os
from rowlock import App

app = App(os.environ["NEWS_URL"])

@app.job(name="a", max_attempts=3, timeout=5)
def a() -> None: ...

@app.job(name="mail", queue="mail", max_attempts=3, timeout=5)
def mail() -> None: ...
"""


@pytest.fixture
def cli(
    tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Cli]:
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "news.py").write_text(PROGRAM)
    (folder / "pyproject.toml").write_text('[tool.rowlock]\napp = "news:app"\n')
    monkeypatch.chdir(folder)
    monkeypatch.delenv("ROWLOCK_APP", raising=False)
    monkeypatch.setenv("NEWS_URL", database.url)
    with commands(capsys, folder) as run:
        yield run


@pytest.fixture
def folder_without(cli: Cli) -> None:
    """No pyproject.toml names the application."""
    Path("pyproject.toml").unlink()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("command", "done"), [("replay", "replayed"), ("purge", "purged")])
def test_dead_letters(cli: Cli, table: JobTable, command: str, done: str) -> None:  # contract: O2, O6
    first = table.dead(3, queue="a")
    rest = table.dead(2, queue="b")
    [running] = [hold.id for hold in table.running()]

    def gone(ids: list[int]) -> bool:
        rows = table.rows(ids)
        return rows == [] or {row.state for row in rows} == {"pending"}

    records = ("records", command)
    assert cli(*records, "--queue", "a", "--dry-run").out == f"3 records would be {done}\n"
    assert not gone(first)
    assert "give --yes, or --dry-run" in cli(*records, "--queue", "a").sentence
    assert not gone(first)
    assert cli(*records, "--queue", "a", "--limit", "1", "--yes").out == f"1 record {done}\n"
    assert gone(first[:1])
    assert not gone(first[1:])
    result = cli(*records, "--state", "dead", "--job", "a", "--older-than", "0s", "--queue", "a", "-y", "--by", "ann",
                 "--json")  # fmt: skip
    assert result.json == {"count": 2, "conflicts": 0, "dry_run": False}
    assert gone(first)
    assert cli(*records, str(rest[0])).out == f"1 record {done}\n"  # one that is named is not asked about
    assert "it is running, not dead or blocked" in cli(*records, str(running)).sentence
    assert "no record has the id 9999" in cli(*records, "9999").sentence
    for wrong in ((), ("1", "--queue", "a"), ("1", "--limit", "3"), ("--older-than", "soon", "-y")):
        assert cli(*records, *wrong).sentence
    assert cli(*records, "--state", "pending").code == 2
    found = cli("audit", "--json").json["items"]
    assert [(entry["action"], entry["count"], entry["by"]) for entry in found] == [
        (command, 1, None), (command, 2, "ann"), (command, 1, None),
    ]  # fmt: skip
    assert found[1]["detail"] == {"state": "dead", "job": "a", "queue": "a", "older_than": 0.0}


@pytest.mark.parametrize("command", ["replay", "purge", "release", "cancel"])
def test_nothing_to_do_is_no_question(cli: Cli, table: JobTable, command: str) -> None:  # contract: O2, O3, O4
    said = cli("records", command, "--job", "a")
    assert said.code == 0
    assert said.out.startswith("0 records ")
    assert cli("records", command, "--job", "a", "--json").json == {"count": 0, "conflicts": 0, "dry_run": False}


@pytest.mark.parametrize("command", ["replay", "purge", "release", "cancel"])
def test_the_id_and_the_application_stand_side_by_side(
    cli: Cli, table: JobTable, folder_without: None, command: str
) -> None:  # contract: O2, Z1
    assert cli("records", command, "news:app", "--job", "a").out.startswith("0 records ")
    assert "no record has the id 77" in cli("records", command, "77", "news:app").sentence
    assert "no record has the id 77" in cli("records", command, "77", "--app", "news:app").sentence
    for wrong in ("0", "-", "news", "9" * 30):
        assert "neither a record's id" in cli("records", command, wrong, "news:app").sentence


def test_what_is_named_stands_before_the_application(
    cli: Cli, table: JobTable, folder_without: None
) -> None:  # contract: H4, O5
    [id_] = table.dead(job="a")
    assert cli("records", "show", str(id_), "news:app").code == 0
    assert "is dead" in cli("records", "explain", str(id_), "news:app").out
    assert cli("queues", "pause", "mail", "news:app").out == "queue 'mail' is paused\n"
    assert cli("queues", "resume", "mail", "news:app").out == "queue 'mail' is not paused\n"
    assert "nowhere" in cli("schedules", "accept", "nowhere", "news:app").sentence


def test_a_conflict_is_told(cli: Cli, table: JobTable) -> None:  # contract: O2
    [old] = table.dead(key="k")
    [holder] = table.add(key="k")
    assert cli("records", "replay", "--state", "dead", "--yes").out == (
        "0 records replayed; 1 stay as they are, since active records have their keys\n"
    )
    assert f"record {holder}" in cli("records", "replay", str(old)).sentence


def test_who_sits_before_a_terminal_is_asked(cli: Cli, table: JobTable, monkeypatch: pytest.MonkeyPatch) -> None:
    # contract: O2
    table.dead(2)
    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    assert cli("records", "purge", "--state", "dead").code == 1
    assert len(table.rows()) == 2
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert "2 records purged" in cli("records", "purge", "--state", "dead").out
    assert table.rows() == []


def test_a_queue_is_paused_listed_and_resumed(cli: Cli, table: JobTable) -> None:  # contract: O5, O1, O6
    table.add(3, queue="mail")
    table.dead(2, queue="other")
    assert cli("queues", "pause", "mail", "--by", "ann").out == "queue 'mail' is paused\n"
    assert cli("queues", "pause", "mail").out == "queue 'mail' is paused, as it was before\n"
    assert table.claim(queue="mail") == []
    found = {queue["name"]: queue for queue in cli("queues", "list", "--json").json}
    assert list(found) == ["default", "mail", "other"]
    assert found["mail"]["paused_at"].endswith("Z")
    assert found["mail"]["workers"] == 4
    assert found["mail"]["counts"] == [
        {"queue": "mail", "state": "pending", "count": 3, "future": 0, "estimated": False, "due": 3}
    ]
    assert (found["other"]["paused_at"], found["other"]["workers"]) == (None, None)
    lines = [line.split() for line in cli("queues", "list").out.splitlines()]
    assert lines[0] == ["queue", "paused", "workers", "due", "future", "running", "dead", "blocked", "succeeded",
                        "cancelled"]  # fmt: skip
    assert lines[2][0] == "mail"
    assert lines[2][3:] == ["4", "3", "0", "0", "0", "0", "0", "0"]
    assert cli("queues", "resume", "mail", "--json").json == {"queue": "mail", "paused": False, "changed": True}
    assert cli("queues", "resume", "mail", "--json").json["changed"] is False
    assert "queue is" in cli("queues", "pause", " ").sentence
    assert [line.split()[3:] for line in cli("audit").out.splitlines()] == [
        ["of", "count", "by"], ["resume", "queue=mail", "1"], ["pause", "queue=mail", "1", "ann"],
    ]  # fmt: skip


def test_the_audit_is_filtered_and_paged(cli: Cli, table: JobTable) -> None:  # contract: O6
    for id_ in table.dead(3):
        cli("records", "purge", str(id_), "--by", "ann")
    cli("queues", "pause", "mail", "--by", "bob")
    page = cli("audit", "--action", "purge", "--limit", "2")
    assert len(page.out.splitlines()) == 3
    after = page.err.split("--after ")[1].strip()
    assert len(cli("audit", "--action", "purge", "--after", after, "--json").json["items"]) == 1
    assert [entry["action"] for entry in cli("audit", "--by", "bob", "--json").json["items"]] == ["pause"]
    assert cli("audit", "--action", "destroy").code == 2
