"""One module a kind of database, each the same hooks (`base.Dialect`)."""

from __future__ import annotations

from sqlalchemy.engine import URL

from rowlock.errors import UnsupportedDatabase
from rowlock.store.dialects.base import Dialect
from rowlock.store.dialects.mariadb import MariaDB
from rowlock.store.dialects.mysql import MySQL
from rowlock.store.dialects.postgresql import PostgreSQL
from rowlock.store.dialects.sqlite import SQLite

_DIALECTS: dict[str, Dialect] = {d.name: d for d in (PostgreSQL(), MySQL(), MariaDB(), SQLite())}


def dialect_for(url: URL) -> Dialect:
    """The hooks for a URL's kind of database. Raises `UnsupportedDatabase`."""
    name = url.get_backend_name()
    if name not in _DIALECTS:
        raise UnsupportedDatabase(
            f"the database URL names {name!r}; Rowlock works on SQLite, PostgreSQL, MySQL and MariaDB: write "
            f"sqlite:///file.db, postgresql://…, mysql://… or mariadb://…"
        )
    return _DIALECTS[name]
