"""Enqueues within a window that meet: what comes, runs and succeeds between look and insert is a duplicate too (E5)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from rowlock import App, Context, Enqueued, Jobs, State
from rowlock.store import schema
from support.databases import Database
from support.waiting import barrier, in_threads, wait_until

AppFactory = Callable[..., App]
HOUR = timedelta(hours=1)
SERVERS = pytest.mark.databases("postgresql", "mariadb", reason="E4: SQLite has one write transaction at a time")


@pytest.fixture
def app(app_factory: AppFactory) -> App:
    return app_factory()


@pytest.fixture
def charge(app: App) -> Any:
    return app.declare("charge", max_attempts=1, timeout=30, dedupe_for=HOUR)


class Passing:
    """Between a look and the insert that follows it, a record of each looked-for key comes, runs and succeeds."""

    def __init__(self, engine: sa.Engine, app: App, charge: Any, patch: pytest.MonkeyPatch, times: int = 1) -> None:
        self.made: dict[str, int] = {}
        self.left = times
        dialect = type(app.databases["default"].dialect)
        look = dialect.find_recent

        def look_then_lose(that: Any, conn: Any, db: Any, jobs: Any, keys: Any, window_ms: int) -> Any:
            found = look(that, conn, db, jobs, keys, window_ms)
            if self.left:
                self.left -= 1
                now = app.databases["default"].dialect.from_db(
                    conn.execute(sa.text(f"SELECT {that.now(db)}"), db.now_params()).scalar_one()
                )
                with engine.begin() as other:
                    for key in keys:
                        other.execute(schema.job.insert().values(**self.row(charge, key, now)))
                        newest = other.execute(sa.select(sa.func.max(schema.job.c.id))).scalar_one()
                        self.made[key] = newest
            return found

        patch.setattr(dialect, "find_recent", look_then_lose)

    @staticmethod
    def row(charge: Any, key: str, now: Any) -> dict[str, Any]:
        return {
            "job": "charge", "fingerprint": charge.wire.fingerprint, "payload": "null", "queue": "default",
            "priority": 100, "run_at": now, "attempt": 1, "max_attempts": 1, "timeout_ms": 30_000, "handed_back": 0,
            "created_at": now, "finished_at": now, "key": key, "state": "succeeded",
        }  # fmt: skip


def rows(engine: sa.Engine) -> list[tuple[str, str]]:
    with engine.connect() as conn:
        return [tuple(row) for row in conn.execute(sa.select(schema.job.c.key, schema.job.c.state))]


@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_in_a_transaction_of_its_own(
    app: App, charge: Any, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    # contract: E5
    passing = Passing(engine, app, charge, monkeypatch)
    if many:
        answers = charge.enqueue_many([(None, {"key": "a"}), None, (None, {"key": "b"}), (None, {"key": "a"})])
        created = answers.pop(1)
        assert created.created
        keys = ["a", "b", "a"]
    else:
        answers, keys = [charge.enqueue(key="a")], ["a"]
    assert answers == [Enqueued(passing.made[key], False, State.SUCCEEDED) for key in keys]
    assert [state for key, state in rows(engine) if key] == ["succeeded"] * len(passing.made)


async def test_from_a_coroutine(app: App, charge: Any, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    # contract: E5
    passing = Passing(engine, app, charge, monkeypatch)
    try:
        assert await charge.aenqueue(key="a") == Enqueued(passing.made["a"], False, State.SUCCEEDED)
    finally:
        await app.aclose()
    assert rows(engine) == [("a", "succeeded")]


@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE", "AUTOCOMMIT"])
@pytest.mark.parametrize("many", [False, True], ids=["one", "many"])
def test_in_a_callers_transaction(
    app: App, charge: Any, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch, level: str, many: bool
) -> None:
    # contract: E5, E2
    if engine.name == "sqlite" and level in {"READ COMMITTED", "REPEATABLE READ"}:
        pytest.skip("only postgresql, mariadb: E5: SQLite has no such levels")
    with engine.connect().execution_options(isolation_level=level) as caller:
        if engine.name == "postgresql" or level == "REPEATABLE READ":
            caller.execute(sa.text("SELECT count(*) FROM rowlock_job")).scalar_one()  # a snapshot from before
        passing = Passing(engine, app, charge, monkeypatch)
        if many:
            answers = charge.enqueue_many([(None, {"key": "a"}), (None, {"key": "b"}), None], connection=caller)
            assert answers.pop().created
        else:
            answers = [charge.enqueue(key="a", connection=caller)]
        assert answers == [Enqueued(passing.made[key], False, State.SUCCEEDED) for key in ("a", "b")[: len(answers)]]
        # The transaction is as good as before, and its own records are its own.
        mine = charge.enqueue(key="mine", connection=caller)
        assert mine.created
        assert charge.enqueue(key="mine", connection=caller) == Enqueued(mine.id, False, State.PENDING)
        caller.commit()
    expected = [(key, "succeeded") for key in passing.made] + [("mine", "pending")] + [(None, "pending")] * many
    assert sorted(rows(engine), key=str) == sorted(expected, key=str)


@SERVERS
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE", "AUTOCOMMIT"])
async def test_in_an_async_callers_transaction(
    app: App, charge: Any, engine: sa.Engine, async_engine: Any, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    # contract: E5, E2
    async with async_engine(isolation_level=level) as aengine, aengine.connect() as caller:
        if aengine.name == "postgresql" or level == "REPEATABLE READ":
            await caller.execute(sa.text("SELECT count(*) FROM rowlock_job"))
        passing = Passing(engine, app, charge, monkeypatch)
        assert await charge.aenqueue(key="a", connection=caller) == Enqueued(passing.made["a"], False, State.SUCCEEDED)
        assert (await charge.aenqueue(key="mine", connection=caller)).created
        await caller.commit()
    await app.aclose()
    assert sorted(rows(engine)) == [("a", "succeeded"), ("mine", "pending")]


@SERVERS
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_a_snapshot_older_than_its_success_still_finds_it(app: App, charge: Any, engine: sa.Engine, level: str) -> None:
    # contract: E5
    if engine.name != "postgresql" and level == "SERIALIZABLE":
        pytest.skip("only postgresql: E5: elsewhere each read there locks what it reads, and nobody succeeds meanwhile")
    with engine.connect().execution_options(isolation_level=level) as caller:
        caller.execute(sa.text("SELECT count(*) FROM rowlock_job")).scalar_one()
        first = charge.enqueue(key="k")
        with engine.begin() as other:
            other.execute(schema.job.update().values(state="succeeded"))
        for _ in range(2):
            answers = [charge.enqueue(key="k", connection=caller),
                       *charge.enqueue_many([(None, {"key": "k"})] * 2, connection=caller)]  # fmt: skip
            assert answers == [Enqueued(first.id, False, State.SUCCEEDED)] * 3
        caller.commit()
    assert rows(engine) == [("k", "succeeded")]


def test_a_rollback_after_a_duplicate_leaves_no_trace(
    app: App, charge: Any, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # contract: E5, E2
    passing = Passing(engine, app, charge, monkeypatch)
    with Session(engine) as session:
        assert not charge.enqueue(key="a", connection=session).created
        session.rollback()
    assert rows(engine) == [("a", "succeeded")]
    assert charge.enqueue(key="a").id == passing.made["a"]


def test_eight_at_once_after_a_success_are_all_duplicates(app: App, charge: Any, engine: sa.Engine) -> None:
    # contract: E5
    first = charge.enqueue(key="k")
    with engine.begin() as conn:
        conn.execute(schema.job.update().values(state="succeeded"))
    start = barrier(8)

    def enqueue() -> Enqueued:
        start.wait()
        return charge.enqueue(key="k")

    assert in_threads(*[enqueue] * 8) == [Enqueued(first.id, False, State.SUCCEEDED)] * 8


def test_two_batches_with_the_same_keys_in_opposite_order(app: App, charge: Any, engine: sa.Engine) -> None:
    # contract: E5, E4
    # case: C52
    for number in range(15):
        items: list[Any] = [(None, {"key": f"{number}.{n}"}) for n in range(20)]
        start = barrier(2)

        def batch(items: list[Any], start: Any = start) -> list[Enqueued]:
            start.wait()
            return charge.enqueue_many(items)

        one, two = in_threads(lambda items=items: batch(items), lambda items=items: batch(items[::-1]))
        assert [answer.id for answer in one] == [answer.id for answer in two[::-1]]
        assert sum(answer.created for answer in [*one, *two]) == 20
    assert len(rows(engine)) == 300


def test_while_a_worker_finishes_them_each_key_has_one_record(
    app_factory: AppFactory, database: Database, engine: sa.Engine
) -> None:
    # contract: E5
    jobs, ran = Jobs(), list[int]()

    @jobs.job(max_attempts=3, timeout=30, name="charge", dedupe_for=HOUR)
    def charge(ctx: Context) -> None:
        ran.append(ctx.id)

    app = app_factory(jobs, settings={"database": {"default": {"url": database.url}}, "job": {"poll_ms": 1}})
    with app.worker_thread():
        for number in range(15):
            start = barrier(4)

            def own(key: str = f"k{number}", start: Any = start) -> Enqueued:
                start.wait()
                for _ in range(8):
                    answer = charge.enqueue(key=key)
                return answer

            def joined(key: str = f"k{number}", start: Any = start) -> Enqueued:
                start.wait()
                for _ in range(4):
                    if engine.name == "sqlite":
                        answer = charge.enqueue(key=key)
                        continue
                    with engine.begin() as conn:
                        answer = charge.enqueue(key=key, connection=conn)
                return answer

            assert len({answer.id for answer in in_threads(own, own, joined, joined)}) == 1
        wait_until(lambda: {state for _, state in rows(engine)} == {"succeeded"})
    assert sorted(rows(engine)) == sorted((f"k{number}", "succeeded") for number in range(15))
    assert len(ran) == 15
