"""`app.records.cancel`: one or many, in the caller's transaction, in the audit table, from the command (O4, O6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from rowlock import (
    App,
    ConnectionTypeError,
    Done,
    EnqueueBusy,
    FilterError,
    FilterTypeError,
    InvalidState,
    Jobs,
    NotFound,
    NotMigrated,
    State,
    WrongDatabase,
)
from rowlock.store import schema
from rowlock.store.asked import carry_out
from support.cli import Result, commands
from support.databases import Database
from support.jobtable import JobTable
from support.races import Blocker

jobs = Jobs()


@jobs.job(name="post", max_attempts=3, timeout=5)
def post() -> None:
    pass


@pytest.fixture
def app(app_factory: Callable[..., App]) -> App:
    return app_factory(jobs)


def test_one_or_many(app: App, table: JobTable) -> None:  # contract: O4
    first, second, third = table.add(3, queue="a", key=None)
    other = post.enqueue(key="k")
    [hold] = table.running(queue="a")
    assert app.records.cancel(first) is State.CANCELLED
    assert app.records.cancel(hold.id, by="ada") is State.RUNNING
    assert app.records.cancel(queue="a", dry_run=True) == Done(3, 0)
    assert app.records.cancel(queue="a", limit=1) == Done(1, 0)
    assert table.states([first, second, third]) == ["cancelled", "cancelled", "pending"]
    assert app.records.cancel(state="pending") == Done(2, 0)
    assert table.states([third, other.id]) == ["cancelled"] * 2
    assert app.records.cancel(older_than=timedelta(seconds=0), state=State.RUNNING) == Done(1, 0)
    assert table.cancels() == {hold.id: "ada"}
    assert post.enqueue(key="k").created


def test_what_is_wrong_is_refused_before_anything_is_done(app: App, table: JobTable) -> None:  # contract: O4
    [id_] = table.add()
    given: list[tuple[type[Exception], dict[str, Any]]] = [
        (FilterError, {}),
        (FilterError, {"id": id_, "queue": "a"}),
        (FilterError, {"id": id_, "limit": 1}),
        (FilterError, {"queue": "a", "limit": 0}),
        (FilterError, {"id": id_, "by": "x" * 256}),
        (FilterTypeError, {"id": "1"}),
        (FilterTypeError, {"id": True}),
        (InvalidState, {"state": "dead"}),
        (FilterError, {"state": "lost"}),
        (NotFound, {"id": id_ + 1}),
        (ConnectionTypeError, {"id": id_, "connection": "here"}),
    ]
    for error, arguments in given:
        with pytest.raises(error):
            app.records.cancel(**arguments)
    assert table.states([id_]) == ["pending"]
    assert app.audit.list().items == []


def test_in_the_callers_transaction(app: App, table: JobTable, engine: sa.Engine) -> None:  # contract: O4, E2
    ids, [hold] = table.add(3), table.running()
    with Session(engine) as session:
        assert app.records.cancel(state="pending", connection=session) == Done(3, 0)
        assert app.records.cancel(hold.id, connection=session, by="ada") is State.RUNNING
        with pytest.raises(InvalidState, match="cancelled"):
            app.records.cancel(ids[0], connection=session)
        session.rollback()
    assert (table.states(ids), table.cancels(), app.audit.list().items) == (["pending"] * 3, {}, [])
    with Session(engine) as session, session.begin():
        own = post.enqueue(key="k", connection=session)
        assert app.records.cancel(own.id, connection=session) is State.CANCELLED
        assert app.records.cancel(hold.id, connection=session, by="bjørn 漢") is State.RUNNING
        with session.begin_nested() as inner:
            assert app.records.cancel(ids[0], connection=session) is State.CANCELLED
            inner.rollback()
        assert app.records.cancel(ids[1], connection=session) is State.CANCELLED
    assert table.states([own.id, *ids]) == ["cancelled", "pending", "cancelled", "pending"]
    assert table.cancels() == {hold.id: "bjørn 漢"}
    finished = table.row(ids[1]).finished_at
    assert abs(table.now() - finished) < timedelta(minutes=1)


def test_a_key_that_it_frees_is_free_in_the_same_transaction(
    app: App, table: JobTable, engine: sa.Engine
) -> None:  # contract: O4, E4
    for how in ("commits", "rolls back", "takes it back"):
        old = post.enqueue(key=how)
        with Session(engine) as session, session.begin() as transaction:
            savepoint = session.begin_nested() if how == "takes it back" else None
            app.records.cancel(old.id, connection=session)
            if savepoint is not None:
                savepoint.rollback()
            new = post.enqueue(key=how, connection=session)
            if how == "rolls back":
                transaction.rollback()
        assert new.created == (how != "takes it back")
        assert table.states([old.id]) == ["cancelled" if how == "commits" else "pending"]
        again = post.enqueue(key=how)
        assert (again.id, again.created) == (new.id if how == "commits" else old.id, False)


async def test_a_key_that_it_frees_in_an_async_transaction(app: App, table: JobTable, async_engine: Any) -> None:
    # contract: O4, E4
    try:
        old = await post.aenqueue(key="k")
        async with async_engine() as engine, engine.begin() as connection:
            await app.records.acancel(old.id, connection=connection)
            new = await post.aenqueue(key="k", connection=connection)
            assert new.created
    finally:
        await app.aclose()
    assert table.states([old.id, new.id]) == ["cancelled", "pending"]


@pytest.mark.databases("mariadb", reason="E4: elsewhere a statement sees what is committed before it")
def test_a_blind_snapshot_sees_what_is_in_work_by_now(app: App, table: JobTable, engine: sa.Engine) -> None:
    # contract: O4, E4
    claimed, ended, replayed, gone = table.add(4)
    table.change(replayed, state="dead")
    with Session(engine) as session, session.begin():
        session.execute(sa.text("SELECT COUNT(*) FROM rowlock_job"))  # the snapshot
        now = table.now()
        table.change(claimed, state="running", lease=now + timedelta(minutes=1), token="t")
        table.change(ended, state="succeeded", finished_at=now)
        table.change(replayed, state="pending")
        table.change(gone, state="running", lease=now + timedelta(minutes=1), token="t")
        assert app.records.cancel(claimed, connection=session) is State.RUNNING
        assert app.records.cancel(replayed, connection=session) is State.CANCELLED
        with pytest.raises(InvalidState, match="succeeded"):
            app.records.cancel(ended, connection=session)
        with table.db.engine().connect() as other:  # what is in work is not locked
            other.exec_driver_sql("SET innodb_lock_wait_timeout = 1")
            other.execute(schema.job.update().where(schema.job.c.id == claimed).values(headers="{}"))
            for _ in range(2):  # nor do cancels of others wait
                assert app.records.cancel(gone) is State.RUNNING
        late = post.enqueue(detached=True)
        assert app.records.cancel(late.id, connection=session) is State.CANCELLED
    assert table.states([claimed, ended, replayed, late.id]) == ["running", "succeeded", "cancelled", "cancelled"]


@pytest.mark.databases("mariadb", reason="E4: elsewhere a statement sees what is committed before it")
def test_a_replay_takes_a_cancel_back_that_its_snapshot_does_not_show(
    app: App, table: JobTable, engine: sa.Engine
) -> None:
    # contract: O4, O2
    [hold] = table.running()
    with Session(engine) as other_session, Session(engine) as session, session.begin():
        app.records.cancel(hold.id, connection=other_session)
        table.change(hold.id, state="dead", lease=None)
        session.execute(sa.text("SELECT COUNT(*) FROM rowlock_job"))  # the snapshot
        other_session.commit()
        assert app.records.replay(state="dead", connection=session, dry_run=True) == Done(1, 0)
        assert table.cancels() == {hold.id: None}
        assert app.records.replay(hold.id, connection=session) == Done(1, 0)
        [other] = table.running()
        assert app.records.cancel(other.id) is State.RUNNING  # it keeps others' cancels from nothing
    assert (table.states([hold.id]), table.cancels()) == (["pending"], {other.id: None})


def test_on_a_connection_in_autocommit_mode(app: App, table: JobTable, engine: sa.Engine) -> None:  # contract: O4, E2
    [id_], [hold] = table.add(), table.running()
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        assert app.records.cancel(id_, connection=connection) is State.CANCELLED
        assert app.records.cancel(hold.id, connection=connection) is State.RUNNING
    assert (table.states([id_]), table.cancels()) == (["cancelled"], {hold.id: None})


async def test_from_a_coroutine(app: App, table: JobTable, async_engine: Any) -> None:  # contract: O4
    ids, [hold] = table.add(3), table.running()
    try:
        async with async_engine() as engine:
            async with engine.connect() as connection:
                assert await app.records.acancel(state="pending", connection=connection) == Done(3, 0)
                assert await app.records.acancel(hold.id, connection=connection) is State.RUNNING
                await connection.rollback()
            async with engine.begin() as connection:
                assert await app.records.acancel(ids[0], connection=connection) is State.CANCELLED
        assert await app.records.acancel(ids[1]) is State.CANCELLED
        assert await app.records.acancel(state="running", dry_run=True) == Done(1, 0)
        with pytest.raises(NotFound):
            await app.records.acancel(10_000)
    finally:
        await app.aclose()
    assert (table.states(ids), table.cancels()) == (["cancelled", "cancelled", "pending"], {})


def test_another_database_is_refused(app: App, table: JobTable) -> None:  # contract: O4, E3
    [id_] = table.add()
    other = sa.create_engine("sqlite://", poolclass=sa.StaticPool)
    with other.connect() as connection, pytest.raises((WrongDatabase, NotMigrated)):
        app.records.cancel(id_, connection=connection)
    other.dispose()
    assert table.states([id_]) == ["pending"]


@pytest.mark.databases("postgresql", "mariadb", reason="E4: SQLite has one writer at a time")
def test_it_waits_for_another_cancel_of_the_same_record_only_and_not_for_ever(
    app: App, table: JobTable, engine: sa.Engine
) -> None:
    # contract: O4
    app.databases["default"].wait_ms = 300
    app.close()  # connections with the shorter bound
    first, second = table.running(2)
    with Session(engine) as session, session.begin():
        app.records.cancel(first.id, connection=session)
        with pytest.raises(EnqueueBusy, match="another transaction"):
            app.records.cancel(first.id)
        assert app.records.cancel(second.id) is State.RUNNING
    assert list(table.cancels()) == [first.id, second.id]


@pytest.mark.databases("sqlite", reason="E4: servers have no lock of the whole database")
def test_a_file_that_somebody_writes_to_is_busy_and_said_to_be(app: App, table: JobTable, database: Database) -> None:
    # contract: O4
    app.databases["default"].wait_ms = 100
    app.close()
    [hold] = table.running()
    with Blocker(database) as blocker:
        blocker.begin()
        with pytest.raises(EnqueueBusy, match="another transaction"):
            app.records.cancel(hold.id)
    assert app.records.cancel(hold.id) is State.RUNNING


def test_the_audit_table_tells_of_it_once_a_deed(app: App, table: JobTable) -> None:  # contract: O4, O6
    table.add(250, queue="a")
    [hold] = table.running()
    app.records.cancel(hold.id, by="ada")
    app.records.cancel(queue="a")
    with pytest.raises(NotFound):
        app.records.cancel(10_000)
    told = [(item.action, dict(item.detail), item.count, item.by) for item in app.audit.list().items]
    assert told == [("cancel", {"queue": "a"}, 250, None), ("cancel", {"id": hold.id}, 1, "ada")]


# --- explain, and the command -----------------------------------------------------------------------------------------


def test_explain_tells_who_asked_and_when(app: App, table: JobTable) -> None:  # contract: O4, H4
    [hold], [lost] = table.running(), table.running(lease=timedelta(seconds=-1))
    [back] = table.add()
    for id_ in (hold.id, lost.id):
        app.records.cancel(id_, by="ada")
    with table.db.engine().connect() as connection:
        table.db.dialect.note_cancels(connection, table.db, [back], None)
    found = {id_: app.records.explain(id_) for id_ in (hold.id, lost.id, back)}
    assert [one.reason for one in found.values()] == ["held", "lease_expired", "cancel_asked"]
    for one in found.values():
        assert abs(table.now() - one.facts["cancel_asked_at"]) < timedelta(minutes=1)  # pyright: ignore[reportOperatorIssue]
    assert "ada asked at 20" in found[hold.id].sentence
    assert "it becomes cancelled when" in found[lost.id].sentence
    assert found[lost.id].facts["next"] == "cancelled"
    assert "somebody asked at 20" in found[back].sentence
    table.db.run(carry_out)
    assert app.records.explain(back).reason == "cancelled"


PROGRAM = """
import os
from rowlock import App, Jobs
jobs = Jobs()
@jobs.job(name="post", max_attempts=3, timeout=5)
def post() -> None: ...
app = App(os.environ["ROWLOCK_TEST_URL"], include=[jobs])
"""


@pytest.fixture
def cli(
    app: App, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Result]]:
    monkeypatch.setenv("ROWLOCK_TEST_URL", database.url)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)
    with commands(capsys, tmp_path) as run:
        yield lambda *arguments: run("records", "cancel", *arguments, "--app", "program:app")


def test_the_command(cli: Callable[..., Result], table: JobTable) -> None:  # contract: O4
    ids, [hold], [ended] = table.add(4, queue="a"), table.running(), table.add(state="dead", finished_at=table.now())
    assert cli(str(ids[0]), "--dry-run").out == f"record {ids[0]} would be cancelled\n"
    assert cli(str(ids[0])).out == f"record {ids[0]} is cancelled\n"
    assert "worker is asked to end it" in cli(str(hold.id), "--by", "ada").out
    assert cli(str(hold.id), "--json").json == {"id": hold.id, "state": "running", "dry_run": False}
    assert "it is dead" in cli(str(ended)).sentence
    assert "neither an id nor a filter" in cli("--yes").sentence
    assert "an ID and filters" in cli(str(hold.id), "--queue", "a").sentence
    assert "3 records would be cancelled" in cli("--queue", "a", "--dry-run").out
    assert "give --yes" in cli("--queue", "a").sentence
    assert cli("--queue", "a", "--limit", "1", "--yes", "--json").json == {
        "count": 1,
        "conflicts": 0,
        "dry_run": False,
    }
    assert "2 records cancelled" in cli("--state", "pending", "--queue", "a", "--yes").out
    assert table.states(ids) == ["cancelled"] * 4
    assert table.cancels() == {hold.id: "ada"}
