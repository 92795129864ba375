"""Dead letters: replaying and purging dead and blocked records (O2)."""

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
    Reason,
    State,
    WrongDatabase,
)
from rowlock.testing import TestApp
from support.databases import Database
from support.jobtable import JobTable
from support.letters import Letter, blocked, dead, declared
from support.races import Blocker
from support.waiting import wait_until

jobs = Jobs()
fails = True


def deliver() -> None:
    if fails:
        raise TimeoutError


post = declared(jobs, deliver)


@jobs.job(name="other", max_attempts=1, timeout=5)
def other() -> None:
    pass


@pytest.fixture
def app(app_factory: Callable[..., App]) -> App:
    return app_factory(jobs)


CHANGED = {"state", "run_at", "attempt", "handed_back", "finished_at", "lease"}


@pytest.mark.parametrize("state", ["dead", "blocked"])
def test_a_record_begins_anew_and_keeps_everything_else(app: App, table: JobTable, state: str) -> None:
    # contract: O2, S2
    # case: C81, C83
    [id_] = dead(table, state=state, key="k", queue="billing", priority=7, headers='{"trace":"1"}', timeout_ms=1_234)
    before = table.row(id_)._mapping
    assert app.records.replay(id_, dry_run=True) == Done(1, 0)
    assert table.row(id_)._mapping == before
    assert app.records.replay(id_) == Done(1, 0)
    after = table.row(id_)._mapping
    assert {name for name in after if after[name] != before[name]} == CHANGED - {"lease"}
    assert (after["state"], after["attempt"], after["handed_back"], after["finished_at"]) == ("pending", 0, 0, None)
    assert timedelta(0) <= table.now() - after["run_at"] < timedelta(minutes=1)
    with pytest.raises(InvalidState, match="pending, not dead or blocked"):
        app.records.replay(id_)
    assert len(table.rows()) == 1
    assert app.records.list(state=state).items == []


def test_it_runs_again_with_all_its_attempts_and_dies_once_more(app: App) -> None:  # contract: O2, R1
    # case: C81
    with TestApp(app) as case:
        done = post.enqueue(Letter("a"))

        def drained() -> tuple[State, int]:
            for _ in range(5):
                case.drain()
                case.advance(minutes=10)
            record = app.records.get(done.id)
            return record.state, record.attempt

        assert drained() == (State.DEAD, 3)
        app.records.replay(done.id)
        found = app.records.explain(done.id)
        assert found.reason is not Reason.DEAD
        assert app.records.get(done.id).error_class == "TimeoutError"  # in sight until it ends again
        assert drained() == (State.DEAD, 3)
        assert [record.id for record in app.records.list().items] == [done.id]
        app.records.replay(done.id)
        globals()["fails"] = False
        try:
            case.drain()
        finally:
            globals()["fails"] = True
        record = app.records.get(done.id)
        assert (record.state, record.attempt, record.error_class) == (State.SUCCEEDED, 1, None)


def test_what_was_replayed_and_is_not_due_says_what_it_died_of(app: App, table: JobTable) -> None:  # contract: H4, O2
    [id_] = dead(table)
    app.records.replay(id_)
    table.change(id_, run_at=table.now() + timedelta(hours=1))
    assert "before it was replayed it ended (failed: builtins.TimeoutError: x)" in app.records.explain(id_).sentence


def test_only_dead_and_blocked_ones(app: App, table: JobTable) -> None:  # contract: O2
    # case: C07
    [running] = [hold.id for hold in table.running()]
    ended = {state: dead(table, state=state)[0] for state in ("succeeded", "cancelled")}
    [pending] = table.add()
    before = table.rows()
    for id_, state in ((running, "running"), (pending, "pending"), *((id_, state) for state, id_ in ended.items())):
        for change in (app.records.replay, app.records.purge):
            for dry_run in (True, False):
                with pytest.raises(InvalidState, match=f"it is {state}, not dead or blocked"):
                    change(id_, dry_run=dry_run)
                with pytest.raises(InvalidState, match="only dead or blocked"):
                    change(state=state, dry_run=dry_run)
    for change in (app.records.replay, app.records.purge):
        assert change(older_than=0) == Done(0, 0)
        for id_ in (10_000, 0, -1, 2**63):
            with pytest.raises(NotFound):
                change(id_)
    assert table.rows() == before


