"""Clients that are killed within a transaction in which they enqueue: nothing of it is there (E2)."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import pytest
import sqlalchemy as sa

from rowlock import App, Jobs
from support.databases import Database
from support.story import mostly_slow
from support.waiting import BOUND, wait_until

CLIENT = """
import sys
import sqlalchemy as sa
from rowlock import App

app, engine = App(sys.argv[1]), sa.create_engine(sys.argv[2])

@app.job(max_attempts=3, timeout=30, name="ping")
def ping() -> None: ...

def point(name):
    print(name, flush=True)
    if name == sys.argv[3]:
        sys.stdin.read()

with engine.connect() as conn:
    conn.exec_driver_sql("INSERT INTO business VALUES (1)")
    point("between")
    assert ping.enqueue(key="k", connection=conn).created
    assert len(ping.enqueue_many([None, (None, {"key": "other"})], connection=conn)) == 2
    point("before the commit")
    conn.commit()
    point("after the commit")
"""


# contract: E2, E4, E8
# case: C17
@pytest.mark.parametrize(
    ("point", "rows"), [("between", (0, 0)), ("before the commit", (0, 0)), ("after the commit", (1, 3))]
)
@mostly_slow("mariadb")
def test_a_client_that_is_killed_leaves_all_or_nothing(
    database: Database, engine: sa.Engine, app_factory: Any, jobs: Jobs, ping: Any, point: str, rows: tuple[int, int]
) -> None:
    with engine.begin() as conn:
        conn.exec_driver_sql("CREATE TABLE business (n integer PRIMARY KEY)")
    app: App = app_factory(jobs)
    client = subprocess.Popen(
        [sys.executable, "-c", CLIENT, database.url, database.sync_url.render_as_string(hide_password=False), point],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert client.stdin
    assert client.stdout
    with client.stdin, client.stdout:
        while client.stdout.readline().strip() not in {point, ""}:
            pass
        assert client.poll() is None
        client.send_signal(signal.SIGKILL)
        assert client.wait(BOUND) == -signal.SIGKILL

    def seen() -> tuple[int, int]:
        with engine.connect() as conn:
            business = conn.exec_driver_sql("SELECT count(*) FROM business").scalar_one()
            return business, len(app.records.list().items)

    assert seen() == rows
    # Its keys are free, as soon as the server has noticed; an enqueue waits for that, bounded.
    assert ping.enqueue(key="k").created is (rows == (0, 0))
    if database.dialect != "sqlite":
        wait_until(lambda: ping.enqueue(key="other") is not None)
    with engine.begin() as conn:
        conn.exec_driver_sql("INSERT INTO business VALUES (2)")
    with app.worker_thread():
        wait_until(lambda: {record.state for record in app.records.list().items} == {"succeeded"})
