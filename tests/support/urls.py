"""URLs as a user writes them, and the same with a driver named, for the suite's own engines."""

from __future__ import annotations

from sqlalchemy.engine import URL, make_url

_SYNC = {"sqlite": "sqlite+pysqlite", "postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}
_ASYNC = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg", "mysql": "mysql+asyncmy"}


def _family(url: URL) -> str:
    name = url.get_backend_name()
    return {"mariadb": "mysql", "postgres": "postgresql"}.get(name, name)


def _with_driver(url: URL | str, drivers: dict[str, str]) -> URL:
    url = make_url(url)
    drivername = drivers[_family(url)]
    if url.get_backend_name() == "mariadb":
        drivername = drivername.replace("mysql+", "mariadb+")
    return url.set(drivername=drivername)


def sync_url(url: URL | str) -> URL:
    """The URL for psycopg, PyMySQL or sqlite3."""
    return _with_driver(url, _SYNC)


def async_url(url: URL | str) -> URL:
    """The URL for asyncpg, asyncmy or aiosqlite."""
    return _with_driver(url, _ASYNC)


def plain(url: URL) -> str:
    """The text of the URL without a driver, as a user writes it."""
    return url.set(drivername=url.get_backend_name()).render_as_string(hide_password=False)
