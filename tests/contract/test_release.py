"""Blocked records that a program can run again go back to pending (O3)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from rowlock import (
    App,
    Done,
    EnqueueBusy,
    FilterError,
    InvalidState,
    Jobs,
    KeyTaken,
    NotFound,
    NotMigrated,
    State,
    WrongDatabase,
)
from support.databases import Database
from support.jobtable import JobTable
from support.letters import Letter, blocked, declared
from support.races import Blocker
from support.waiting import wait_until

jobs = Jobs()
post = declared(jobs)


@pytest.fixture
def app(app_factory: Callable[..., App]) -> App:
    return app_factory(jobs)


@pytest.mark.parametrize("category", ["unknown_job", "schema_mismatch", "invalid_policy"])
def test_a_record_that_this_program_knows_goes_back_whole(app: App, table: JobTable, category: str) -> None:
    # contract: O3
    [id_] = blocked(table, key="k", error_category=category)
    before = table.row(id_)
    assert app.records.release(id_) == Done(1, 0)
    after = table.row(id_)
    assert (after.state, after.attempt, after.key, after.payload) == ("pending", 1, "k", before.payload)
    assert (after.error_category, after.error_class, after.error_summary, after.finished_at) == (None,) * 4
    assert timedelta(0) <= table.now() - after.run_at < timedelta(minutes=1)
    with app.worker_thread():
        wait_until(lambda: app.records.get(id_).state is State.SUCCEEDED)
    assert app.records.get(id_).attempt == 2


def test_by_filter_or_all(app: App, table: JobTable) -> None:  # contract: O3
    first = blocked(table, 3, queue="a")
    second = blocked(table, 2, queue="b", job="mail")
    left = [
        *blocked(table, job="telegram"),
        *blocked(table, fingerprint="0" * 64),
        *blocked(table, error_category="corrupt_payload"),
        *blocked(table, error_category="invalid_policy", max_attempts=101),
        *blocked(table, error_category="invalid_policy", timeout_ms=3_600_001),
        *blocked(table, state="dead", error_category="failed"),
    ]
    assert app.records.release(queue="a", dry_run=True) == Done(3, 0)
    assert {row.state for row in table.rows(first)} == {"blocked"}
    assert app.records.release(queue="a") == Done(3, 0)
    assert {row.state for row in table.rows(first)} == {"pending"}
    assert {row.state for row in table.rows(second)} == {"blocked"}
    assert app.records.release() == Done(2, 0)
    assert {row.state for row in table.rows(left)} == {"blocked", "dead"}
    assert app.records.release() == Done(0, 0)


def test_many_go_in_bounded_batches(app: App, table: JobTable) -> None:  # contract: O3
    ids = blocked(table, 450)
    assert app.records.release() == Done(450, 0)
    assert {row.state for row in table.rows(ids)} == {"pending"}


@pytest.mark.databases("sqlite", reason="L5: elsewhere a lease need not cover the timeout")
def test_a_timeout_that_the_lease_does_not_cover_stays_blocked(app: App, table: JobTable) -> None:
    # contract: O3, S4, L5
    [id_] = blocked(table, error_category="invalid_policy", timeout_ms=60_000)
    assert app.records.release() == Done(0, 0)
    with pytest.raises(InvalidState, match="does not cover"):
        app.records.release(id_)


def test_what_can_not_be_released_says_why(app: App, table: JobTable) -> None:  # contract: O3, O2
    with pytest.raises(NotFound):
        app.records.release(10_000)
    [running] = [hold.id for hold in table.running()]
    for id_, why in (
        (running, "running, not blocked"),
        (blocked(table, state="dead")[0], "dead, not blocked"),
        (blocked(table, error_category="corrupt_payload")[0], "corrupt_payload"),
        (blocked(table, job="telegram")[0], "'telegram' at all"),
        (blocked(table, fingerprint="0" * 64)[0], "'post' with its input"),
        (blocked(table, error_category="invalid_policy", max_attempts=0)[0], "out of bounds"),
    ):
        for dry_run in (True, False):
            with pytest.raises(InvalidState, match=why):
                app.records.release(id_, dry_run=dry_run)
    with pytest.raises(FilterError):
        app.records.release(1, queue="a")


@pytest.mark.parametrize("name", ["post", "mail"])
def test_a_key_taken_meanwhile_is_a_conflict(app: App, table: JobTable, name: str) -> None:  # contract: O3, O2, E4
    old = blocked(table, key="k", job=name)[0]
    free = blocked(table, key="free")[0]
    holder = post.enqueue(Letter("b"), key="k")
    for dry_run in (True, False):
        with pytest.raises(KeyTaken) as refused:
            app.records.release(old, dry_run=dry_run)
        assert (refused.value.id, refused.value.holder) == (old, holder.id)
    assert app.records.release(dry_run=True) == Done(1, 1)
    assert app.records.release() == Done(1, 1)
    assert (table.row(old).state, table.row(free).state) == ("blocked", "pending")


def test_of_several_with_one_key_the_oldest_goes(app: App, table: JobTable) -> None:  # contract: O3, E4
    ids = [*blocked(table, key="k", job="mail"), *blocked(table, 2, key="k")]
    assert app.records.release(dry_run=True) == Done(1, 2)
    assert app.records.release() == Done(1, 2)
    assert [row.state for row in table.rows(ids)] == ["pending", "blocked", "blocked"]


def test_dry_run_counts_a_key_once_over_batches(app: App, table: JobTable) -> None:  # contract: O3
    blocked(table, key="k")
    blocked(table, 200)
    blocked(table, key="k")
    assert app.records.release(dry_run=True) == Done(201, 1)
    assert app.records.release() == Done(201, 1)


@pytest.mark.databases("postgresql", "mariadb", reason="O3: SQLite has no locked rows")
def test_a_record_that_somebody_has_locked_is_passed_over(app: App, table: JobTable, database: Database) -> None:
    # contract: O3
    first, second = blocked(table, 2)
    with Blocker(database) as blocker:
        blocker.lock_row("rowlock_job", id=first)
        assert app.records.release() == Done(1, 0)
        with pytest.raises(InvalidState, match="by somebody else"):
            app.records.release(first)
    assert table.row(second).state == "pending"
    assert app.records.release() == Done(1, 0)


@pytest.mark.databases("postgresql", "mariadb", reason="E4: SQLite has one writer at a time")
def test_a_key_that_is_just_being_enqueued(app: App, table: JobTable, engine: sa.Engine) -> None:  # contract: O3, E4
    app.databases["default"].wait_ms = 300
    app.close()  # connections with the shorter bound
    old, free = blocked(table, key="k")[0], blocked(table)[0]
    with Session(engine) as session, session.begin():
        post.enqueue(Letter("b"), key="k", connection=session)
        assert app.records.release() == Done(1, 1)
        with pytest.raises(EnqueueBusy):
            app.records.release(old)
    assert (table.row(old).state, table.row(free).state) == ("blocked", "pending")


def test_in_the_callers_transaction(app: App, table: JobTable, engine: sa.Engine) -> None:  # contract: O3, E2
    ids = blocked(table, 3, key=None)
    with Session(engine) as session:
        assert app.records.release(connection=session) == Done(3, 0)
        session.rollback()
    assert {row.state for row in table.rows(ids)} == {"blocked"}
    with Session(engine) as session, session.begin():
        assert app.records.release(ids[0], connection=session) == Done(1, 0)
    after = table.row(ids[0])
    assert after.state == "pending"
    assert abs(table.now() - after.run_at) < timedelta(minutes=1)


def test_a_conflict_leaves_the_callers_transaction_usable(
    app: App, table: JobTable, engine: sa.Engine
) -> None:  # contract: O3, E4
    [old] = blocked(table, key="k")
    [free] = blocked(table, key="f")
    with Session(engine) as session, session.begin():
        holder = post.enqueue(Letter("b"), key="k", connection=session)  # its own, not committed
        with pytest.raises(KeyTaken) as refused:
            app.records.release(old, connection=session)
        assert refused.value.holder == holder.id
        assert app.records.release(connection=session) == Done(1, 1)
        later = post.enqueue(Letter("c"), connection=session)
    assert (table.row(old).state, table.row(free).state, table.row(later.id).state) == ("blocked", "pending", "pending")


@pytest.mark.parametrize("name", ["post", "mail"])
@pytest.mark.databases("mariadb", reason="E4: elsewhere a statement sees what is committed before it")
def test_a_blind_snapshot_sees_no_key_and_takes_none(app: App, table: JobTable, engine: sa.Engine, name: str) -> None:
    # contract: O3, E4
    [old] = blocked(table, key="k", job=name)
    with Session(engine) as session, session.begin():
        session.execute(sa.text("SELECT COUNT(*) FROM rowlock_job"))  # the snapshot
        holder = post.enqueue(Letter("b"), key="k", detached=True)
        with pytest.raises(KeyTaken) as refused:
            app.records.release(old, connection=session)
        assert refused.value.holder == holder.id
        assert app.records.release(connection=session) == Done(0, 1)


async def test_from_a_coroutine(app: App, table: JobTable, async_engine: Any) -> None:  # contract: O3
    ids = [*blocked(table, key="k"), *blocked(table, 2)]
    await post.aenqueue(Letter("b"), key="k")
    try:
        async with async_engine() as engine:
            async with engine.connect() as connection:
                assert await app.records.arelease(connection=connection) == Done(2, 1)
                await connection.rollback()
            async with engine.begin() as connection:
                assert await app.records.arelease(ids[1], connection=connection) == Done(1, 0)
        with pytest.raises(KeyTaken):
            await app.records.arelease(ids[0])
        assert await app.records.arelease(dry_run=True) == Done(1, 1)
        assert await app.records.arelease() == Done(1, 1)
    finally:
        await app.aclose()
    assert [row.state for row in table.rows(ids)] == ["blocked", "pending", "pending"]


def test_another_database_is_refused(app: App, table: JobTable) -> None:  # contract: O3, E3
    [id_] = blocked(table)
    other = sa.create_engine("sqlite://", poolclass=sa.StaticPool)
    with other.connect() as connection, pytest.raises((WrongDatabase, NotMigrated)):
        app.records.release(id_, connection=connection)
    other.dispose()
    assert table.row(id_).state == "blocked"


def test_a_start_says_that_there_are_some(
    app: App, table: JobTable, caplog: pytest.LogCaptureFixture
) -> None:  # contract: O3
    blocked(table, 2)
    with caplog.at_level("WARNING", "rowlock"), app.worker_thread():
        wait_until(lambda: any("rowlock records release" in record.getMessage() for record in caplog.records))
    [said] = [record.getMessage() for record in caplog.records if "records release" in record.getMessage()]
    assert "2 blocked records" in said
