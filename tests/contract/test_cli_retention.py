"""`rowlock retention`, and what `rowlock check` says of it (N8, J6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from rowlock.store import schema
from support.cli import Result, commands

Cli = Callable[..., Result]
SOURCE = """
import sqlalchemy as sa
from rowlock import App, Lifecycle, Retention

metadata = sa.MetaData()
columns = sa.Column("id", sa.Integer, primary_key=True), sa.Column("created_at", sa.DateTime)
message = sa.Table("message", metadata, *columns)
settings = {{"database": {{"default": {{"url": {url!r}}}}}, "retention": {{"overrides": {overrides!r}}}}}
app = App(settings=settings)
app.lifecycle(message, Lifecycle("transient", retention=Retention("7d")))
app.retention_floor(message, at_least="24h", who="the mailer", why="it looks back", remedy="keep a day")
"""


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cli]:
    monkeypatch.chdir(tmp_path)
    with commands(capsys, tmp_path) as run:
        yield run


def program(folder: Path, url: str, **overrides: str) -> None:
    (folder / "mailing.py").write_text(SOURCE.format(url=url, overrides=overrides))


def fill(engine: sa.Engine) -> datetime:
    now = datetime.now(UTC)
    with engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE message (id integer primary key, created_at timestamp NULL)")
        for number, days in enumerate((8, 9, 5), 1):
            at = (now - timedelta(days=days)).replace(tzinfo=None)
            conn.execute(sa.text("INSERT INTO message VALUES (:id, :at)"), {"id": number, "at": at.isoformat(" ")})
        row: dict[str, Any] = {
            "job": "a", "fingerprint": "f", "payload": "null", "queue": "default", "priority": 1, "run_at": now,
            "state": "succeeded", "attempt": 1, "max_attempts": 1, "timeout_ms": 1, "handed_back": 0,
            "created_at": now - timedelta(days=30), "finished_at": now - timedelta(days=1),
        }  # fmt: skip
        conn.execute(schema.job.insert(), [row, row, row | {"state": "dead"}])
    return now


def test_it_shows_what_runs_what_would_go_and_when(
    cli: Cli, tmp_path: Path, database_url: str, engine: sa.Engine
) -> None:
    # contract: N8
    program(tmp_path, database_url)
    assert cli("migrate", "mailing:app").code == 0
    now = fill(engine)
    tables = {each["table"]: each for each in cli("retention", "mailing:app", "--dry-run", "--json").json["tables"]}
    message, job, kept = tables["message"], tables["rowlock_job"], tables["rowlock_meta"]
    assert (message["due"], job["due"], kept["due"]) == (2, 2, None)
    assert (message["window_s"], message["at_least_s"], message["who"]) == (604_800.0, 86_400.0, "the mailer")
    assert (kept["kind"], kept["window_s"], kept["next_at"]) == ("record", None, None)
    goes = datetime.fromisoformat(message["oldest_goes_at"])
    assert abs(goes - (now + timedelta(days=2))) < timedelta(seconds=2)
    plain = {each["table"]: each for each in cli("retention", "mailing:app", "--json").json["tables"]}
    assert plain["message"]["due"] is None
    table = cli("retention", "mailing:app", "--dry-run").out
    assert "1 d (the mailer)" in table
    assert "for ever" in table
    with engine.connect() as conn:
        assert conn.execute(sa.text("SELECT count(*) FROM message")).scalar_one() == 3
        assert conn.execute(sa.select(sa.func.count()).select_from(schema.job)).scalar_one() == 3


@pytest.mark.databases("sqlite", reason="N5: the settings are judged without a database")
def test_rejected_overrides_are_said_by_both_commands(cli: Cli, tmp_path: Path, database_url: str) -> None:
    # contract: N5, J6
    program(tmp_path, database_url, message="23h", nobody="1d")
    assert cli("migrate", "mailing:app").code == 0
    shown = cli("retention", "mailing:app")
    assert "retention.overrides.message is '23h', and the mailer needs rows for 1 d" in shown.err
    assert "retention.overrides.nobody" in shown.err
    assert len(cli("retention", "mailing:app", "--json").json["violations"]) == 2
    checked = cli("check", "mailing:app")
    assert checked.code == 0
    assert "retention.overrides.message" in checked.err
    assert "no index that begins with 'created_at'" in checked.err


@pytest.mark.databases("sqlite", reason="N4: a declaration needs no database")
def test_a_window_below_a_floor_is_a_finding(cli: Cli, tmp_path: Path, database_url: str) -> None:
    # contract: N4, J6
    program(tmp_path, database_url)
    file = tmp_path / "mailing.py"
    file.write_text(file.read_text().replace("7d", "23h"))
    checked = cli("check", "mailing:app")
    assert checked.code == 1
    assert "82,800 s" in checked.out
    assert "1 d" in checked.out


@pytest.mark.databases("sqlite", reason="N8: the same on each")
def test_a_table_that_can_not_be_read_is_said(cli: Cli, tmp_path: Path, database_url: str) -> None:
    # contract: N8
    program(tmp_path, database_url)
    assert cli("migrate", "mailing:app").code == 0
    shown = cli("retention", "mailing:app", "--dry-run")
    assert shown.code == 0
    assert "table 'message': it can not be read" in shown.err