@pytest.mark.parametrize("what", ["replay", "purge"])
def test_by_filter(app: App, table: JobTable, what: str) -> None:  # contract: O2, O1
    # case: C85
    change: Callable[..., Done] = getattr(app.records, what)
    new = timedelta(hours=1)
    ids = {
        "a": dead(table, 3, queue="a", created_at=table.now() - new),
        "class": dead(table, 2, error_category="timed_out"),
        "other": dead(table, 2, job="other", key="k", created_at=table.now() - new)[:1],
        "blocked": blocked(table, 2),
        "left": [*table.add(queue="a"), *dead(table, state="succeeded", queue="a"), *dead(table)],
    }

    def gone(part: str) -> bool:
        rows = table.rows(ids[part])
        return all(row.state == "pending" for row in rows) if what == "replay" else rows == []

    left = table.rows(ids["left"])
    assert change(queue="a", dry_run=True) == Done(3, 0)
    assert not gone("a")
    assert change(queue="a") == Done(3, 0)
    assert gone("a")
    assert change(category="timed_out", state="dead", job="post") == Done(2, 0)
    assert gone("class")
    assert change(key="k", limit=1) == Done(1, 0)
    assert gone("other")
    assert change(state="blocked", older_than="1d") == Done(2, 0)
    assert gone("blocked")
    assert change(job="post", older_than=timedelta(days=40)) == Done(0, 0)
    assert change(job="post", older_than=31 * 86_400.0) == Done(0, 0)
    assert table.rows(ids["left"]) == left
    assert change(job="post", older_than="29d") == Done(1, 0)


@pytest.mark.parametrize("what", ["replay", "purge"])
def test_the_oldest_first_up_to_the_limit(app: App, table: JobTable, what: str) -> None:  # contract: O2
    # case: C83
    ids = [dead(table)[0] if n % 2 else blocked(table)[0] for n in range(25)]
    assert getattr(app.records, what)(queue="default", limit=10, dry_run=True) == Done(10, 0)
    assert getattr(app.records, what)(queue="default", limit=10) == Done(10, 0)
    rows = {row.id: row.state for row in table.rows()}
    assert [id_ for id_ in ids if rows.get(id_) in {"dead", "blocked"}] == ids[10:]


def test_many_and_none_at_once(app: App, table: JobTable) -> None:  # contract: O2
    # case: C85
    ids = dead(table, 450)
    assert app.records.replay(state="dead", job="post") == Done(450, 0)
    assert {row.state for row in table.rows(ids)} == {"pending"}
    assert app.records.replay(state="dead") == Done(0, 0)
    dead(table, 450)
    assert app.records.purge(state="dead") == Done(450, 0)
    assert app.records.purge(state="dead") == Done(0, 0)
    assert [row.id for row in table.rows()] == ids


@pytest.mark.parametrize(
    "wanted",
    [
        {}, {"id": 1, "queue": "a"}, {"id": 1, "limit": 1}, {"id": "1"}, {"id": True}, {"queue": "a", "limit": 0},
        {"queue": "a", "limit": 1.5}, {"older_than": "soon"}, {"older_than": -1}, {"state": "done"},
        {"id": 1, "by": " "},
    ],
    ids=repr,
)  # fmt: skip
def test_what_names_no_records_is_refused(app: App, table: JobTable, wanted: dict[str, Any]) -> None:
    # contract: O2, Z1
    [id_] = dead(table)
    for change in (app.records.replay, app.records.purge):
        with pytest.raises(FilterError):
            change(**wanted)
    assert table.row(id_).state == "dead"


@pytest.mark.parametrize("name", ["post", "mail"])
def test_a_key_taken_meanwhile_is_a_conflict(app: App, table: JobTable, name: str) -> None:  # contract: O2, E4
    # case: C82
    [first] = dead(table, key="k", job=name)
    holder = post.enqueue(Letter("b"), key="k")
    for dry_run in (True, False):
        with pytest.raises(KeyTaken) as refused:
            app.records.replay(first, dry_run=dry_run)
        assert (refused.value.id, refused.value.holder) == (first, holder.id)
    assert table.row(first).state == "dead"
    assert app.records.purge(first) == Done(1, 0)


def test_conflicts_stop_no_bulk_replay(app: App, table: JobTable) -> None:  # contract: O2, E4
    # case: C82
    ids = [dead(table, key=f"k{n}")[0] for n in range(100)]
    taken = {n: post.enqueue(Letter("b"), key=f"k{n}").id for n in range(0, 100, 20)}
    assert app.records.replay(state="dead", dry_run=True) == Done(95, 5)
    assert app.records.replay(state="dead") == Done(95, 5)
    states = [row.state for row in table.rows(ids)]
    assert [n for n, state in enumerate(states) if state == "dead"] == sorted(taken)
    assert app.records.replay(job="post", limit=3) == Done(0, 5)


