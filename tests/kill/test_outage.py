"""Databases that stop, break off, or are not there: the worker goes on when they do (K2)."""

from __future__ import annotations

import time

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from support.databases import Database
from support.kill import Worker
from support.own import OwnServer
from support.proxy import Proxy
from support.story import Table, complaints, logged, wait_logged
from support.waiting import wait_until

SERVERS = pytest.mark.databases("postgresql", "mariadb", reason="K2: SQLite is a file, and has no server to lose")
JOBS = """
@jobs.job(name="held", max_attempts=3, timeout=60, lease=60)
async def held(ctx: Context) -> None:
    note("start", ctx)
    await ahold(f"held {ctx.id}", ctx)
    note("end", ctx)

@jobs.job(name="short", max_attempts=5, timeout=60, lease=1)
async def short(ctx: Context) -> None:
    note("start", ctx)
    try:
        await ahold(f"short {ctx.id}", ctx)
    except asyncio.CancelledError:
        note(f"told {ctx.stop_reason}", ctx)
        raise

@jobs.job(name="quick", max_attempts=1, timeout=30)
def quick(ctx: Context) -> None:
    note("start", ctx)
"""


@pytest.fixture
def own_table(own_database: Database):
    engine = sa.create_engine(own_database.sync_url, poolclass=sa.NullPool)
    yield Table(engine)
    engine.dispose()


# contract: K2, L3, L1; case: C21
@SERVERS
def test_a_server_that_stops_or_dies_and_comes_back(
    kill_kit, own_server: OwnServer, own_database: Database, own_table: Table
) -> None:
    kit = kill_kit(JOBS, own_database, job={"poll_ms": 50})
    worker = kit.start()
    for number, end in enumerate((own_server.stop, own_server.kill), start=1):
        held = kit.module.held.enqueue().id
        short = kit.module.short.enqueue().id
        kit.wait_for(f"held {held}")
        kit.wait_for(f"short {short}")
        kit.module.app.close()
        end()
        down = time.time()
        # It hears that its lease ran out, though nobody can tell it; the other one ends, and waits to be written.
        wait_until(lambda s=short: kit.effects("told lost", s), what=kit.story)
        kit.release(f"held {held}")
        wait_until(lambda h=held: kit.effects("end", h), what=kit.story)
        wait_until(lambda n=number: len(logged([worker], "WARNING", "'default' fails")) == n, what=kit.story)
        time.sleep(max(0, 1.3 - (time.time() - down)))

        own_server.start()
        up = time.time()
        quick = {one.id for one in kit.module.quick.enqueue_many([None] * 10)}
        kit.release(f"short {short}")
        own_table.wait(lambda rows: all(row.state == "succeeded" for row in rows), story=kit.story)
        assert max(one.at for one in kit.effects("start") if one.record in quick) - up < 5 + 2  # the longest pause
        rows = {row.id: row for row in own_table.rows()}
        assert (rows[held].attempt, len(kit.effects("start", held))) == (1, 1)
        assert (rows[short].attempt, len(kit.effects("start", short))) == (2, 2)
        assert all(len(kit.effects("start", id_)) == 1 for id_ in quick)
        # One line when it begins and one when it is over, however many loops saw it.
        wait_until(lambda n=number: len(logged([worker], "WARNING", "works again")) == n, what=kit.story)
        assert len(logged([worker], "WARNING", "'default' fails")) == number
    assert not complaints([worker])
    worker.term()
    assert worker.wait() == 0


# contract: K2; case: C21
@SERVERS
@pytest.mark.slow
def test_a_server_that_is_there_and_does_not_answer(
    kill_kit, own_server: OwnServer, own_database: Database, own_table: Table
) -> None:
    kit = kill_kit(JOBS, own_database, job={"poll_ms": 50})
    held = kit.module.held.enqueue().id
    short = kit.module.short.enqueue().id
    worker = kit.start()
    kit.wait_for(f"held {held}")
    kit.wait_for(f"short {short}")
    own_server.pause()
    kit.wait_for("told lost", timeout=10)
    kit.release(f"held {held}")
    kit.release(f"short {short}")
    kit.wait_for("end")
    before = _cpu_s(worker.pid)
    time.sleep(20)
    assert _cpu_s(worker.pid) - before < 2  # a tenth of a core
    own_server.resume()
    quick = {one.id for one in kit.module.quick.enqueue_many([None] * 10)}
    own_table.wait(lambda rows: all(row.state == "succeeded" for row in rows), 90, kit.story)
    rows = {row.id: row for row in own_table.rows()}
    assert (rows[held].attempt, len(kit.effects("start", held))) == (1, 1)
    assert rows[short].attempt == len(kit.effects("start", short)) == 2
    assert all(len(kit.effects("start", id_)) == 1 for id_ in quick)
    assert len(logged([worker], "WARNING", "'default' fails")) == 1
    wait_logged(worker, "WARNING", "works again", 30)
    assert not complaints([worker])


def _cpu_s(pid: int) -> float:
    from pathlib import Path

    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


# contract: K2, C8; case: C23
@SERVERS
@pytest.mark.parametrize("idle_s", [0, pytest.param(6, marks=pytest.mark.slow)])
def test_all_connections_are_ended_by_the_server(
    kill_kit, database: Database, engine: sa.Engine, dialect: str, idle_s: float
) -> None:
    kit = kill_kit(JOBS, job={"poll_ms": 50})
    held = kit.module.held.enqueue().id
    table, worker = Table(engine), kit.start().ready()
    kit.wait_for(f"held {held}")
    time.sleep(idle_s)
    for _ in range(3):
        engine.dispose()
        kit.module.app.close()
        _end_sessions(database, dialect)
        kit.module.quick.enqueue_many([None] * 10)
        table.wait(lambda rows: not [row for row in rows if row.state == "pending"], story=kit.story)
    kit.release(f"held {held}")
    table.wait(lambda rows: all(row.state == "succeeded" for row in rows), story=kit.story)
    assert {row.attempt for row in table.rows()} == {1}  # none is spent by the death of a connection of ours
    assert len(kit.effects("start")) == 31
    assert len(logged([worker], "WARNING", "'default' fails")) <= 6  # the worker's own connections, and its keeper's
    assert not complaints([worker])


