"""Finding a database server for the suite: one that is named, else one that runs here, else a throw-away one."""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import URL, make_url

from support import own
from support.urls import plain, sync_url

NAMED = {"postgresql": "ROWLOCK_TEST_POSTGRES_URL", "mariadb": "ROWLOCK_TEST_MARIADB_URL"}
MARIADB_SOCKETS = ("/run/mysqld/mysqld.sock", "/var/run/mysqld/mysqld.sock", "/tmp/mysql.sock")


class NoServer(Exception):
    """No server of this kind can be had; the message says what was tried."""


@dataclass
class Server:
    """A running server on which the suite may make databases. `url` names a database to be in meanwhile."""

    url: URL
    origin: str
    local: bool
    engine: sa.Engine = field(init=False)
    emptied: list[str] = field(default_factory=list)  # PostgreSQL databases for the next test
    tables: list[str] = field(default_factory=list)  # what makes Rowlock's schema at once; see support/ready.py

    def __post_init__(self) -> None:
        # pool_pre_ping: tests stop and start servers of their own under it.
        self.engine = sa.create_engine(
            sync_url(self.url), isolation_level="AUTOCOMMIT", pool_size=1, max_overflow=2, pool_pre_ping=True
        )

    def run(self, sql: str, **values: object) -> list[sa.Row]:
        """One statement on a connection of the suite's own, outside of the tests' databases."""
        with self.engine.connect() as connection:
            result = connection.execute(sa.text(sql), values)
            return list(result) if result.returns_rows else []

    def close(self) -> None:
        while self.emptied:
            self.run(f"DROP DATABASE IF EXISTS {self.emptied.pop()} WITH (FORCE)")
        self.engine.dispose()


def find(dialect: str) -> Server:
    """The server for this dialect, by the order of the module's first line. Raises NoServer."""
    if named := os.environ.get(NAMED[dialect]):
        return _named(dialect, make_url(named))
    tried = []
    for url in _local_urls(dialect):
        failure = _refusal(url)
        if failure is None:
            return _tidied(Server(url, "a server that runs here", local=True))
        tried.append(f"{plain(url)}: {failure}")
    try:
        server = _OWN[dialect]()
    except own.CannotStart as failure:
        tried.append(str(failure))
        hint = f"Start one, or name one in {NAMED[dialect]}."
        raise NoServer(f"no {dialect} server. {hint} Tried: " + "; ".join(tried)) from failure
    return Server(server.url, "a throw-away server of the suite's own", local=True)


def _named(dialect: str, url: URL) -> Server:
    if failure := _refusal(url):
        raise NoServer(f"{NAMED[dialect]} names {url!r}, which does not answer: {failure}")
    return Server(url, f"named by {NAMED[dialect]}", local=False)


def _local_urls(dialect: str) -> Iterator[URL]:
    if dialect == "postgresql":
        for user in dict.fromkeys(("postgres", getpass.getuser())):
            for database in ("test", "postgres"):
                yield URL.create("postgresql", user, host="127.0.0.1", port=5432, database=database)
        return
    for socket in MARIADB_SOCKETS:
        if Path(socket).exists():
            yield URL.create("mariadb", "root", host="localhost", database="test", query={"unix_socket": socket})
    yield URL.create("mariadb", "root", host="127.0.0.1", port=3306, database="test")


def _refusal(url: URL) -> str | None:
    """Why this URL can't be used, or None."""
    timeout = {"connect_timeout": 3}
    engine = sa.create_engine(sync_url(url), poolclass=sa.NullPool, connect_args=timeout)
    try:
        with engine.connect() as connection:
            connection.execute(sa.text("SELECT 1"))
    except (sa.exc.SQLAlchemyError, OSError) as failure:
        return str(getattr(failure, "orig", failure)).strip().splitlines()[0]
    return None


def _tidied(server: Server) -> Server:
    """Drop what suites that were killed left behind on this machine: databases whose process is gone."""
    if server.url.get_backend_name() == "postgresql":
        names = [row[0] for row in server.run(r"SELECT datname FROM pg_database WHERE datname LIKE 'rl\_%'")]
    else:
        names = [
            row[0]
            for row in server.run(r"SELECT schema_name FROM information_schema.schemata WHERE schema_name LIKE 'rl\_%'")
        ]
    for name in names:
        made_by = re.fullmatch(r"rl_(\d+)_[0-9a-f]+", name)
        if made_by and not _runs(int(made_by[1])):
            server.run(f"DROP DATABASE IF EXISTS {name}")
    return server


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


@cache
def own_postgres() -> own.OwnPostgres:
    """A throw-away PostgreSQL that tests may stop, restart and kill; started once, when first asked for."""
    return own.OwnPostgres().start()


@cache
def own_mariadb() -> own.OwnMariaDB:
    """A throw-away MariaDB that tests may stop, restart and kill; started once, when first asked for."""
    return own.OwnMariaDB().start()


_OWN: dict[str, Callable[[], own.OwnServer]] = {"postgresql": own_postgres, "mariadb": own_mariadb}


def own_server(dialect: str) -> own.OwnServer:
    """`own_postgres()` or `own_mariadb()`. Raises own.CannotStart."""
    return _OWN[dialect]()