def test_a_limit_is_of_those_that_go(app: App, table: JobTable) -> None:  # contract: O2
    ids = [dead(table, key=f"k{n}")[0] for n in range(6)]
    for n in (0, 2):
        post.enqueue(Letter("b"), key=f"k{n}")
    assert app.records.replay(state="dead", limit=3) == Done(3, 2)
    assert [row.state for row in table.rows(ids)] == ["dead", "pending", "dead", "pending", "pending", "dead"]


def test_of_several_with_one_key_the_oldest_goes(app: App, table: JobTable) -> None:  # contract: O2, E4
    ids = [*dead(table, key="k", job="mail"), *blocked(table, key="k"), *dead(table, key="k")]
    assert app.records.replay(key="k", dry_run=True) == Done(1, 2)
    assert app.records.replay(key="k") == Done(1, 2)
    assert [row.state for row in table.rows(ids)] == ["pending", "blocked", "dead"]


def test_a_job_that_this_program_does_not_know_has_keys_of_its_own(app: App, table: JobTable) -> None:
    # contract: O2, S7
    # case: C58
    [first, second] = dead(table, 2, job="telegram", key="k")
    post.enqueue(Letter("b"), key="k")
    assert app.records.replay(second) == Done(1, 0)
    with pytest.raises(KeyTaken):
        app.records.replay(first)


def test_a_renamed_job_is_replayed_to_its_new_name(app: App, table: JobTable) -> None:  # contract: O2, J4
    # case: C58
    [id_] = dead(table, job="mail")
    app.records.replay(id_)
    globals()["fails"] = False
    try:
        with app.worker_thread():
            wait_until(lambda: app.records.get(id_).state is State.SUCCEEDED)
    finally:
        globals()["fails"] = True


def test_a_blocked_one_that_still_can_not_run_is_blocked_again(app: App, table: JobTable) -> None:
    # contract: O2, S4, W5
    # case: C57
    [id_] = blocked(table, error_category="corrupt_payload", payload='{"to":\x01}')
    assert app.records.explain(id_).facts["remedies"] == ["replay", "purge"]
    app.records.replay(id_)
    with app.worker_thread():
        wait_until(lambda: app.records.get(id_).state is State.BLOCKED)
    record = app.records.get(id_)
    assert (record.error_category, record.attempt) == ("corrupt_payload", 0)
    assert table.row(id_).payload == '{"to":\x01}'


def test_a_key_with_a_nul_or_a_surrogate_is_no_filter(app: App, table: JobTable) -> None:  # contract: O1, O2
    # case: C57
    dead(table)
    for text in ("a\0b", "\udc80"):
        for name in ("key", "queue", "job", "category"):
            with pytest.raises(FilterError, match=name):
                app.records.replay(**{name: text})  # pyright: ignore[reportArgumentType]


@pytest.mark.databases("sqlite", reason="S5: the other databases have a native time type")
def test_the_new_time_has_the_one_form(app: App, table: JobTable, engine: sa.Engine) -> None:  # contract: O2, S5
    # case: C75
    for id_ in dead(table, 2):
        app.records.replay(id_)
    with engine.connect() as conn:
        times = conn.exec_driver_sql("SELECT run_at FROM rowlock_job").scalars().all()
    assert {len(time) for time in times} == {26}
    assert all(time[10] == " " and time[19] == "." for time in times)


@pytest.mark.databases("postgresql", "mariadb", reason="O2: SQLite has no locked rows")
@pytest.mark.parametrize("what", ["replay", "purge"])
def test_a_record_that_somebody_has_locked_is_passed_over(
    app: App, table: JobTable, database: Database, what: str
) -> None:
    # contract: O2
    first, second = dead(table, 2)
    change: Callable[..., Done] = getattr(app.records, what)
    with Blocker(database) as blocker:
        blocker.lock_row("rowlock_job", id=first)
        assert change(state="dead") == Done(1, 0)
        with pytest.raises(InvalidState, match="by somebody else"):
            change(first)
    assert [row.id for row in table.rows() if row.state == "dead"] == [first]
    assert change(state="dead") == Done(1, 0)
    assert second is not None


