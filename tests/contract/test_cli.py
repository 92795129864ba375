"""The command on every database: what it prints of records and tables, and what it does when there is no database."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import URL, make_url

from support.cli import Result, commands
from support.databases import Database
from support.proxy import Proxy
from support.urls import plain
from support.waiting import BOUND, wait_until

Cli = Callable[..., Result]

PROGRAM = """
import os
from dataclasses import dataclass
from rowlock import App, Dead, Jobs, SafeError

app = App(os.environ["NEWS_URL"])

@dataclass(frozen=True)
class Publish:
    article: int
    token: str = "S3CR3T"

@app.job(name="news.publish", max_attempts=3, timeout=5)
async def publish(input: Publish) -> None:
    if input.article == 1:
        raise ValueError(input.token)

@app.job(name="mail", queue="mail", max_attempts=3, timeout=5)
def mail(input: Publish) -> None: ...

@app.job(name="doomed", max_attempts=3, timeout=5)
async def doomed(input: Publish) -> Dead:
    return Dead("no such article")
"""


@pytest.fixture
def folder(tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where commands run, with the program as the module `news`; it is the application that they find."""
    made = tmp_path / "program"
    made.mkdir()
    (made / "news.py").write_text(PROGRAM)
    (made / "pyproject.toml").write_text('[tool.rowlock]\napp = "news:app"\n')
    monkeypatch.chdir(made)
    monkeypatch.delenv("ROWLOCK_APP", raising=False)
    monkeypatch.setenv("NEWS_URL", database.url)
    return made


