"""Enqueues of one key that meet: of any number one becomes the record, and nobody gets an error for it (E4)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from rowlock import App, EnqueueBusy, Jobs, TransactionConflict
from support.databases import Database
from support.races import in_background, wait_for_waiters
from support.waiting import barrier, in_threads

AppFactory = Callable[..., App]
SERVERS = pytest.mark.databases("postgresql", "mariadb", reason="E4: SQLite has one write transaction at a time")


@pytest.fixture
def jobs() -> Jobs:
    return Jobs()


@pytest.fixture
def ping(jobs: Jobs) -> Any:
    @jobs.job(max_attempts=3, timeout=30, name="ping")
    def ping() -> None: ...

    return ping


@pytest.fixture
def app(app_factory: AppFactory, jobs: Jobs, ping: Any) -> App:
    return app_factory(jobs)


def count(engine: sa.Engine, where: str = "1 = 1") -> int:
    with engine.connect() as conn:
        return conn.execute(sa.text(f"SELECT count(*) FROM rowlock_job WHERE {where}")).scalar_one()


def test_eight_at_once_make_one_record(app: App, ping: Any, engine: sa.Engine) -> None:
    # contract: E4
    for number in range(10):
        start = barrier(8)

        def enqueue(key: str = f"k{number}", start: threading.Barrier = start) -> Any:
            start.wait()
            return ping.enqueue(key=key)

        answers = in_threads(*[enqueue] * 8)
        assert sum(answer.created for answer in answers) == 1
        assert len({answer.id for answer in answers}) == 1
    assert count(engine) == 10


def test_eight_transactions_at_once_make_one_record(app: App, ping: Any, engine: sa.Engine) -> None:
    # contract: E4
    for number in range(5):
        start = barrier(8)

        def enqueue(key: str = f"k{number}", start: threading.Barrier = start) -> Any:
            with engine.connect() as conn:
                start.wait()
                answer = ping.enqueue(key=key, connection=conn)
                conn.commit()
                return answer

        answers = in_threads(*[enqueue] * 8)
        assert sum(answer.created for answer in answers) == 1
        assert len({answer.id for answer in answers}) == 1


@SERVERS
def test_when_the_winner_rolls_back_another_becomes_the_record(
    app: App, ping: Any, engine: sa.Engine, database: Database
) -> None:
    # contract: E4
    with engine.connect() as winner:
        first = ping.enqueue(key="k", connection=winner)
        loser = in_background(lambda: ping.enqueue(key="k"))
        wait_for_waiters(database)
        winner.rollback()
        second = loser.result(10)
    assert first.created
    assert second.created
    assert count(engine) == 1


@SERVERS
def test_a_winner_that_commits_is_the_duplicate(app: App, ping: Any, engine: sa.Engine, database: Database) -> None:
    # contract: E4
    with engine.connect() as winner:
        first = ping.enqueue(key="k", connection=winner)
        loser = in_background(lambda: ping.enqueue(key="k"))
        wait_for_waiters(database)
        winner.commit()
        second = loser.result(10)
    assert (second.id, second.created) == (first.id, False)


@pytest.mark.parametrize("joined", [False, True], ids=["own", "joined"])
def test_the_wait_is_bounded_and_leaves_the_callers_transaction_usable(
    app_factory: AppFactory, jobs: Jobs, ping: Any, engine: sa.Engine, database: Database, joined: bool
) -> None:
    # contract: E4
    quick = {"database": {"default": {"url": database.url}}, "job": {"enqueue_wait_ms": 300}}
    app_factory(jobs, settings=quick)
    patient = {"connect_args": {"timeout": 0.3}} if engine.name == "sqlite" else {}
    impatient = sa.create_engine(database.sync_url, **patient)
    with engine.begin() as other:
        assert ping.enqueue(key="k", connection=other).created
        if joined:
            with impatient.connect() as conn:
                if engine.name != "sqlite":
                    ping.enqueue(key="mine", connection=conn)
                with pytest.raises(EnqueueBusy, match="nothing was written"):
                    ping.enqueue(key="k", connection=conn)
                assert conn.execute(sa.text("SELECT 1")).scalar_one() == 1
                conn.commit()
        else:
            with pytest.raises(EnqueueBusy, match="nothing was written"):
                ping.enqueue(key="k")
        other.rollback()
    impatient.dispose()
    assert count(engine, "rowlock_job.key = 'k'") == 0
    assert count(engine) == (1 if joined and engine.name != "sqlite" else 0)
    assert ping.enqueue(key="k").created


def running(engine: sa.Engine, id_: int) -> None:
    with engine.begin() as conn:
        conn.execute(
            sa.text("UPDATE rowlock_job SET state = 'running', token = 't', lease = '2040-01-01 00:00:00.000000'"
                    f" WHERE id = {id_}")
        )  # fmt: skip


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ"])
@SERVERS
def test_a_duplicate_does_not_lock_the_record_that_it_meets(app: App, ping: Any, engine: sa.Engine, level: str) -> None:
    # contract: E4
    first = ping.enqueue(key="k")
    running(engine, first.id)
    with engine.connect().execution_options(isolation_level=level) as caller:
        assert not ping.enqueue(key="k", connection=caller).created
        assert [a.created for a in ping.enqueue_many([(None, {"key": "k"}), None], connection=caller)] == [False, True]
        with engine.connect() as settler:  # the caller's transaction is open, and the holder can settle
            sql = f"SELECT id FROM rowlock_job WHERE id = {first.id} FOR UPDATE SKIP LOCKED"
            assert settler.execute(sa.text(sql)).scalar_one() == first.id
            settler.execute(sa.text(f"UPDATE rowlock_job SET state = 'succeeded', lease = NULL WHERE id = {first.id}"))
            settler.commit()
        caller.rollback()


@pytest.mark.databases("mariadb", reason="E4: an old snapshot is blind there, PostgreSQL tells of the conflict")
def test_a_snapshot_older_than_the_record_still_finds_it(app: App, ping: Any, engine: sa.Engine) -> None:
    # contract: E4
    with engine.connect().execution_options(isolation_level="REPEATABLE READ") as caller:
        caller.execute(sa.text("SELECT count(*) FROM rowlock_job")).scalar_one()
        first = ping.enqueue(key="k")
        again = ping.enqueue(key="k", connection=caller)
        assert (again.id, again.created) == (first.id, False)
        caller.rollback()


@pytest.mark.databases("postgresql", reason="E4: MariaDB's snapshot is looked around")
def test_a_snapshot_that_cannot_see_the_record_is_a_conflict_never_a_second_record(
    app: App, ping: Any, engine: sa.Engine
) -> None:
    # contract: E4
    with engine.connect().execution_options(isolation_level="SERIALIZABLE") as caller:
        caller.execute(sa.text("SELECT count(*) FROM rowlock_job")).scalar_one()
        ping.enqueue(key="k")
        with pytest.raises(TransactionConflict, match="roll back"):
            ping.enqueue(key="k", connection=caller)
        caller.rollback()
    assert count(engine) == 1


def test_a_record_that_ends_between_look_and_insert_frees_its_key(
    app: App, ping: Any, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # contract: E4
    first = ping.enqueue(key="k")
    dialect = type(app.databases["default"].dialect)
    looks: list[int] = []
    find = dialect.find_active

    def find_and_end(self: Any, conn: Any, *args: Any) -> Any:
        looks.append(1)
        if len(looks) == 1:  # it ended a moment ago: the look is already wrong, and says the key is free
            conn.exec_driver_sql(f"UPDATE rowlock_job SET state = 'succeeded' WHERE id = {first.id}")
        return find(self, conn, *args)

    monkeypatch.setattr(dialect, "find_active", find_and_end)
    second = ping.enqueue(key="k")
    assert second.created
    assert second.id != first.id


def test_one_that_appears_between_look_and_insert_is_the_duplicate(
    app: App, ping: Any, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # contract: E4
    other = App(app.databases["default"].url.render_as_string(hide_password=False))
    twin = other.job(max_attempts=3, timeout=30, name="ping")(ping.handler)
    dialect = type(app.databases["default"].dialect)
    find, made = dialect.find_active, []

    def find_then_lose(self: Any, conn: Any, *args: Any) -> Any:
        found = find(self, conn, *args)
        if not made:
            made.append(None)
            made.append(twin.enqueue(key="k"))
        return found

    monkeypatch.setattr(dialect, "find_active", find_then_lose)
    answer = ping.enqueue(key="k")
    assert (answer.id, answer.created) == (made[1].id, False)
    assert count(engine) == 1
    other.close()


@pytest.mark.parametrize("joined", [False, True], ids=["own", "joined"])
def test_two_batches_with_the_same_keys_in_opposite_order(app: App, ping: Any, engine: sa.Engine, joined: bool) -> None:
    # contract: E4
    if joined and engine.name == "sqlite":
        pytest.skip("E4: two deferred SQLite transactions of the caller's own conflict by themselves")
    for number in range(15):
        items: list[Any] = [(None, {"key": f"{number}.{n}"}) for n in range(20)]
        start = barrier(2)

        def batch(items: list[Any], start: threading.Barrier = start) -> list[Any]:
            start.wait()
            if not joined:
                return ping.enqueue_many(items)
            with engine.connect() as conn:
                answers = ping.enqueue_many(items, connection=conn)
                conn.commit()
                return answers

        one, two = in_threads(lambda items=items: batch(items), lambda items=items: batch(items[::-1]))
        assert [answer.id for answer in one] == [answer.id for answer in two[::-1]]
        assert sum(answer.created for answer in [*one, *two]) == 20
    assert count(engine) == 300