@pytest.mark.databases("postgresql", "mariadb", reason="E4: SQLite has one writer at a time")
def test_a_key_that_is_just_being_enqueued(app: App, table: JobTable, engine: sa.Engine) -> None:  # contract: O2, E4
    app.databases["default"].wait_ms = 300
    app.close()  # connections with the shorter bound
    old, free = dead(table, key="k")[0], dead(table)[0]
    with Session(engine) as session, session.begin():
        post.enqueue(Letter("b"), key="k", connection=session)
        assert app.records.replay(state="dead") == Done(1, 1)
        with pytest.raises(EnqueueBusy):
            app.records.replay(old)
        session.rollback()
    assert app.records.replay(old) == Done(1, 0)
    assert table.row(free).state == "pending"


def test_in_the_callers_transaction(app: App, table: JobTable, engine: sa.Engine) -> None:  # contract: O2, E2
    # case: C83
    first, second, third = dead(table, 3)
    with Session(engine) as session:
        assert app.records.replay(first, connection=session) == Done(1, 0)
        assert app.records.purge(second, connection=session) == Done(1, 0)
        assert app.records.replay(state="dead", connection=session) == Done(1, 0)
        session.rollback()
    assert [row.state for row in table.rows([first, second, third])] == ["dead"] * 3
    with Session(engine) as session, session.begin():
        assert app.records.purge(second, connection=session) == Done(1, 0)
        assert app.records.replay(state="dead", connection=session) == Done(2, 0)
    assert [(row.id, row.state) for row in table.rows()] == [(first, "pending"), (third, "pending")]
    assert abs(table.now() - table.row(first).run_at) < timedelta(minutes=1)


def test_a_refusal_leaves_the_callers_transaction_usable(app: App, table: JobTable, engine: sa.Engine) -> None:
    # contract: O2, E4
    [old] = dead(table, key="k")
    with Session(engine) as session, session.begin():
        holder = post.enqueue(Letter("b"), key="k", connection=session)  # its own, not committed
        with pytest.raises(KeyTaken) as refused:
            app.records.replay(old, connection=session)
        assert refused.value.holder == holder.id
        for id_, error in ((holder.id, InvalidState), (10_000, NotFound)):
            with pytest.raises(error):
                app.records.purge(id_, connection=session)
        assert app.records.replay(state="dead", connection=session) == Done(0, 1)
        later = post.enqueue(Letter("c"), connection=session)
    assert (table.row(old).state, table.row(later.id).state) == ("dead", "pending")


async def test_from_a_coroutine(app: App, table: JobTable, async_engine: Any) -> None:  # contract: O2
    ids = [*dead(table, key="k"), *dead(table, 3)]
    await post.aenqueue(Letter("b"), key="k")
    async with async_engine() as engine:
        async with engine.connect() as connection:
            assert await app.records.areplay(state="dead", connection=connection) == Done(3, 1)
            await connection.rollback()
        async with engine.begin() as connection:
            assert await app.records.areplay(ids[1], connection=connection) == Done(1, 0)
            assert await app.records.apurge(ids[2], connection=connection) == Done(1, 0)
    with pytest.raises(KeyTaken):
        await app.records.areplay(ids[0])
    assert await app.records.areplay(state="dead") == Done(1, 1)
    assert await app.records.apurge(state="dead") == Done(1, 0)
    await app.aclose()
    assert [row.state for row in table.rows()] == ["pending"] * 3


def test_another_database_is_refused(app: App, table: JobTable) -> None:  # contract: O2, E3
    [id_] = dead(table)
    foreign = sa.create_engine("sqlite://", poolclass=sa.StaticPool)
    with foreign.connect() as connection:
        for change in (app.records.replay, app.records.purge):
            with pytest.raises((WrongDatabase, NotMigrated)):
                change(id_, connection=connection)
    foreign.dispose()
    assert table.row(id_).state == "dead"


def test_a_replayed_record_is_never_swept_by_its_old_age_before_it_ran(app: App) -> None:  # contract: O2, N2
    with TestApp(app) as case:
        done = post.enqueue(Letter("a"))
        case.drain()
        for _ in range(3):
            case.advance(minutes=10)
            case.drain()
        assert app.records.get(done.id).state is State.DEAD
        case.advance(days=60)
        case.sweep()
        app.records.replay(done.id)
        case.sweep()
        assert app.records.get(done.id).state is State.PENDING
        globals()["fails"] = False
        try:
            case.drain()
        finally:
            globals()["fails"] = True
        case.sweep()
        assert app.records.get(done.id).state is State.SUCCEEDED  # created long ago, and finished just now
        case.advance(hours=2)
        case.sweep()
        with pytest.raises(NotFound):
            app.records.get(done.id)
