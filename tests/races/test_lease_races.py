"""Leases under contention: what waits for a row, who comes second, and many at once (L1, L2, L4, L7, C4)."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from rowlock.model.outcome import Settlement, State
from rowlock.model.table import JOBS
from rowlock.store.claim import claim, rescue
from rowlock.store.database import Database as Store
from rowlock.store.renew import Hold, renew, renew_one
from rowlock.store.settle import Verdict, settle, settle_one
from support.databases import Database
from support.jobtable import JobTable
from support.races import Blocker, in_background
from support.waiting import in_threads, wait_until

SERVERS = pytest.mark.databases("postgresql", "mariadb", reason="L4: SQLite has no row locks")
SHORT = timedelta(milliseconds=150)
LEASE_MS = 60_000


@pytest.fixture
def jobs(database: Database) -> Iterator[JobTable]:
    with JobTable(database, real_time=True) as made:
        yield made


def renewing(jobs: JobTable, hold: Hold) -> bool:
    return jobs.db.run(renew_one, JOBS, hold)


def settling(jobs: JobTable, hold: Hold) -> bool:
    verdict = jobs.db.run(settle_one, JOBS, Settlement(hold.id, hold.token, State.SUCCEEDED, "ack"))
    return {Verdict.SETTLED: True, Verdict.LOST: False}[verdict]


def settling_with_others(jobs: JobTable, hold: Hold) -> bool:
    """Through the set-wise call, singly afterwards if somebody has the row: what the settler does."""
    one = Settlement(hold.id, hold.token, State.PENDING, "retry", delay_ms=0)
    verdict = jobs.db.run(settle, JOBS, [one])[0]
    if verdict is Verdict.BUSY:
        verdict = jobs.db.run(settle_one, JOBS, one)
    return {Verdict.SETTLED: True, Verdict.LOST: False}[verdict]


ACTS = [renewing, settling, settling_with_others]


class Wait:
    """An act that waits at the row, behind a blocker; `passed` returns when the database's clock says so."""

    def __init__(self, jobs: JobTable, blocker: Blocker, hold: Hold, act: Callable[[JobTable, Hold], bool]) -> None:
        self.jobs = jobs
        self.hold = hold
        blocker.lock_row("rowlock_job", id=hold.id)
        self.begun = jobs.now()
        self.result: Future[bool] = in_background(lambda: act(jobs, hold))
        wait_until(lambda: jobs.database.waiting() >= 1 or self.result.done())

    def passed(self, span: timedelta) -> None:
        wait_until(lambda: self.jobs.now() > self.begun + span)
        assert not self.result.done()


class ShortWait(Wait):
    """With a lease that ends while the act waits. On a slow machine it ends before: then a longer one is tried."""

    def __init__(self, jobs: JobTable, blocker: Blocker, act: Callable[[JobTable, Hold], bool]) -> None:
        for longer in (1, 4, 16, 64):
            self.lease = SHORT * longer
            [hold] = jobs.running(lease=self.lease)
            super().__init__(jobs, blocker, hold, act)
            if not self.result.done():
                return
            assert self.result.result() is False
            blocker.rollback()
        raise AssertionError("the act never got to the row before its lease ended")

    def outlast(self) -> None:
        """Waits until the lease has ended."""
        self.passed(self.lease)


# --- L2: a wait for a lock neither revives nor shortens ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("act", "how"),
    [
        *itertools.product([renewing, settling], ["changes it", "only locks it", "rolls back"]),
        (settling_with_others, "only locks it"),
    ],
)
def test_a_lease_that_ends_during_the_wait_is_refused(
    jobs: JobTable, database: Database, act: Callable[[JobTable, Hold], bool], how: str
) -> None:
    # contract: L2
    with Blocker(database) as blocker:
        wait = ShortWait(jobs, blocker, act)
        hold = wait.hold
        if how == "changes it":
            blocker.execute("UPDATE rowlock_job SET headers = 'x' WHERE id = :id", id=hold.id)
        wait.outlast()
        blocker.rollback() if how == "rolls back" else blocker.commit()
        assert wait.result.result(10) is False
    row = jobs.row(hold.id)
    assert (row.state, row.token) == ("running", hold.token)
    assert row.lease <= wait.begun + wait.lease