@pytest.fixture
def cli(folder: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    with commands(capsys, folder) as run:
        yield run


@pytest.fixture
def news(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The program in this process, its tables made."""
    monkeypatch.syspath_prepend(folder)
    import news  # type: ignore[import-not-found]

    news.app.migrate()
    yield news
    news.app.close()


class Running:
    """`python -m rowlock run` in a process of its own."""

    def __init__(self, folder: Path, url: str, *arguments: str) -> None:
        env = {**os.environ, "NEWS_URL": url}
        self.log = folder / "run.log"
        with self.log.open("wb") as log:
            command = [sys.executable, "-m", "rowlock", "run", *arguments]
            self.process = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log)

    @property
    def said(self) -> str:
        return self.log.read_text()

    def wait_for(self, text: str) -> None:
        wait_until(lambda: text in self.said or self.process.poll() is not None, BOUND, lambda: f"{text}: {self.said}")
        assert text in self.said, self.said

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(BOUND)


@pytest.fixture
def run(folder: Path) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def start(url: str, *arguments: str) -> Running:
        started.append(Running(folder, url, *arguments))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()
        print(each.said)


# --- migrate -------------------------------------------------------------------------------------------------


def test_migrate_says_what_it_made_and_check_what_is_missing(cli: Cli, engine: sa.Engine, database: Database) -> None:
    # contract: S1
    fresh = cli("migrate", "--check")
    assert fresh.code == 1
    assert "default (" in fresh.out
    assert "run `rowlock migrate`" in fresh.out

    made = cli("migrate")
    assert made.code == 0
    assert re.match(r"default \(.*\): made .*rowlock_job\b", made.out)
    assert "nothing to do" in cli("migrate").out
    assert cli("migrate", "--check").code == 0

    with engine.begin() as connection:
        on = " ON rowlock_job" if connection.dialect.name in {"mysql", "mariadb"} else ""
        connection.execute(sa.text(f"DROP INDEX rowlock_job_due{on}"))
    found = cli("migrate", "--check", "--json")
    assert found.code == 1
    assert "rowlock_job_due" in found.json["default"]["problems"][0]
    assert cli("migrate", "--json").json == {"default": {"made": ["rowlock_job_due"]}}
    assert cli("migrate", "--check", "--json").json == {"default": {"problems": []}}


# --- records -------------------------------------------------------------------------------------------------


def test_records_are_listed_by_every_filter_newest_first_and_paged(cli: Cli, news: Any) -> None:
    # contract: O1
    first = news.publish.enqueue(news.Publish(2), key="a b\x1b[2J", headers={"trace": "1"}).id
    future = news.publish.enqueue(news.Publish(3), delay=timedelta(days=1)).id
    other = news.mail.enqueue(news.Publish(4)).id

    def ids(*arguments: str) -> list[int]:
        listed = cli("records", "list", "--json", *arguments)
        assert listed.code == 0, listed
        return [record["id"] for record in listed.json["items"]]

    assert ids() == [other, future, first]
    assert ids("--job", "news.publish") == [future, first]
    assert ids("--queue", "mail", "--state", "pending") == [other]
    assert ids("--key", "a b\x1b[2J") == [first]
    assert ids("--older-than", "1h") == []
    assert ids("--older-than", "0s") == [other, future, first]
    assert ids("--category", "failed") == []
    page = cli("records", "list", "--json", "--limit", "2").json
    assert page["next"] == future
    assert ids("--after", str(page["next"])) == [first]

    text = cli("records", "list", "--limit", "2")
    assert [line.split()[0] for line in text.out.splitlines()] == ["id", str(other), str(future)]
    assert f"--after {future}" in text.err
    assert "\x1b" not in cli("records", "list").out


def test_a_record_is_shown_without_its_payload_unless_asked_for(cli: Cli, news: Any, engine: sa.Engine) -> None:
    # contract: O1, S6
    id = str(news.publish.enqueue(news.Publish(2), key="k", headers={"trace": "1"}).id)
    shown = cli("records", "show", id, "--json").json
    assert shown["job"] == "news.publish"
    assert shown["headers"] == {"trace": "1"}
    assert (shown["state"], shown["attempt"], shown["max_attempts"], shown["timeout_ms"]) == ("pending", 0, 3, 5000)
    assert datetime.fromisoformat(shown["created_at"]).utcoffset() == timedelta(0)
    assert "payload" not in shown
    assert "token" not in shown
    for arguments in ([], ["--json"]):
        assert "S3CR3T" not in cli("records", "show", id, *arguments).out
        assert "S3CR3T" in cli("records", "show", id, "--payload", *arguments).out
    assert json.loads(cli("records", "show", id, "--payload", "--json").json["payload"])["article"] == 2
    assert "no record has the id 999" in cli("records", "show", "999").sentence

    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE rowlock_job SET payload = '{\"x' , headers = '{'"))
    damaged = cli("records", "show", id, "--payload", "--json").json
    assert (damaged["payload"], damaged["headers"]) == ('{"x', "{")


def test_counts_keep_due_and_future_apart(cli: Cli, news: Any) -> None:
    # contract: O1
    news.publish.enqueue_many([news.Publish(n) for n in range(3)])
    news.publish.enqueue(news.Publish(3), delay=timedelta(days=1))
    news.mail.enqueue(news.Publish(4))
    assert cli("records", "counts", "--json").json == [
        {"queue": "default", "state": "pending", "count": 4, "future": 1, "estimated": False, "due": 3},
        {"queue": "mail", "state": "pending", "count": 1, "future": 0, "estimated": False, "due": 1},
    ]
    assert [line.split() for line in cli("records", "counts").out.splitlines()[1:]] == [
        ["default", "pending", "4", "3", "1"],
        ["mail", "pending", "1", "1", "0"],
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["list", "--older-than", "soon"], "--older-than is 'soon'"), (["list", "--database", "x"], "no database 'x' is")],
)
def test_a_wrong_filter_is_one_sentence(cli: Cli, news: Any, arguments: list[str], says: str) -> None:
    assert says in cli("records", *arguments).sentence


# --- running -------------------------------------------------------------------------------------------------


def test_run_works_and_drains_and_shows_no_secret(
    cli: Cli, news: Any, run: Callable[..., Running], database: Database
) -> None:
    # contract: M5, M6, S6; field report C64
    ids = [news.publish.enqueue(news.Publish(n)).id for n in range(3)] + [news.doomed.enqueue(news.Publish(5)).id]
    worker = run(database.url, "news:app", "--mode", "worker")
    worker.wait_for("ready: queues=default,mail\n")

    def states() -> list[str]:
        return [str(news.app.records.get(id).state) for id in ids]

    wait_until(lambda: states() == ["succeeded", "pending", "succeeded", "dead"], BOUND, lambda: f"{states()}")
    assert worker.end() == 0
    assert "S3CR3T" not in worker.said
    assert f"record {ids[1]}" in worker.said
    for line in worker.said.splitlines():
        assert re.match(r"ready: |\d{4}-\d\d-\d\dT\S+Z [A-Z]+ \S+: ", line), line
    dead = cli("records", "list", "--state", "dead", "--json").json["items"]
    assert [(record["id"], record["error_category"], record["error_summary"]) for record in dead] == [
        (ids[3], "rejected", "no such article")
    ]


def test_run_serves_the_queues_that_it_is_told_to(news: Any, run: Callable[..., Running], database: Database) -> None:
    # contract: M1
    left, done = news.publish.enqueue(news.Publish(2)).id, news.mail.enqueue(news.Publish(2)).id
    worker = run(database.url, "--queue", "mail", "--no-uvloop")
    worker.wait_for("ready: queues=mail\n")
    wait_until(lambda: news.app.records.get(done).state == "succeeded")
    assert worker.end() == 0
    assert news.app.records.get(left).state == "pending"


# --- no database, or not as it should be ---------------------------------------------------------------------


def nowhere(database: Database, folder: Path) -> str:
    """A URL of this kind that leads to no database; it has a password where it can have one."""
    if database.dialect == "sqlite":
        return f"sqlite:///{folder / 'missing' / 'test.db'}"
    url = URL.create(database.parsed.get_backend_name(), "me", "S3CR3T", "127.0.0.1", 1, "nothing")
    return plain(url)


EVERY = [["migrate"], ["migrate", "--check"], ["records", "list"], ["records", "show", "1"], ["records", "counts"]]


@pytest.mark.parametrize("command", EVERY, ids=" ".join)
def test_without_a_database_every_command_fails_at_once(
    cli: Cli, database: Database, folder: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    # contract: Z1
    monkeypatch.setenv("NEWS_URL", nowhere(database, folder))
    begun = time.monotonic()
    said = cli(*command).sentence
    assert time.monotonic() - begun < 5
    assert "database 'default'" in said
    assert "can not be reached" in said
    assert "S3CR3T" not in said


@pytest.mark.parametrize("command", EVERY[2:], ids=" ".join)
def test_without_the_tables_commands_say_how_to_make_them(cli: Cli, command: list[str]) -> None:
    # contract: S1
    assert "run `rowlock migrate`" in cli(*command).sentence


def test_run_fails_within_five_seconds_if_it_may_not_wait(
    database: Database, folder: Path, run: Callable[..., Running]
) -> None:
    # field report C24
    begun = time.monotonic()
    failed = run(nowhere(database, folder), "--no-wait")
    assert failed.process.wait(BOUND) == 1
    assert time.monotonic() - begun < 5
    assert re.fullmatch(r"rowlock: database 'default' .* can not be reached.*\n", failed.said)
    assert "S3CR3T" not in failed.said


def test_run_waits_for_the_database_and_says_so_once(
    database: Database, folder: Path, run: Callable[..., Running]
) -> None:
    # field report C24: working less than 5 s after the database is there
    if database.dialect == "sqlite":
        worker = run(nowhere(database, folder), "news:app")
        worker.wait_for("waiting until it can")
        (folder / "missing").mkdir()
        begun = time.monotonic()
        worker.wait_for("ready: ")
    else:
        with Proxy(make_url(database.url)) as proxy:
            proxy.mode("refuse")
            worker = run(str(proxy.url), "news:app")
            worker.wait_for("waiting until it can")
            proxy.mode("pass")
            begun = time.monotonic()
            worker.wait_for("ready: ")
            assert worker.end() == 0
    assert time.monotonic() - begun < 10  # the pause before the next try, and the start itself
    assert worker.said.count("waiting until it can") == 1
    assert "S3CR3T" not in worker.said


def test_a_signal_ends_the_waiting(database: Database, folder: Path, run: Callable[..., Running]) -> None:
    # contract: M6
    worker = run(nowhere(database, folder), "news:app")
    worker.wait_for("waiting until it can")
    assert worker.end() == 0


@pytest.mark.databases("postgresql", "mariadb", reason="C24: SQLite has no login")
def test_a_wrong_login_is_refused_at_once_although_run_may_wait(
    cli: Cli, database: Database, run: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    # field report C24
    url = plain(database.parsed.set(username="rl_nobody", password="S3CR3T"))
    failed = run(url, "news:app")
    assert failed.process.wait(BOUND) == 1
    assert "refuses the connection as 'rl_nobody'" in failed.said
    assert failed.said.count("\n") == 1
    assert "S3CR3T" not in failed.said
    monkeypatch.setenv("NEWS_URL", url)
    assert "look" in cli("records", "counts").sentence


def test_run_refuses_tables_that_it_may_not_make_or_use(
    database: Database, news: Any, engine: sa.Engine, run: Callable[..., Running]
) -> None:
    # contract: S1
    with engine.begin() as connection:
        connection.execute(sa.text("UPDATE rowlock_meta SET value = '9999' WHERE name IN ('level', 'oldest')"))
    failed = run(database.url, "news:app")
    assert failed.process.wait(BOUND) == 1
    assert "upgrade the rowlock package" in failed.said
