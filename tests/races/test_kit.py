"""The kits themselves: a blocker is seen, a proxy does what it is told, a server of one's own comes back."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from support.databases import Database
from support.own import OwnServer
from support.proxy import Proxy
from support.races import Blocker, in_background, wait_for_waiters
from support.urls import sync_url
from support.waiting import in_threads

SERVERS = pytest.mark.databases("postgresql", "mariadb", reason="SQLite is a file: it has no server and no network")


@pytest.fixture
def rows(engine: sa.Engine) -> sa.Engine:
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE thing (id INT PRIMARY KEY, word VARCHAR(20))"))
        connection.execute(sa.text("INSERT INTO thing VALUES (1, 'old')"))
    return engine


def word(engine: sa.Engine) -> str:
    with engine.connect() as connection:
        return connection.execute(sa.text("SELECT word FROM thing WHERE id = 1")).scalar_one()


def append(engine: sa.Engine) -> None:
    with engine.begin() as connection:
        change = "word || '+late'" if engine.dialect.name != "mariadb" else "concat(word, '+late')"
        connection.execute(sa.text(f"UPDATE thing SET word = {change} WHERE id = 1"))


@pytest.mark.parametrize(
    ("how", "expected"), [("change", "new+late"), ("only lock", "old+late"), ("roll back", "old+late")]
)
def test_a_blocker_decides_who_comes_first(database: Database, rows: sa.Engine, how: str, expected: str) -> None:
    with Blocker(database) as blocker:
        assert blocker.lock_row("thing", id=1).word == "old"
        late = in_background(lambda: append(rows))
        wait_for_waiters(database)
        if how != "only lock":
            blocker.execute("UPDATE thing SET word = 'new' WHERE id = 1")
        assert not late.done()
        blocker.rollback() if how == "roll back" else blocker.commit()
        late.result(10)
    assert word(rows) == expected


def test_threads_start_together_and_failures_arrive(database: Database) -> None:
    assert in_threads(lambda: 1, lambda: 2) == [1, 2]
    with pytest.raises(ZeroDivisionError):
        in_threads(lambda: 1, lambda: 1 // 0)


def one(engine: sa.Engine) -> int:
    with engine.connect() as connection:
        return connection.execute(sa.text("SELECT 1")).scalar_one()


@SERVERS
def test_a_proxy_passes_refuses_and_resets(database: Database) -> None:
    with Proxy(database.parsed) as proxy:
        engine = sa.create_engine(sync_url(proxy.url), pool_size=1)
        assert one(engine) == 1
        proxy.mode("reset")
        with pytest.raises(sa.exc.DBAPIError):
            one(engine)
        with pytest.raises(sa.exc.DBAPIError):
            one(engine)
        proxy.mode("refuse")
        with pytest.raises(sa.exc.OperationalError):
            one(engine)
        proxy.mode("delay", seconds=0.01)
        assert one(engine) == 1
        proxy.mode("pass")
        assert one(engine) == 1
        engine.dispose()


@SERVERS
@pytest.mark.parametrize("then", ["blackhole", "reset"])
def test_a_commit_can_arrive_though_its_answer_never_does(rows: sa.Engine, database: Database, then: str) -> None:
    with Proxy(database.parsed) as proxy:
        engine = sa.create_engine(sync_url(proxy.url), poolclass=sa.NullPool)
        proxy.after(b"COMMIT", then)
        lost = in_background(lambda: append(engine))
        proxy.cut.wait()
        assert word(rows) == "old+late"
        if then == "blackhole":
            assert not lost.done()
            proxy.mode("reset")
        assert isinstance(lost.exception(10), sa.exc.DBAPIError)
        engine.dispose()


@SERVERS
def test_a_server_of_ones_own_is_stopped_killed_and_paused(own_server: OwnServer, own_database: Database) -> None:
    engine = sa.create_engine(own_database.sync_url, pool_size=1)
    assert one(engine) == 1
    for end in (own_server.stop, own_server.kill):
        end()
        with pytest.raises(sa.exc.OperationalError):
            one(engine)
        own_server.start()
        assert one(engine) == 1
    own_server.pause()
    late = in_background(lambda: one(engine))
    assert not late.done()
    own_server.resume()
    assert late.result(10) == 1
    engine.dispose()