@pytest.mark.databases("postgresql", reason="L2: the plan decides what a PostgreSQL statement reads first")
@pytest.mark.parametrize("plan", ["enable_seqscan", "enable_indexscan"])
@pytest.mark.parametrize("ends", ["ended", "was renewed"])
def test_no_plan_lets_the_clock_be_read_before_the_lock(
    jobs: JobTable, database: Database, plan: str, ends: str
) -> None:
    # contract: L2
    database.server.run(f"ALTER DATABASE {database.parsed.database} SET {plan} = off")
    database.server.run(f"ALTER DATABASE {database.parsed.database} SET enable_bitmapscan = off")
    jobs.db.close()  # the next connection has the plan
    with Blocker(database) as blocker:
        wait = ShortWait(jobs, blocker, renewing)
        if ends == "was renewed":
            renewed = "UPDATE rowlock_job SET lease = lease + interval '1 minute' WHERE id = :id"
            blocker.execute(renewed, id=wait.hold.id)
        wait.outlast()
        blocker.commit()
        assert wait.result.result(10) is (ends == "was renewed")


@pytest.mark.parametrize("how", ["changes it", "only locks it", "rolls back"])
def test_a_renewal_that_waited_gives_the_whole_lease_from_its_end(jobs: JobTable, database: Database, how: str) -> None:
    # contract: L2
    [hold] = jobs.running(lease=timedelta(minutes=1))
    hold = hold._replace(lease_ms=5_000)
    with Blocker(database) as blocker:
        wait = Wait(jobs, blocker, hold, renewing)
        if how == "changes it":
            blocker.execute("UPDATE rowlock_job SET headers = 'x' WHERE id = :id", id=hold.id)
        wait.passed(SHORT)
        until = jobs.now()
        blocker.rollback() if how == "rolls back" else blocker.commit()
        assert wait.result.result(10) is True
    assert until + timedelta(seconds=5) <= jobs.row(hold.id).lease <= jobs.now() + timedelta(seconds=5)


@pytest.mark.parametrize("act", ACTS)
def test_a_lease_that_was_renewed_during_the_wait_stands(
    jobs: JobTable, database: Database, act: Callable[[JobTable, Hold], bool]
) -> None:
    # contract: L2
    longer = jobs.now() + timedelta(minutes=2)
    with Blocker(database) as blocker:
        wait = ShortWait(jobs, blocker, act)
        hold = wait.hold
        value = jobs.db.dialect.to_db(longer)
        blocker.execute("UPDATE rowlock_job SET lease = :lease WHERE id = :id", id=hold.id, lease=value)
        wait.outlast()
        blocker.commit()
        assert wait.result.result(10) is True
    row = jobs.row(hold.id)
    assert row.token == hold.token
    assert row.state == {"renewing": "running", "settling": "succeeded"}.get(act.__name__, "pending")


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("change", ["token = 'new'", "state = 'succeeded'", "state = 'pending', token = NULL"])
def test_who_lost_the_record_during_the_wait_changes_nothing(
    jobs: JobTable, database: Database, act: Callable[[JobTable, Hold], bool], change: str
) -> None:
    # contract: L1
    [hold] = jobs.running()
    with Blocker(database) as blocker:
        wait = Wait(jobs, blocker, hold, act)
        blocker.execute(f"UPDATE rowlock_job SET {change} WHERE id = :id", id=hold.id)
        blocker.commit()
        before = jobs.row(hold.id)
        assert wait.result.result(10) is False
    assert jobs.row(hold.id) == before


@pytest.mark.parametrize("act", [renewing, settling])
def test_a_wait_for_a_row_is_bounded_and_told_apart_from_an_outage(
    database: Database, act: Callable[[JobTable, Hold], bool]
) -> None:
    # contract: K2
    with JobTable(database, real_time=True, wait_ms=200) as jobs:
        [hold] = jobs.running()
        with Blocker(database) as blocker:
            blocker.lock_row("rowlock_job", id=hold.id)
            with pytest.raises(sa.exc.DBAPIError) as failure:
                act(jobs, hold)
            assert jobs.db.dialect.is_lock_timeout(failure.value)
            assert not jobs.db.dialect.is_conflict(failure.value)
        assert act(jobs, hold)  # the connection is as good as before


