"""What an enqueue answered is on the disk, and an application made before a fork works after it (E8)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from rowlock import App
from rowlock.store.database import Database as Store
from support.databases import Database

AppFactory = Callable[..., App]
SQLITE = pytest.mark.databases("sqlite", reason="E8: WAL and synchronous=FULL are SQLite's")


@pytest.fixture
def store(database: Database) -> Iterator[Store]:
    made = Store("default", database.url)
    yield made
    made.close()


def pragmas(conn: sa.Connection, _db: Store) -> tuple[Any, ...]:
    names = ("journal_mode", "synchronous", "busy_timeout")
    return tuple(conn.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in names)


@SQLITE
async def test_each_connection_of_rowlocks_own_writes_through(store: Store) -> None:
    # contract: E8
    assert store.run(pragmas) == ("wal", 2, 2_000)
    assert await store.arun(pragmas) == await store.aread(pragmas) == ("wal", 2, 2_000)
    twin = store.twin()
    assert twin.run(pragmas) == ("wal", 2, 2_000)
    twin.close()


@SQLITE
def test_also_beside_an_engine_whose_own_connections_do_not(database: Database) -> None:
    # contract: E8, C8
    given = sa.create_engine(database.sync_url)
    for pragma in ("synchronous = OFF", "busy_timeout = 1"):
        sa.event.listen(given, "connect", lambda raw, _record, pragma=pragma: raw.execute(f"PRAGMA {pragma}"))
    own = Store("default", given)
    assert own.run(pragmas) == ("wal", 2, 2_000)
    own.close()
    with given.connect() as conn:
        assert pragmas(conn, own) == ("wal", 0, 1)  # the application's are as they were
    given.dispose()


@SQLITE
def test_a_file_without_write_ahead_logging_is_refused_by_name(database: Database) -> None:
    # contract: E8, Z1
    class Cursor:
        """Of a file system that can not do it: the mode stays what it was (C96 of the field)."""

        def execute(self, sql: str) -> Cursor:
            self.answer = {"PRAGMA journal_mode = WAL": ["delete"]}.get(sql, [0, "main", "/mnt/share/jobs.db"])
            return self

        def fetchone(self) -> list[Any]:
            return self.answer

    from rowlock import UnsupportedDatabase
    from rowlock.store.dialects.sqlite import SQLite

    with pytest.raises(UnsupportedDatabase, match=r"'/mnt/share/jobs\.db' can not use write-ahead logging .*'delete'"):
        SQLite().on_connect(Cursor(), wait_ms=1)


# From Python 3.12 on each fork beside a thread is warned of.
_FORK = ("-W", "ignore:This process:DeprecationWarning")
PROGRAM = """
import asyncio, json, os, sys
from rowlock import App

url, children, each = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
app = App(url)
mine = {"postgresql": "pg_backend_pid()", "sqlite": str(os.getpid())}

@app.job(max_attempts=1, timeout=1, name="ping")
def ping() -> None: ...

def session(conn, db):
    return conn.exec_driver_sql(f"SELECT {mine.get(db.dialect.name, 'connection_id()')}").scalar_one()

def story():
    tag = os.urandom(8).hex()
    answers = [ping.enqueue(key=f"{tag}.{n}") for n in range(each)]
    answers += ping.enqueue_many([None, None])
    told = app.databases["default"].run(session)
    return {"ids": [answer.id for answer in answers if answer.created], "session": told}

async def later(close):
    answer = await ping.aenqueue()
    if close:
        await app.aclose()
    return answer.id

told = [story()]
if url.startswith("sqlite"):  # its thread is one that the children do not have
    told[0]["ids"].append(asyncio.run(later(close=False)))
pipes = []
for _ in range(children):
    read, write = os.pipe()
    if os.fork() == 0:
        mine["sqlite"] = str(os.getpid())
        with open(write, "w") as out:
            one = story()
            one["ids"].append(asyncio.run(later(close=True)))
            json.dump(one, out)
        os._exit(0)  # at once: nothing is written at an orderly end
    os.close(write)
    pipes.append(read)
for read in pipes:
    with open(read) as answer:
        told.append(json.load(answer))
told.append(story())
print(json.dumps(told), flush=True)
os.kill(os.getpid(), 9)
"""


def test_an_application_works_after_a_fork_and_all_of_it_is_there_after_kills(
    app_factory: AppFactory, engine: sa.Engine, database: Database, tmp_path: Path
) -> None:
    # contract: E8
    app_factory()
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-W", "error", *_FORK, str(program), database.url, "4", "25"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    assert done.returncode == -9
    told = json.loads(done.stdout)
    ids = [id_ for one in told for id_ in one["ids"]]
    assert len(ids) == len(set(ids)) == 6 * 27 + 4 + (database.dialect == "sqlite")
    sessions = [one["session"] for one in told]
    assert len(set(sessions[:-1])) == 5  # no child works on the parent's connection
    assert sessions[0] == sessions[-1]  # and none of them has ended it
    with engine.connect() as conn:
        stored = set(conn.execute(sa.text("SELECT id FROM rowlock_job")).scalars())
    assert stored == set(ids)
