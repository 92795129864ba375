"""Where the bench works: a SQLite file, and a database of its own on each server that is there."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy.engine import make_url

NAME = f"rowlock_bench_{os.getpid()}"
DEFAULTS = {
    "postgresql": os.environ.get("ROWLOCK_TEST_POSTGRES_URL", "postgresql://postgres@127.0.0.1:5432/postgres"),
    "mariadb": os.environ.get(
        "ROWLOCK_TEST_MARIADB_URL", "mariadb://root@localhost/test?unix_socket=/run/mysqld/mysqld.sock"
    ),
}
DRIVERS = {"postgresql": "postgresql+psycopg", "mariadb": "mariadb+pymysql", "sqlite": "sqlite+pysqlite"}


@dataclass(frozen=True)
class Place:
    """One database. `url` is what a user writes, `env` what the bare loops' drivers are told about it."""

    kind: str
    url: str
    env: dict[str, str]

    def engine(self) -> sa.Engine:
        return sa.create_engine(make_url(self.url).set(drivername=DRIVERS[self.kind]), isolation_level="AUTOCOMMIT")

    def execute(self, *statements: str) -> None:
        engine = self.engine()
        with engine.connect() as conn:
            for statement in statements:
                conn.exec_driver_sql(statement)
        engine.dispose()


@contextmanager
def place(kind: str, suffix: str = "") -> Generator[Place]:
    """An empty database of this kind, gone afterwards. Raises what the driver raises if there is none.

    `suffix` tells it from another one that is there at the same time.
    """
    if kind == "sqlite":
        folder = Path(tempfile.mkdtemp(prefix="rowlock-bench-"))
        try:
            yield Place(kind, f"sqlite:///{folder}/jobs.db", {"RAW_SQLITE": f"{folder}/bare.db", "RAW_SYNC": "FULL"})
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return
    name = NAME + suffix
    server = Place(kind, DEFAULTS[kind], {})
    server.execute(f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name}")
    url = make_url(DEFAULTS[kind]).set(database=name).render_as_string(hide_password=False)
    try:
        yield Place(kind, url, {"BENCH_DB": name})
    finally:
        server.execute(f"DROP DATABASE IF EXISTS {name}")


def settle_down(place: Place) -> None:
    """Fresh statistics and no pending writes, so that a run does not pay for the fill before it."""
    if place.kind == "postgresql":
        place.execute("VACUUM (ANALYZE)", "CHECKPOINT")
    elif place.kind == "sqlite":
        place.execute("PRAGMA wal_checkpoint(TRUNCATE)")