def _end_sessions(database: Database, dialect: str) -> None:
    name = database.parsed.database
    if dialect == "postgresql":
        sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"
        assert database.server.run(sql, name=name)
        return
    found = database.server.run("SELECT id FROM information_schema.processlist WHERE db = :name", name=name)
    assert found
    for row in found:
        try:
            database.server.run(f"KILL {row.id}")
        except sa.exc.OperationalError:  # it ended by itself meanwhile
            continue


# contract: M5, K2, Z1; case: C24
@SERVERS
def test_a_database_that_is_not_there_at_the_start(kill_kit, database: Database) -> None:
    kit = kill_kit(JOBS, job={"poll_ms": 50})
    kit.module.quick.enqueue()
    with Proxy(database.parsed) as proxy:
        proxy.mode("refuse")
        begun = time.time()
        waiting = kit.start(url=proxy.url)
        _refused(kit.start("--no-wait", url=_with_password(proxy)))
        assert time.time() - begun < 5
        wait_logged(waiting, "WARNING", "waiting until it can")
        assert waiting.running
        proxy.mode("pass")
        up = time.time()
        waiting.ready()
        kit.wait_for("start")
        assert time.time() - up < 5 + 2
        assert len(logged([waiting], "WARNING")) == 1
        waiting.term()
        assert waiting.wait() == 0
        assert not complaints(kit.workers)


# contract: M5, K2, Z1
@SERVERS
@pytest.mark.slow
def test_a_database_that_does_not_answer_at_the_start(kill_kit, database: Database) -> None:
    kit = kill_kit(JOBS, job={"poll_ms": 50})
    kit.module.quick.enqueue()
    with Proxy(database.parsed) as silent:
        silent.mode("blackhole")
        begun = time.time()
        waiting = kit.start(url=silent.url)
        _refused(kit.start("--no-wait", url=_with_password(silent)))
        assert time.time() - begun < 5 + 3  # the rest is for starting on a busy machine
        silent.mode("pass")
        kit.wait_for("start", timeout=60)
        assert len(logged([waiting], "WARNING")) <= 1
        assert not complaints(kit.workers)


def _with_password(proxy: Proxy) -> str:
    return make_url(proxy.url).set(password="hunter2").render_as_string(hide_password=False)


def _refused(worker: Worker) -> None:
    assert worker.wait() == 1
    assert "database 'default'" in worker.stderr
    assert "hunter2" not in worker.stderr
    assert len(worker.stderr.strip().splitlines()) == 1  # a sentence, no traceback


# contract: M5, Z1; case: C24
@SERVERS
def test_a_refused_login_is_told_at_once_and_not_waited_for(
    kill_kit, own_server: OwnServer, own_database: Database, dialect: str
) -> None:
    """C24: nobody's waiting makes a wrong password right."""
    kit = kill_kit(JOBS, own_database, job={"poll_ms": 50})
    wrong = make_url(own_database.url).set(username="root" if dialect == "mariadb" else "nobody", password="hunter2")
    worker = kit.start(url=wrong.render_as_string(hide_password=False))
    _refused(worker)
    assert "password" in worker.stderr


# contract: K2; case: C21
@SERVERS
def test_a_database_that_is_read_only_for_a_while(
    kill_kit, own_server: OwnServer, own_database: Database, own_table: Table, dialect: str
) -> None:
    kit = kill_kit(JOBS, own_database, job={"poll_ms": 50})
    held = kit.module.held.enqueue().id
    url = own_database.url
    if dialect == "mariadb":  # root may write on a read-only server
        own_table.write("CREATE OR REPLACE USER app@'127.0.0.1' IDENTIFIED BY 'app'")
        own_table.write(f"GRANT ALL ON {own_database.parsed.database}.* TO app@'127.0.0.1'")
        url = make_url(url).set(username="app", password="app").render_as_string(hide_password=False)
    worker = kit.start(url=url)
    kit.wait_for(f"held {held}")
    kit.module.quick.enqueue_many([None] * 10)
    _read_only(own_database, own_table, dialect, True)
    kit.release(f"held {held}")
    kit.wait_for("end")
    wait_logged(worker, "WARNING", "'default' fails")
    started = len(kit.effects("start"))
    time.sleep(0.8)
    assert len(kit.effects("start")) == started
    _read_only(own_database, own_table, dialect, False)
    own_table.wait(lambda rows: all(row.state == "succeeded" for row in rows), story=kit.story)
    assert {row.attempt for row in own_table.rows()} == {1}
    assert len(kit.effects("start")) == 11
    wait_logged(worker, "WARNING", "works again")
    assert len(logged([worker], "WARNING", "'default' fails")) == 1
    assert not complaints([worker])


def _read_only(database: Database, table: Table, dialect: str, on: bool) -> None:
    """PostgreSQL: sessions that are opened meanwhile stay read-only for ever, as on a server that was demoted."""
    if dialect == "mariadb":
        table.write(f"SET GLOBAL read_only = {int(on)}")
        return
    name = database.parsed.database
    server = database.server
    server.run(f"ALTER DATABASE {name} SET default_transaction_read_only = {'on' if on else 'off'}")
    if on:
        server.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name", name=name)
