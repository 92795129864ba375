"""SQLite files that can not be used: refused, or waited for, with the file and what to do in the message (E8, Z1)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from rowlock import App, DatabaseUnavailable, Jobs, LoginRefused, UnsupportedDatabase

SQLITE = pytest.mark.databases("sqlite", reason="C96: a file and its modes are SQLite's")


def doors(url: str) -> list[Callable[[], object]]:
    """What a user does first with an application on this database."""
    jobs = Jobs()
    job = jobs.declare("j", max_attempts=1, timeout=1)
    app = App(url, include=[jobs])

    def start() -> None:
        with app.worker_thread():
            raise AssertionError("it started")

    def enqueue() -> None:
        try:
            job.enqueue()
        finally:
            app.close()

    return [app.migrate, enqueue, start]


@SQLITE
def test_a_file_system_without_shared_memory_can_have_no_write_ahead_log(dialect: str, tmp_path: Path) -> None:
    # contract: E8, Z1
    # case: C96 (refused: in DELETE mode a handler's writes would stop every reader)
    file = tmp_path / "jobs.db"
    for door in doors(f"sqlite:///file:{file}?vfs=unix-dotfile&uri=true"):  # locks by files, as network mounts do
        with pytest.raises(UnsupportedDatabase, match=rf"'{file}' can not use write-ahead logging .*'delete'"):
            door()


@SQLITE
@pytest.mark.parametrize(
    "url",
    ["sqlite://", "sqlite:///:memory:", "sqlite:///file:x?mode=memory&cache=shared&uri=true",
     "sqlite:///file::memory:?cache=shared&uri=true"],
)  # fmt: skip
def test_a_database_in_memory_is_refused(dialect: str, url: str) -> None:
    # contract: E8, Z1
    # case: C96
    for door in doors(url):
        with pytest.raises(UnsupportedDatabase, match="Rowlock needs a file"):
            door()


@SQLITE
def test_a_file_that_is_only_read_is_refused(dialect: str, tmp_path: Path) -> None:
    # contract: E8, Z1
    # case: C96
    file = tmp_path / "jobs.db"
    made = App(f"sqlite:///{file}")
    made.migrate()
    made.close()
    for door in doors(f"sqlite:///file:{file}?mode=ro&uri=true")[1:2]:
        with pytest.raises(LoginRefused, match=f"opens the file only to read it: {file}"):
            door()


@SQLITE
def test_a_file_that_is_no_database_is_refused(dialect: str, tmp_path: Path) -> None:
    # contract: E8, Z1
    # case: C96
    file = tmp_path / "jobs.db"
    file.write_text("a text that is no database" * 100)
    for door in doors(f"sqlite:///{file}"):
        with pytest.raises(LoginRefused, match=f"is no SQLite database: {file}"):
            door()
    assert file.read_text() == "a text that is no database" * 100


@SQLITE
def test_what_is_not_there_is_said_by_name(dialect: str, tmp_path: Path) -> None:
    # contract: K2, Z1
    # case: C96
    folder = tmp_path / "not" / "mounted"
    for url, says in [
        (f"sqlite:///{folder}/jobs.db", f"its directory is not there: make, or mount, {folder}"),
        (f"sqlite:///{tmp_path}", "its path is that of a directory"),
        (f"sqlite:///file:{tmp_path}/no.db?mode=rw&uri=true", "its file is not there"),
    ]:
        for door in doors(url):
            with pytest.raises(DatabaseUnavailable, match=says):
                door()
    folder.mkdir(parents=True)
    app = App(f"sqlite:///{folder}/jobs.db")  # it may come later, as a server may
    assert app.migrate()
    app.close()
