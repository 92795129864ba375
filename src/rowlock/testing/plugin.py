"""The pytest plugin: the fixture `rowlock_test`, the option `rowlock_app`, the marker `rowlock` (X1)."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from sqlalchemy import create_engine

from rowlock.app import App
from rowlock.store.dialects import dialect_for
from rowlock.testing import routing, servers
from rowlock.testing.case import TestApp

MARKER = (
    "rowlock(server, *, now, leases): the fixture rowlock_test on a database of a server (postgresql, mariadb, mysql), "
    "not on SQLite files; now and leases are those of TestApp"
)
_missing = pytest.StashKey[dict[str, str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Makes the option known."""
    parser.addini("rowlock_app", 'the application that rowlock_test tests, as "newsroom.main:app"', default="")


def pytest_configure(config: pytest.Config) -> None:
    """Makes the marker known."""
    config.addinivalue_line("markers", MARKER)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Says what was not tested, so that nobody takes a skip for a pass."""
    for server, why in config.stash.get(_missing, dict[str, str]()).items():
        terminalreporter.write_line(f"NOT TESTED on {server}: {why}", red=True, bold=True)


@pytest.fixture
def rowlock_app(pytestconfig: pytest.Config) -> App:
    """The application that the setting `rowlock_app` names; override the fixture for another one."""
    named = str(pytestconfig.getini("rowlock_app"))
    if not named:
        raise pytest.UsageError(
            'the fixture rowlock_test does not know the application: say rowlock_app = "newsroom.main:app" in the '
            "settings of pytest, or override the fixture rowlock_app"
        )
    return load(named)


@pytest.fixture
def rowlock_test(request: pytest.FixtureRequest, rowlock_app: App) -> Iterator[TestApp]:
    """A case of its own for the test: see `rowlock.testing.TestApp`."""
    marker: pytest.Mark | None = request.node.get_closest_marker("rowlock")  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # pytest leaves it open
    options = _options(marker)
    server = options.pop("server", None)
    with ExitStack() as stack:
        if server is not None:
            options["engine"] = _engines(request, stack, server, rowlock_app)
        with TestApp(rowlock_app, **options) as case:
            yield case


def load(named: str) -> App:
    """The application that `module:name` names. Raises `pytest.UsageError`."""
    module, _, attribute = named.partition(":")
    wrong = f"rowlock_app = {named!r} in the settings of pytest"
    try:
        found: Any = importlib.import_module(module)
        for part in (attribute or "app").split("."):
            found = getattr(found, part)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise pytest.UsageError(
            f'{wrong}: there is no module {error.name!r}; is the folder that has it in pytest\'s pythonpath (["."])?'
        ) from None
    except AttributeError as error:
        raise pytest.UsageError(f"{wrong}: {error}") from None
    if not isinstance(found, App):
        raise pytest.UsageError(f"{wrong}: that is of type {type(found).__name__}, not a rowlock.App")
    return found


def _options(marker: pytest.Mark | None) -> dict[str, Any]:
    if marker is None:
        return {}
    if len(marker.args) > 1 or set(marker.kwargs) - {"now", "leases"}:
        raise pytest.UsageError(f"@pytest.mark.{MARKER}")
    return {**marker.kwargs, **({"server": marker.args[0]} if marker.args else {})}


def _engines(request: pytest.FixtureRequest, stack: ExitStack, server: str, app: App) -> dict[str, Any]:
    """An engine on a new database for each database of the application; a skip where there is no server."""
    engines: dict[str, Any] = {}
    try:
        for name in routing.names_of(app):
            url = stack.enter_context(servers.new_database(server))
            engines[name] = create_engine(dialect_for(url).urls(url)[0])
            stack.callback(engines[name].dispose)
    except servers.NoServerError as error:
        request.config.stash.setdefault(_missing, {})[server] = str(error)
        pytest.skip(str(error))
    return engines
