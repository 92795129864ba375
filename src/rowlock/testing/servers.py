"""Servers for cases that ask for one, and a database of its own for each such case (X1)."""

from __future__ import annotations

import getpass
import os
import secrets
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from sqlalchemy import Engine, NullPool, create_engine, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import SQLAlchemyError

from rowlock.errors import KitError, KitValueError, MissingDriver
from rowlock.store.dialects import dialect_for

NAMED = {
    "postgresql": "ROWLOCK_TEST_POSTGRES_URL",
    "mariadb": "ROWLOCK_TEST_MARIADB_URL",
    "mysql": "ROWLOCK_TEST_MYSQL_URL",
}
SOCKETS = ("/run/mysqld/mysqld.sock", "/var/run/mysqld/mysqld.sock", "/tmp/mysql.sock")  # noqa: S108 - where servers put it
PATIENCE_S = 3


class NoServerError(KitError):
    """No server of this kind can be had; the message says what was tried."""


@contextmanager
def new_database(kind: str) -> Generator[URL]:
    """An empty database of its own, dropped at the end. Raises `NoServerError`; `KitValueError` for another kind."""
    server = server_of(kind)
    name = f"rowlock_case_{os.getpid()}_{secrets.token_hex(4)}"
    encoding = "TEMPLATE template0 ENCODING 'UTF8'" if kind == "postgresql" else "CHARACTER SET utf8mb4"
    _run(server, f"CREATE DATABASE {name} {encoding}")
    try:
        yield server.set(database=name)
    finally:
        _run(server, f"DROP DATABASE {name}{' WITH (FORCE)' if kind == 'postgresql' else ''}")


def server_of(kind: str) -> URL:
    """The server that the environment names, else one that runs here. Raises `NoServerError`."""
    if kind not in NAMED:
        raise KitValueError(f"no kind of server is called {kind!r}; there are {', '.join(NAMED)} (X1)")
    found = _find(kind, os.environ.get(NAMED[kind]))
    if isinstance(found, URL):
        return found
    raise NoServerError(found)


@lru_cache
def _find(kind: str, named: str | None) -> URL | str:
    """The server, or what was tried: asked once a process, as a server that does not answer costs seconds."""
    if named:
        refusal = _refusal(url := make_url(named))
        return url if refusal is None else f"{NAMED[kind]} names {url!r}, which does not answer: {refusal}"
    tried: list[str] = []
    for url in _local(kind):
        if (refusal := _refusal(url)) is None:
            return url
        tried.append(f"{url!r}: {refusal}")
    return f"no {kind} server: start one, or name one in {NAMED[kind]}; tried {'; '.join(tried)}"


def _local(kind: str) -> Iterator[URL]:
    if kind == "postgresql":
        for user in dict.fromkeys(("postgres", getpass.getuser())):
            for database in ("postgres", "test"):
                yield URL.create("postgresql", user, host="127.0.0.1", port=5432, database=database)
        return
    for socket in SOCKETS:
        if Path(socket).exists():
            yield URL.create(kind, "root", host="localhost", query={"unix_socket": socket})
    yield URL.create(kind, "root", host="127.0.0.1", port=3306)


def _engine(url: URL) -> Engine:
    """A sync engine for a URL without a driver; it keeps no connection open."""
    return create_engine(
        dialect_for(url).urls(url)[0], poolclass=NullPool, connect_args={"connect_timeout": PATIENCE_S}
    )


def _run(server: URL, statement: str) -> None:
    with _engine(server).execution_options(isolation_level="AUTOCOMMIT").connect() as conn:
        conn.execute(text(statement))


def _refusal(url: URL) -> str | None:
    """Why this server can not be used, or None."""
    try:
        with _engine(url).connect() as conn:
            conn.execute(text("SELECT 1"))
    except (SQLAlchemyError, OSError, MissingDriver) as error:
        return str(getattr(error, "orig", error)).strip().partition("\n")[0]
    return None
