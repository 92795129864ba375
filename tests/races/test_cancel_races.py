"""Cancels against claims, settlements, replays and operators' locks, in forced orders, and all at once (O4, L1, L2)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from rowlock import State
from rowlock.model.outcome import Category, Settlement
from rowlock.model.table import JOBS
from rowlock.store import change, operate
from rowlock.store.asked import asked, carry_out
from rowlock.store.cancel import cancel_one
from rowlock.store.claim import claim
from rowlock.store.database import Database as Store
from rowlock.store.renew import Hold
from rowlock.store.replay import Replay
from rowlock.store.settle import Verdict, settle, settle_one
from support.databases import Database
from support.jobtable import JobTable
from support.races import Blocker, in_background, wait_for_waiters
from support.waiting import in_threads, wait_until

SERVERS = pytest.mark.databases("postgresql", "mariadb", reason="O4: SQLite has one writer and no row locks")
WAYS = pytest.mark.parametrize("how", ["changes it", "only locks it", "rolls back"])
SHORT = timedelta(milliseconds=300)


@pytest.fixture
def jobs(database: Database) -> Iterator[JobTable]:
    with JobTable(database, real_time=True) as made:
        yield made


def cancel(jobs: JobTable, id_: int, db: Store | None = None) -> State:
    db = db or jobs.db
    return operate.run(db, cancel_one(db, id_))


def joined(jobs: JobTable, id_: int, session: Session) -> State:
    """A cancel in a caller's transaction that goes on."""
    return operate.run(jobs.db, cancel_one(jobs.db, id_), session.connection())


def settlement(hold: Hold, state: State, outcome: str, **values: Any) -> Settlement:
    return Settlement(hold.id, hold.token, state, outcome, **values)


def retry(hold: Hold) -> Settlement:
    return settlement(hold, State.PENDING, "failed", delay_ms=0, category=Category.FAILED)


def carried(jobs: JobTable) -> list[int]:
    return [record.id for record in jobs.db.run(carry_out).records]


# --- locked rows ------------------------------------------------------------------------------------------------------


@SERVERS
@WAYS
def test_a_waiting_record_that_somebody_has_locked_counts_as_running(
    jobs: JobTable, database: Database, how: str
) -> None:
    # contract: O4, L2
    id_, other = jobs.add(2, attempt=1)
    with Blocker(database) as blocker:
        blocker.lock_row("rowlock_job", id=id_)
        if how == "changes it":
            blocker.execute("UPDATE rowlock_job SET headers = '{}', attempt = 0 WHERE id = :id", id=id_)
        assert cancel(jobs, id_) is State.RUNNING
        assert carried(jobs) == []  # nor does the step that carries it out wait
        assert [record.id for record in jobs.claim(5)] == [other]
        blocker.rollback() if how == "rolls back" else blocker.commit()
    assert [(record.id, bool(record.cancelled)) for record in jobs.claim(5)] == [(id_, True)]
    [hold] = [Hold(row.id, row.token, 60_000) for row in jobs.rows([id_])]
    assert jobs.db.run(settle, JOBS, [retry(hold)]) == [Verdict.CANCELLED]
    assert jobs.row(id_).state == "cancelled"


@SERVERS
@WAYS
def test_where_no_claim_comes_the_step_carries_it_out(jobs: JobTable, database: Database, how: str) -> None:
    # contract: O4, L2
    [id_] = jobs.add(run_at=jobs.now() + timedelta(hours=1))
    with Blocker(database) as blocker:
        blocker.lock_row("rowlock_job", id=id_)
        if how == "changes it":
            blocker.execute("UPDATE rowlock_job SET state = 'succeeded' WHERE id = :id", id=id_)
        assert cancel(jobs, id_) is State.RUNNING
        until = jobs.now()
        blocker.rollback() if how == "rolls back" else blocker.commit()
    assert carried(jobs) == ([] if how == "changes it" else [id_])
    row = jobs.row(id_)
    assert row.state == ("succeeded" if how == "changes it" else "cancelled")
    assert how == "changes it" or until <= row.finished_at <= jobs.now()
    assert jobs.cancels() == {}