# --- many at once -----------------------------------------------------------------------------------------------------


def drained(jobs: JobTable, db: Store, limit: int) -> list[int]:
    """Claims until nothing is pending; a claim that comes back empty before that lost a race, and goes on."""
    mine: list[int] = []
    while batch := db.run(claim, jobs.source(jobs=("a", "b"), lease_ms=LEASE_MS), limit):
        mine += [record.id for record in batch]
    return mine


def test_many_claimers_get_each_record_once_and_nobody_an_error(jobs: JobTable) -> None:
    # contract: C4
    ids = jobs.add(250) + jobs.add(150, job="b", priority=7)
    claimers = [jobs.another() for _ in range(8)]
    got = in_threads(*(lambda db=db, n=n: drained(jobs, db, 1 + n * 3) for n, db in enumerate(claimers)))
    wait_until(lambda: not jobs.look(jobs=("a", "b")).due or drained_rest(jobs, got))
    assert Counter(id_ for part in got for id_ in part) == Counter(ids)
    assert {(row.state, row.attempt) for row in jobs.rows()} == {("running", 1)}
    assert len({row.token for row in jobs.rows()}) == len(ids)


def drained_rest(jobs: JobTable, got: list[list[int]]) -> bool:
    got.append(drained(jobs, jobs.db, 50))
    return False


def test_many_rescuers_move_an_expired_record_on_once(jobs: JobTable) -> None:
    # contract: L7; case: C04
    rescuers = [jobs.another() for _ in range(6)]
    for db in rescuers:
        db.run(rescue, JOBS)  # connected
    for _ in range(15):
        [hold] = jobs.running(lease=timedelta(seconds=-1))

        def run(db: Store) -> list[Any]:
            return db.run(rescue, JOBS) + db.run(claim, jobs.source(), 1)

        moved = [record for part in in_threads(*(lambda db=db: run(db) for db in rescuers)) for record in part]
        kinds = Counter((type(record).__name__, record.id) for record in moved)
        assert kinds.pop(("Rescued", hold.id)) == 1
        assert sum(kinds.values()) <= 1
        row = jobs.row(hold.id)
        assert (row.state, row.attempt) in {("pending", 1), ("running", 2)}
        jobs.change(hold.id, state="succeeded")


def test_holder_and_rescuer_at_the_same_instant_never_both_win(jobs: JobTable) -> None:
    # contract: L1
    others = jobs.another()
    for n in range(12):
        [hold] = jobs.running(lease=timedelta(milliseconds=30))
        wait_until(lambda hold=hold: jobs.now() >= jobs.row(hold.id).lease - timedelta(milliseconds=5))
        done, rescued = in_threads(
            lambda hold=hold, n=n: settling(jobs, hold) if n % 2 else renewing(jobs, hold),
            lambda: others.run(rescue, JOBS),
        )
        row = jobs.row(hold.id)
        if rescued:
            assert not done
            assert (row.state, row.token) == ("pending", None)
        if done:
            assert row.state == ("succeeded" if n % 2 else "running")
        jobs.change(hold.id, state="succeeded", token=None)


def test_renewals_settlements_and_claims_cross_without_a_deadlock(jobs: JobTable) -> None:
    # contract: L6
    holds = jobs.running(60, token="same")
    jobs.add(60)
    stores = [jobs.another() for _ in range(4)]

    def renew_all(db: Store, order: int) -> int:
        return sum(len(db.run(renew, JOBS, holds[::order]).lost) for _ in range(10))

    def settle_all(db: Store) -> list[Verdict]:
        return db.run(settle, JOBS, [Settlement(h.id, h.token, State.SUCCEEDED, "ack") for h in holds[30:][::-1]])

    lost, lost_too, verdicts, claimed = in_threads(
        lambda: renew_all(stores[0], 1),
        lambda: renew_all(stores[1], -1),
        lambda: settle_all(stores[2]),
        lambda: drained(jobs, stores[3], 7),
    )
    assert set(verdicts) <= {Verdict.SETTLED, Verdict.BUSY}
    assert lost <= 300
    assert lost_too <= 300
    assert len(claimed) == len(set(claimed))
    assert {row.state for row in jobs.rows([hold.id for hold in holds[:30]])} == {"running"}
