"""Fixtures of the whole suite.

Databases: `dialect`, `database`, `database_url`, `engine`, `async_engine`, `app_factory`, `table`; for tests that stop
a server `own_server` and `own_database`; for tests with real worker processes `kill_kit`.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from support import own, ready, servers
from support.databases import Database, SQLite, make_database
from support.jobtable import JobTable
from support.kill import KillKit
from support.leaks import LeakWatch

DIALECTS = ("sqlite", "postgresql", "mariadb")
IN_CI = os.environ.get("CI") == "true"
WATCHED = ("contract", "races")  # folders whose tests may leave nothing behind

# Deadlines measure the machine, not the code: two cores are shared with the servers.
hypothesis.settings.register_profile("rowlock", deadline=None, print_blob=True)
hypothesis.settings.load_profile("rowlock")

_servers: dict[str, servers.Server | servers.NoServer] = {}
_told: dict[str, str] = {}
"""What the last lines of the run say of each server."""


# --- databases -----------------------------------------------------------------------------------------------


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`dialect` goes over all databases; `@pytest.mark.databases(…, reason=…)` skips the others and says why."""
    given = [str(mark.args[0]) for mark in metafunc.definition.iter_markers("parametrize")]
    if "dialect" not in metafunc.fixturenames or any("dialect" in names for names in given):
        return
    only, reason = DIALECTS, ""
    if mark := metafunc.definition.get_closest_marker("databases"):
        only, reason = mark.args, mark.kwargs.get("reason", "")
        if not reason or not set(only) <= set(DIALECTS):
            raise pytest.UsageError(
                f"{metafunc.definition.nodeid}: databases(*names of {DIALECTS}, reason='clause: why')"
            )
    skip = pytest.mark.skip(reason=f"only {', '.join(only)}: {reason}")
    metafunc.parametrize("dialect", [pytest.param(name, marks=() if name in only else skip) for name in DIALECTS])


def server(dialect: str) -> servers.Server:
    """The session's server for a dialect, found when first asked for. None to be had: a skip, under CI a failure."""
    if dialect not in _servers:
        try:
            _servers[dialect] = servers.find(dialect)
        except servers.NoServer as failure:
            _servers[dialect] = failure
    found = _servers[dialect]
    if isinstance(found, servers.NoServer):
        (pytest.fail if IN_CI else pytest.skip)(str(found))
    return found


@pytest.fixture
def database(dialect: str, tmp_path: Path) -> Iterator[Database]:
    """The test's own empty database, with what the suite asks it (`sessions()`, `waiting()`)."""
    made = SQLite(tmp_path / "test.db") if dialect == "sqlite" else make_database(server(dialect), dialect)
    yield made
    made.clear()


@pytest.fixture
def database_url(database: Database) -> str:
    """Its URL as a user writes it, without a driver."""
    return database.url


@pytest.fixture
def engine(database: Database) -> Iterator[sa.Engine]:
    """A sync engine of the test's own (sqlite3, psycopg, PyMySQL), as a user makes one."""
    made = sa.create_engine(database.sync_url)
    yield made
    made.dispose()


@pytest.fixture
def async_engine(database: Database) -> Callable[..., AbstractAsyncContextManager[AsyncEngine]]:
    """`async with async_engine() as engine:` (aiosqlite, asyncpg, asyncmy), disposed on the loop that made it."""

    @asynccontextmanager
    async def make(**options: Any) -> AsyncIterator[AsyncEngine]:
        made = create_async_engine(database.async_url, **options)
        try:
            yield made
        finally:
            await made.dispose()

    return make


@pytest.fixture
def app_factory(database: Database) -> Iterator[Callable[..., Any]]:
    """`app_factory(*groups, migrate=True, url=None, **options)`: an App on the test's database, closed after it.

    Where a test looks at the migration itself, it calls `app.migrate()`; see support/ready.py.
    """
    from rowlock import App

    made = []

    def make(*groups: Any, migrate: bool = True, url: str | None = None, **options: Any) -> Any:
        app = App(**options) if "settings" in options else App(url or database.url, **options)
        made.append(app)
        for group in groups:
            group._app = None  # a module's group is in an application of its own in each test
            app.include(group)
        if migrate and url is None and list(app.databases) == ["default"]:
            ready.migrate(database, app.migrate)
        elif migrate:
            app.migrate()
        return app

    yield make
    for app in made:
        app.close()


@pytest.fixture
def table(database: Database) -> Iterator[JobTable]:
    """Its job table by the database's own clock, and the store's functions on it."""
    with JobTable(database, real_time=True) as opened:
        yield opened


@pytest.fixture
def jobs() -> Any:
    """A group of the test's own."""
    from rowlock import Jobs

    return Jobs()


@pytest.fixture
def ping(jobs: Any) -> Any:
    """A job without input, of that group."""

    @jobs.job(max_attempts=3, timeout=30, name="ping")
    def ping() -> None: ...

    return ping


@pytest.fixture
def app(app_factory: Callable[..., Any], jobs: Any, ping: Any) -> Any:
    """An application with that job, its tables made."""
    return app_factory(jobs)


@pytest.fixture
def own_server(dialect: str) -> own.OwnServer:
    """A throw-away server of the suite's own (PostgreSQL, MariaDB) that the test may stop, pause, kill and start."""
    try:
        return servers.own_server(dialect)
    except own.CannotStart as failure:
        (pytest.fail if IN_CI else pytest.skip)(str(failure))


@pytest.fixture
def own_database(own_server: own.OwnServer, dialect: str) -> Iterator[Database]:
    """A database on `own_server`; after the test the server runs again, whatever the test did to it."""
    own_server.start()
    name = f"own {dialect}"
    if name not in _servers:
        _servers[name] = servers.Server(own_server.url, "a throw-away server for tests that stop it", local=True)
    made = make_database(_servers[name], dialect)
    yield made
    own_server.resume()
    own_server.start()
    made.clear()


@pytest.fixture
def kill_kit(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., KillKit]]:
    """`kill_kit(source, database=None, **settings)`: worker processes of a generated application; see support/kill.py.

    On the test's `database`, or on the one given (`own_database`).
    """
    kits = []

    def make(source: str, database: Database | None = None, **settings: Any) -> KillKit:
        database = database or request.getfixturevalue("database")
        kits.append(KillKit(source, tmp_path, database, monkeypatch, **settings))
        return kits[-1]

    yield make
    for kit in kits:
        kit.close()


# --- discipline ----------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In contract/ and races/: fails a test that leaves a thread, a task, a database session or a lock."""
    if not set(WATCHED) & set(request.path.parts):
        yield
        return
    # Asked for here, the database outlives this fixture's second half, and engines end before it.
    database = request.getfixturevalue("database") if "database" in request.fixturenames else None
    watch = LeakWatch(database, monkeypatch)
    yield
    if found := watch.findings():
        pytest.fail("left behind: " + "; ".join(found), pytrace=False)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine function runs on a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(pyfuncitem.obj(**wanted))
    return True


def pytest_sessionfinish(session: pytest.Session) -> None:
    for dialect, found in _servers.items():
        if isinstance(found, servers.NoServer):
            _told[dialect] = f"NOT TESTED on {dialect}: {found}"
        else:
            _told[dialect] = f"tested on {dialect}: {found.origin} ({found.url!r})"
            found.close()
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output["servers"] = _told


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """What a worker of pytest-xdist has tested on."""
    _told.update(getattr(node, "workeroutput", {}).get("servers", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for _, line in sorted(_told.items()):
        loud = line.startswith("NOT")
        terminalreporter.write_line(line, red=loud, bold=loud)