@SERVERS
@WAYS
def test_a_cancel_does_not_wait_for_a_row_that_is_held_past_its_lease(
    jobs: JobTable, database: Database, how: str
) -> None:
    # contract: O4, L1, L2; case: C03
    [hold] = jobs.running(lease=SHORT)
    with Blocker(database) as blocker:
        blocker.lock_row("rowlock_job", id=hold.id)
        if how == "changes it":
            blocker.execute("UPDATE rowlock_job SET headers = '{}' WHERE id = :id", id=hold.id)
        assert cancel(jobs, hold.id) is State.RUNNING
        mine = settlement(hold, State.CANCELLED, "cancelled", category=Category.CANCELLED)
        late = in_background(lambda: jobs.db.run(settle_one, JOBS, mine))
        wait_for_waiters(database)
        until = jobs.row(hold.id).lease
        wait_until(lambda: jobs.now() > until)
        assert carried(jobs) == []
        blocker.rollback() if how == "rolls back" else blocker.commit()
        assert late.result(10) is Verdict.LOST  # the clock is read after the wait
    before = jobs.now()
    assert carried(jobs) == [hold.id]
    row = jobs.row(hold.id)
    assert (row.state, row.token) == ("cancelled", None)
    assert before <= row.finished_at <= jobs.now()


@SERVERS
def test_a_cancel_that_is_not_committed_hides_its_record_only(
    jobs: JobTable, database: Database, engine: sa.Engine
) -> None:
    # contract: O4, C2
    first, second = jobs.add(2)
    with Session(engine) as session:
        assert joined(jobs, first, session) is State.CANCELLED
        assert [record.id for record in jobs.claim(5)] == [second]
        session.rollback()
    assert [(record.id, bool(record.cancelled)) for record in jobs.claim(5)] == [(first, False)]


# --- a cancel that is committed later ---------------------------------------------------------------------------------


@SERVERS
@pytest.mark.parametrize("claimed", [False, True])
def test_a_retry_settles_while_the_cancel_is_not_committed(jobs: JobTable, engine: sa.Engine, claimed: bool) -> None:
    # contract: O4; case: C71
    [hold] = jobs.running()
    with Session(engine) as session:
        assert joined(jobs, hold.id, session) is State.RUNNING
        assert jobs.db.run(settle, JOBS, [retry(hold)]) == [Verdict.SETTLED]
        if claimed:
            [record] = jobs.claim()
            assert (record.id, bool(record.cancelled)) == (hold.id, False)
        session.commit()
    if not claimed:
        [record] = jobs.claim()
        assert (record.id, bool(record.cancelled)) == (hold.id, True)
    assert jobs.db.run(asked, [hold.id]) == {hold.id}  # its worker sees it
    again = Hold(record.id, record.token, record.lease_ms)
    assert jobs.db.run(settle, JOBS, [retry(again)]) == [Verdict.CANCELLED]
    assert jobs.claim() == []


@SERVERS
@pytest.mark.parametrize(
    ("state", "values", "end"),
    [
        (State.SUCCEEDED, {}, "succeeded"),
        (State.DEAD, {"category": Category.REJECTED}, "dead"),
        (State.DEAD, {"category": Category.FAILED}, "cancelled"),
        (State.BLOCKED, {"category": Category.CORRUPT_PAYLOAD, "refund": True}, "cancelled"),
    ],
)
def test_the_record_ends_while_the_cancel_is_not_committed(
    jobs: JobTable, engine: sa.Engine, state: State, values: dict[str, Any], end: str
) -> None:
    # contract: O4; case: C71
    [hold] = jobs.running(key="k")
    with Session(engine) as session:
        assert joined(jobs, hold.id, session) is State.RUNNING
        assert jobs.db.run(settle, JOBS, [settlement(hold, state, "x", **values)]) == [Verdict.SETTLED]
        jobs.add(key="k")
        session.commit()
    assert carried(jobs) == ([hold.id] if end == "cancelled" else [])
    assert jobs.row(hold.id).state == end
    assert jobs.cancels() == {}


# --- another life -----------------------------------------------------------------------------------------------------


def replay(jobs: JobTable, id_: int) -> None:
    assert operate.run(jobs.db, change.one(Replay(jobs.db, {}), id_)).count == 1


