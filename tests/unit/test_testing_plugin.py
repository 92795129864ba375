"""The plugin, in a pytest of its own as a user starts it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from rowlock import App
from rowlock.testing.plugin import load

NEWSROOM = """
    from rowlock import App
    app = App("postgresql://nowhere:1/production")

    @app.job(max_attempts=3, timeout=30, name="publish")
    def publish() -> None: ...

    not_an_app = 3
"""
SETTINGS = """
    [pytest]
    pythonpath = .
    rowlock_app = newsroom:app
    addopts = --strict-markers
"""


class Project:
    """A folder with a program, its tests and its settings."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write("newsroom.py", NEWSROOM)
        self.write("pytest.ini", SETTINGS)

    def write(self, name: str, text: str) -> None:
        (self.path / name).write_text(textwrap.dedent(text))

    def pytest(self, tests: str, **environment: str) -> str:
        """What pytest prints."""
        self.write("test_newsroom.py", tests)
        command = [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", "-W", "error"]
        env = {**os.environ, **environment}
        done = subprocess.run(command, cwd=self.path, env=env, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout + done.stderr


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_the_fixture_finds_the_application(project: Project) -> None:
    # contract: X1
    printed = project.pytest("""
        from datetime import datetime, timezone
        import pytest
        from newsroom import app, publish
        from rowlock.testing import TestApp

        def test_one(rowlock_test: TestApp):
            assert rowlock_test.app is app
            publish.enqueue(delay=60)
            assert rowlock_test.drain() == 0
            rowlock_test.advance(minutes=1)
            assert rowlock_test.drain() == 1

        def test_two(rowlock_test):
            rowlock_test.refute_enqueued(publish)

        @pytest.mark.rowlock(now=datetime(2027, 1, 1, tzinfo=timezone.utc), leases="declared")
        def test_options(rowlock_test):
            assert rowlock_test.now.year == 2027
    """)
    assert "3 passed" in printed
    assert "warning" not in printed


def test_the_application_can_be_given_by_a_fixture(project: Project) -> None:
    # contract: X1
    project.write("pytest.ini", "[pytest]\npythonpath = .\n")
    printed = project.pytest("""
        import pytest
        from rowlock import App

        @pytest.fixture
        def rowlock_app():
            return App("sqlite:///other.db")

        def test_it(rowlock_test, rowlock_app):
            assert rowlock_test.app is rowlock_app
    """)
    assert "1 passed" in printed


def test_an_application_that_is_not_named_is_said(project: Project) -> None:
    # contract: X1, Z1
    project.write("pytest.ini", "[pytest]\npythonpath = .\n")
    printed = project.pytest("def test_it(rowlock_test): ...")
    assert 'say rowlock_app = "newsroom.main:app"' in printed
    assert "1 error" in printed


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("newsrom:app", "there is no module 'newsrom'"),
        ("kit_newsroom.main:app", "there is no module 'kit_newsroom.main'"),
        ("kit_newsroom:application", "has no attribute 'application'"),
        ("kit_newsroom:not_an_app", "that is of type int, not a rowlock.App"),
    ],
)
def test_an_application_that_is_not_found_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str, says: str
) -> None:
    # contract: X1, Z1
    (tmp_path / "kit_newsroom.py").write_text(textwrap.dedent(NEWSROOM))
    monkeypatch.syspath_prepend(tmp_path)
    assert isinstance(load("kit_newsroom"), App)
    assert isinstance(load("kit_newsroom:app"), App)
    with pytest.raises(pytest.UsageError, match=says) as failure:
        load(named)
    assert f"rowlock_app = {named!r}" in str(failure.value)


def test_what_an_application_itself_fails_to_import_is_not_hidden(project: Project) -> None:
    # contract: X1
    project.write("newsroom.py", "import a_library_that_is_missing")
    printed = project.pytest("def test_it(rowlock_test): ...")
    assert "ModuleNotFoundError: No module named 'a_library_that_is_missing'" in printed


def test_a_server_that_is_not_there_skips_loudly(project: Project) -> None:
    # contract: X1
    printed = project.pytest(
        """
        import pytest

        @pytest.mark.rowlock("postgresql")
        def test_one(rowlock_test): ...

        @pytest.mark.rowlock("postgresql")
        def test_two(rowlock_test): ...
        """,
        ROWLOCK_TEST_POSTGRES_URL="postgresql://me:hidden@127.0.0.1:1/none",
    )
    assert "2 skipped" in printed
    assert "NOT TESTED on postgresql: ROWLOCK_TEST_POSTGRES_URL names postgresql://me:***@127.0.0.1:1/none" in printed
    assert "hidden" not in printed


@pytest.mark.parametrize("marker", ['"oracle"', '"postgresql", "mariadb"', '"postgresql", engine=3'])
def test_a_marker_that_can_not_be_met_is_refused(project: Project, marker: str) -> None:
    # contract: X1, Z1
    printed = project.pytest(f"""
        import pytest

        @pytest.mark.rowlock({marker})
        def test_one(rowlock_test): ...
    """)
    assert "1 error" in printed
    assert "postgresql, mariadb" in printed


@pytest.mark.parametrize("dialect", ["postgresql", "mariadb"])
def test_a_server_gives_each_case_a_database_of_its_own(project: Project, database_url: str, dialect: str) -> None:
    # contract: X1, X5
    named = {"postgresql": "ROWLOCK_TEST_POSTGRES_URL", "mariadb": "ROWLOCK_TEST_MARIADB_URL"}[dialect]
    printed = project.pytest(
        f"""
        import pytest
        from newsroom import publish

        names = set()

        @pytest.mark.rowlock("{dialect}")
        @pytest.mark.parametrize("n", [1, 2])
        def test_it(rowlock_test, n):
            publish.enqueue()
            assert rowlock_test.drain() == 1
            rowlock_test.assert_enqueued(publish, count=1)
            assert rowlock_test.url().get_backend_name() == "{dialect}"
            names.add(rowlock_test.url().database)
            assert len(names) == n
            print("made", rowlock_test.url().database)

        def test_here(rowlock_test):
            assert rowlock_test.url().get_backend_name() == "sqlite"
        """,
        **{named: database_url},
    )
    assert "3 passed" in printed
