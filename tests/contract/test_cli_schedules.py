"""`rowlock schedules` on every database: list, accept, forget, explain; and `rowlock check` of a cron text (T7, T8)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from rowlock import App
from rowlock.store import cursors, schema
from support.cli import Result, commands
from support.databases import Database

Cli = Callable[..., Result]
PROGRAM = """
import os
from rowlock import App

app = App(os.environ["NEWS_URL"])

@app.job(name="hourly", max_attempts=3, timeout=5, schedule="0 * * * *")
def hourly() -> None: ...

@app.job(name="fresh", max_attempts=3, timeout=5, schedule="30 4 * * 1-5")
def fresh() -> None: ...
"""


@pytest.fixture
def folder(tmp_path: Path, database: Database, monkeypatch: pytest.MonkeyPatch) -> Path:
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
def seen(app_factory: Callable[..., App], engine: sa.Engine) -> datetime:
    """Cursors of `hourly`, two hours behind, and of a schedule that is gone."""
    app = app_factory()

    @app.job(name="hourly", max_attempts=3, timeout=5, schedule="0 * * * *")
    def hourly() -> None: ...

    @app.job(name="gone", max_attempts=3, timeout=5, schedule="5 * * * *")
    def gone() -> None: ...

    db = app.databases["default"]
    db.run(cursors.begin, [hourly, gone], db.run(cursors.read))
    last = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=2)
    with engine.begin() as connection:
        connection.execute(schema.cursor.update().values(last_minute=last))
    return last


def test_the_list_shows_each_with_its_text_its_times_and_its_lag(cli: Cli, seen: datetime) -> None:
    # contract: T8
    told = cli("schedules", "list", "--json")
    assert told.code == 0
    by_name = {each["name"]: each for each in told.json}
    assert {name: each["state"] for name, each in by_name.items()} == {"fresh": "new", "gone": "gone", "hourly": "ok"}
    hourly = by_name["hourly"]
    assert hourly["cron"] == "0 * * * *"
    assert hourly["last"] is None
    assert hourly["next"] == f"{seen + timedelta(hours=1):%Y-%m-%dT%H:%M:%SZ}"
    assert 3_600 <= hourly["lag"] < 7_300
    assert by_name["gone"]["cron"] is None
    table = cli("schedules", "news:app")
    assert table.code != 0  # a word behind it is a command
    table = cli("schedules")
    assert table.out == cli("schedules", "list").out
    assert table.out.split()[:6] == ["name", "state", "cron", "last", "next", "lag"]
    assert "30 4 * * 1-5" in table.out
    assert "1h" in next(line for line in table.out.splitlines() if line.startswith("hourly"))


def test_accept_and_forget_say_what_they_did(cli: Cli, seen: datetime, engine: sa.Engine) -> None:
    # contract: T7, O6
    assert cli("schedules", "accept", "hourly").out == "hourly: nothing has changed\n"
    with engine.begin() as connection:
        connection.execute(schema.cursor.update().values(fingerprint="f" * 64))
    assert {each["name"]: each["state"] for each in cli("schedules", "list", "--json").json}["hourly"] == "changed"
    assert cli("schedules", "accept", "hourly", "--by", "ann", "--json").json == {"name": "hourly", "accepted": True}
    assert cli("schedules", "forget", "gone").out == "gone: forgotten\n"
    assert "not gone" in cli("schedules", "forget", "hourly").sentence
    assert "no schedule 'gone'" in cli("schedules", "forget", "gone").sentence
    assert "no schedule 'nothing'" in cli("schedules", "accept", "nothing").sentence
    assert "has a cursor" in cli("schedules", "accept", "fresh").sentence
    with engine.connect() as connection:
        rows = connection.execute(sa.select(schema.audit).order_by(schema.audit.c.id)).all()
    assert [(row.action, row._mapping["by"]) for row in rows] == [("accept", "ann"), ("forget", None)]


def test_explain_says_it_in_words_and_dates(cli: Cli) -> None:
    # contract: T8; case: C46
    told = cli("schedules", "explain", "0 9 1 * 1", "--from", "2027-03-01T09:00", "--count", "3")
    assert told.out.splitlines() == [
        "at 09:00 on day 1 of the month and also on Monday (one of the two is enough) (UTC)",
        "Mon 2027-03-08 09:00:00Z",
        "Mon 2027-03-15 09:00:00Z",
        "Mon 2027-03-22 09:00:00Z",
    ]
    document = cli("schedules", "explain", "0 0 29 2 *", "--from", "2027-01-01", "--count", "1", "--json").json
    assert document == {
        "cron": "0 0 29 2 *",
        "words": "at 00:00 on day 29 of the month in February (UTC)",
        "next": ["2028-02-29T00:00:00Z"],
    }
    zoned = cli("schedules", "explain", "0 9 * * *", "--from", "2027-03-01T10:30+02:00", "-n", "1", "--json").json
    assert zoned["next"] == ["2027-03-01T09:00:00Z"]
    assert "Sunday is 0" in cli("schedules", "explain", "0 9 * * 7").sentence
    assert "--from 'soon'" in cli("schedules", "explain", "0 9 * * *", "--from", "soon").sentence


def test_check_reports_a_cron_text_that_is_none(cli: Cli, folder: Path) -> None:
    # contract: J6, T1
    (folder / "news.py").write_text(PROGRAM.replace("30 4 * * 1-5", "30 4 * * 1-7"))
    told = cli("check")
    assert told.code == 1
    assert "news.py:" in told.out
    assert "declaration" in told.out
    assert "day of week is '1-7'" in told.out