@pytest.mark.parametrize("category", ["failed", "rejected"])
def test_a_replay_takes_a_cancel_back_that_came_too_late(jobs: JobTable, category: str) -> None:
    # contract: O4, O2
    [hold] = jobs.running()
    cancel(jobs, hold.id)
    jobs.change(hold.id, state="dead", lease=None, error_category=category)
    replay(jobs, hold.id)
    assert (carried(jobs), jobs.cancels()) == ([], {})
    [record] = jobs.claim()
    assert (record.id, bool(record.cancelled)) == (hold.id, False)
    assert cancel(jobs, hold.id) is State.RUNNING  # the next life can be cancelled as the first one could
    assert list(jobs.cancels()) == [hold.id]


@SERVERS
def test_what_carries_cancels_out_passes_a_replay_by(jobs: JobTable, database: Database) -> None:
    # contract: O4, O2
    [hold] = jobs.running()
    cancel(jobs, hold.id)
    jobs.change(hold.id, state="dead", lease=None, error_category="failed")
    with Blocker(database) as blocker:  # a replay in an open transaction
        blocker.lock_row("rowlock_job", id=hold.id)
        blocker.execute("UPDATE rowlock_job SET state = 'pending', attempt = 0 WHERE id = :id", id=hold.id)
        assert carried(jobs) == []
        assert list(jobs.cancels()) == [hold.id]  # it could not see the record, so it keeps the cancel
        blocker.execute("DELETE FROM rowlock_cancel WHERE id = :id", id=hold.id)
        assert carried(jobs) == []
        blocker.commit()
    assert (jobs.row(hold.id).state, jobs.cancels()) == ("pending", {})


@SERVERS
@pytest.mark.parametrize("state", ["dead", "succeeded"])
def test_a_cancel_that_somebody_has_locked_is_passed_by(jobs: JobTable, database: Database, state: str) -> None:
    # contract: O4
    first, second = jobs.running(2)
    for hold in (first, second):
        cancel(jobs, hold.id)
        jobs.change(hold.id, state=state, lease=None)
    with Blocker(database) as blocker:
        blocker.lock_row("rowlock_cancel", id=first.id)
        assert carried(jobs) == ([second.id] if state == "dead" else [])
    assert carried(jobs) == ([first.id] if state == "dead" else [])
    assert jobs.cancels() == {}


# --- all at once ------------------------------------------------------------------------------------------------------


def test_many_at_once_never_run_what_was_cancelled_before(jobs: JobTable) -> None:
    # contract: O4, L1, L6
    ids = jobs.add(60, max_attempts=10_000)
    told: dict[int, float] = {}
    given: list[tuple[float, int]] = []
    done: list[tuple[float, int, Verdict]] = []
    others = [jobs.another() for _ in range(5)]

    def work(db: Store) -> None:
        """Claims, and tries everything again."""
        while len(told) < len(ids) or any(row.state in {"pending", "running"} for row in jobs.rows()):
            begun = time.monotonic()
            records = db.run(claim, jobs.source(), 7)
            given.extend((begun, record.id) for record in records if not record.cancelled)
            mine = [retry(Hold(record.id, record.token, 60_000)) for record in records]
            while mine:
                begun = time.monotonic()
                verdicts = db.run(settle, JOBS, mine)
                done.extend((begun, each.id, verdict) for each, verdict in zip(mine, verdicts, strict=True))
                mine = [each for each, verdict in zip(mine, verdicts, strict=True) if verdict is Verdict.BUSY]

    def ask(db: Store) -> None:
        for id_ in random.Random(5).sample(ids, len(ids)):
            cancel(jobs, id_, db=db)
            told[id_] = time.monotonic()

    def mop(db: Store) -> None:
        while len(told) < len(ids) or any(row.state in {"pending", "running"} for row in jobs.rows()):
            db.run(carry_out)

    roles: list[tuple[Callable[[Store], None], Store]] = [(work, db) for db in others[:3]]
    in_threads(*(lambda role=role, db=db: role(db) for role, db in [*roles, (ask, others[3]), (mop, others[4])]))
    assert {row.state for row in jobs.rows(ids)} == {"cancelled"}
    assert [id_ for begun, id_ in given if begun > told[id_]] == []
    assert [each for each in done if each[0] > told[each[1]] and each[2] is Verdict.SETTLED] == []
    assert Verdict.LOST not in {verdict for _, _, verdict in done}
    jobs.db.run(carry_out)
    assert jobs.cancels() == {}
