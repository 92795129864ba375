"""Enqueues of one key that meet: of any number one becomes the record, and nobody gets an error for it (E4)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from rowlock import App, EnqueueBusy, Jobs, TransactionConflict
from support.databases import Database
from support.jobtable import failing
from support.races import in_background, wait_for_waiters
from support.waiting import barrier, in_threads, wait_until

AppFactory = Callable[..., App]
SERVERS = pytest.mark.databases("postgresql", "mariadb", reason="E4: SQLite has one write transaction at a time")


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


@pytest.mark.parametrize("commits", [True, False], ids=["commits", "rolls back"])
@pytest.mark.parametrize("joined", [False, True], ids=["own", "joined"])
@SERVERS
def test_seven_that_wait_for_the_winner(
    app: App, ping: Any, engine: sa.Engine, database: Database, joined: bool, commits: bool
) -> None:
    # contract: E4
    def enqueue() -> Any:
        if not joined:
            return ping.enqueue(key="k")
        with engine.connect() as conn:
            answer = ping.enqueue(key="k", connection=conn)
            conn.commit()
            return answer

    with engine.connect() as winner:
        first = ping.enqueue(key="k", connection=winner)
        losers = [in_background(enqueue) for _ in range(7)]
        if not joined:
            wait_for_waiters(database, 7)
        winner.commit() if commits else winner.rollback()
        answers = [loser.result(20) for loser in losers]
    assert sum(answer.created for answer in answers) == (0 if commits else 1)
    assert len({answer.id for answer in answers}) == 1
    assert (answers[0].id == first.id) is commits
    assert count(engine) == 1


@pytest.mark.parametrize("mode", ["AUTOCOMMIT", "READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
@SERVERS
def test_in_every_isolation_the_wait_is_bounded(
    app_factory: AppFactory, jobs: Jobs, ping: Any, engine: sa.Engine, database: Database, mode: str
) -> None:
    # contract: E4
    app_factory(jobs, settings={"database": {"default": {"url": database.url}}, "job": {"enqueue_wait_ms": 100}})
    with engine.connect() as winner, engine.connect().execution_options(isolation_level=mode) as conn:
        first = ping.enqueue(key="k", connection=winner)
        ping.enqueue(key="mine", connection=conn)
        for call in (
            lambda: ping.enqueue(key="k", connection=conn),
            lambda: ping.enqueue_many([(None, {"key": "k"}), (None, {"key": "a"}), None], connection=conn),
        ):
            with pytest.raises(EnqueueBusy, match="nothing was written"):
                call()
        winner.commit()
        conn.execute(sa.text("SELECT 1"))
        if mode in {"AUTOCOMMIT", "READ COMMITTED"} or engine.name != "postgresql":
            again = ping.enqueue(key="k", connection=conn)
            assert (again.id, again.created) == (first.id, False)
        conn.commit()
    assert count(engine) == 2


@pytest.mark.databases("mariadb", reason="E4: only its looks are on another connection than its insert")
async def test_between_look_and_insert_nobody_else_finds_the_key_free(
    app_factory: AppFactory,
    jobs: Jobs,
    ping: Any,
    engine: sa.Engine,
    database: Database,
    async_engine: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # contract: E4
    quick = {"database": {"default": {"url": database.url}}, "job": {"enqueue_wait_ms": 300}}
    app = app_factory(jobs, settings=quick)
    dialect = type(app.databases["default"].dialect)
    insert, late = dialect.insert, []

    def insert_after_another_came(self: Any, conn: Any, db: Any, rows: Any) -> Any:
        if not late:
            late.append(in_background(lambda: waits_not_in_its_insert(engine, ping)))
            wait_until(lambda: waiting_for_turn(engine), what="another that waits for its turn")
        return insert(self, conn, db, rows)

    monkeypatch.setattr(dialect, "insert", insert_after_another_came)
    with engine.connect() as winner:
        first = ping.enqueue(key="k", connection=winner)
        with pytest.raises(EnqueueBusy):
            late.pop().result(20)
    async with async_engine() as aengine, aengine.connect() as awinner:
        assert (await ping.aenqueue(key="k", connection=awinner)).created
        with pytest.raises(EnqueueBusy):
            late.pop().result(20)
        await awinner.commit()
    await app.aclose()
    assert first.created
    assert count(engine) == 1


def waits_not_in_its_insert(engine: sa.Engine, ping: Any) -> Any:
    """An enqueue whose session would wait for another's row for half a minute."""
    with engine.connect() as conn:
        conn.exec_driver_sql("SET innodb_lock_wait_timeout = 30")
        return ping.enqueue(key="k", connection=conn)


def waiting_for_turn(engine: sa.Engine) -> bool:
    with engine.connect() as conn:
        states = conn.exec_driver_sql("SELECT state FROM information_schema.processlist WHERE db = DATABASE()")
        return "User lock" in states.scalars().all()


@pytest.mark.databases("postgresql", reason="E4: only there a key is a lock in a table of the server's")
def test_where_the_server_has_no_room_for_the_locks_the_index_decides(app: App, ping: Any, engine: sa.Engine) -> None:
    # contract: E4
    full = type("OutOfMemory", (Exception,), {"sqlstate": "53200"})
    items: list[Any] = [(None, {"key": f"k{n}"}) for n in range(20)]

    def make() -> BaseException:
        return sa.exc.OperationalError("SELECT", {}, full("out of shared memory"))

    with engine.connect() as conn, failing(engine, lambda sql: "pg_try_advisory_xact_lock" in sql, make, 1) as failed:
        assert sum(answer.created for answer in ping.enqueue_many(items, connection=conn)) == 20
        assert len(failed) == 1
        conn.commit()
    assert count(engine) == 20


@pytest.mark.parametrize("keyed", [True, False], ids=["keyed", "keyless"])
@SERVERS
def test_many_large_batches_in_open_transactions(app: App, ping: Any, engine: sa.Engine, keyed: bool) -> None:
    # contract: E4, E1
    start = barrier(6)

    def batch(number: int) -> int:
        items: list[Any] = [(None, {"key": f"{number}.{n}"} if keyed else {}) for n in range(1_000)]
        with engine.connect() as conn:
            answers = ping.enqueue_many(items, connection=conn)
            start.wait()  # all are open at the same time
            conn.commit()
        return len({answer.id for answer in answers})

    assert in_threads(*[lambda number=number: batch(number) for number in range(6)]) == [1_000] * 6
    assert count(engine) == 6_000


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


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
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


@pytest.mark.databases("mariadb", reason="E4: deadlocks of the others are below, and in PostgreSQL's own words")
def test_a_deadlock_is_a_conflict_of_the_callers_transaction(
    app: App, ping: Any, engine: sa.Engine, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # contract: E4
    dialect = type(app.databases["default"].dialect)
    with engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE business (n integer PRIMARY KEY, m integer)"))
        conn.execute(sa.text("INSERT INTO business SELECT seq, 0 FROM seq_1_to_50"))
    monkeypatch.setattr(dialect, "look_once", lambda *_: [])  # the race that is lost: the insert meets the row
    with engine.connect() as heavy, engine.connect() as caller:
        caller.execute(sa.text("UPDATE business SET m = 1 WHERE n = 1"))
        heavy.execute(sa.text("UPDATE business SET m = 1 WHERE n > 1"))
        ping.enqueue(key="k", connection=heavy)
        waiting = in_background(lambda: heavy.execute(sa.text("UPDATE business SET m = 1 WHERE n = 1")))
        wait_for_waiters(database)
        with pytest.raises(TransactionConflict, match="roll back"):
            ping.enqueue(key="k", connection=caller)
        caller.rollback()
        waiting.result(10)
        heavy.commit()
    assert count(engine) == 1


@pytest.mark.databases("postgresql", reason="E4: whose deadlock is found is set there")
def test_a_deadlock_over_a_row_that_somebody_wrote_by_hand(
    app: App, ping: Any, engine: sa.Engine, database: Database
) -> None:
    # contract: E4
    with engine.begin() as conn:
        conn.execute(sa.text("CREATE TABLE business (n integer PRIMARY KEY)"))
        conn.execute(sa.text("INSERT INTO business VALUES (1)"))
    with engine.connect() as other, engine.connect() as caller:
        other.exec_driver_sql("SET LOCAL deadlock_timeout = '1h'")  # it is the caller's that is found
        caller.exec_driver_sql("SET LOCAL deadlock_timeout = '10ms'")
        caller.execute(sa.text("SELECT * FROM business FOR UPDATE"))
        other.exec_driver_sql(
            "INSERT INTO rowlock_job (job, fingerprint, payload, key, max_attempts, timeout_ms)"
            " VALUES ('ping', 'f', 'null', 'k', 1, 1)"
        )
        waiting = in_background(lambda: other.exec_driver_sql("SELECT * FROM business FOR UPDATE").all())
        wait_for_waiters(database)
        with pytest.raises(TransactionConflict, match="roll back"):
            ping.enqueue(key="k", connection=caller)
        caller.rollback()
        waiting.result(10)
        other.commit()
    assert count(engine) == 1


@pytest.mark.databases("sqlite", reason="E4: the conflict of SQLite's own: a snapshot that can not become a writer")
@pytest.mark.parametrize("key", [None, "k"])
def test_a_sqlite_snapshot_that_is_too_old_to_write_is_a_conflict(
    app: App, ping: Any, engine: sa.Engine, key: str | None
) -> None:
    # contract: E4
    with engine.connect() as caller:
        caller.exec_driver_sql("BEGIN")
        caller.exec_driver_sql("SELECT count(*) FROM rowlock_job").scalar_one()
        ping.enqueue(key="other")
        with pytest.raises(TransactionConflict, match="roll back"):
            ping.enqueue(key=key, connection=caller)
        caller.rollback()
        assert ping.enqueue(key=key, connection=caller).created
        caller.commit()
    assert count(engine) == 2


@SERVERS
def test_a_batch_that_gives_up_takes_back_what_it_made(
    app: App, ping: Any, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # contract: E4
    from rowlock.store import batch

    monkeypatch.setattr(batch, "CHUNK", 5)
    monkeypatch.setattr(app.databases["default"], "wait_ms", 0)
    dialect = type(app.databases["default"].dialect)
    insert = dialect.insert

    def the_second_chunk_is_taken(self: Any, conn: Any, db: Any, rows: Any) -> Any:
        return [] if rows[0].key == "k5" else insert(self, conn, db, rows)

    monkeypatch.setattr(dialect, "insert", the_second_chunk_is_taken)
    items: list[Any] = [(None, {"key": f"k{n}"}) for n in range(10)]
    with engine.connect() as conn:
        ping.enqueue(key="mine", connection=conn)
        with pytest.raises(EnqueueBusy, match="nothing was written"):
            ping.enqueue_many(items, connection=conn)
        conn.commit()
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
    for number in range(25):
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
    assert count(engine) == 500
