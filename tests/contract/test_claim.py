"""Claiming: the order, what is locked, what never stands in the way (C2-C5, C7)."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterator
from datetime import timedelta

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine

from rowlock.model.table import JOBS
from rowlock.store.claim import bury, claim, look
from rowlock.store.database import Database as Store
from support.databases import Database
from support.jobtable import FINGERPRINT, LEASE_MS, NOON, JobTable, statements
from support.races import Blocker

SERVERS = pytest.mark.databases("postgresql", "mariadb", reason="C2: SQLite has one writer and no row locks")


@pytest.fixture
def jobs(database: Database) -> Iterator[JobTable]:
    with JobTable(database) as made:
        yield made


def hold(operator: Blocker, where: str) -> None:
    """Lock these rows and no others: at REPEATABLE READ MariaDB would lock all that it reads on the way."""
    if operator.database.dialect == "mariadb":
        operator.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    assert operator.execute(f"SELECT id FROM rowlock_job WHERE {where} FOR UPDATE")


# --- C2: order ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 7, 100])
def test_the_order_is_priority_then_run_at_then_id_over_all_jobs(jobs: JobTable, limit: int) -> None:
    # contract: C2
    dice = random.Random(limit)
    rows = []
    for _ in range(90):
        run_at = NOON - timedelta(seconds=dice.choice([0, 1, 1, 2, 300]), microseconds=dice.choice([0, 1]))
        rows.append(
            {
                "job": dice.choice("abc"),
                "fingerprint": FINGERPRINT,
                "payload": "null",
                "queue": "default",
                "priority": dice.choice([0, 100, 100, 32_767]),
                "state": "pending",
                "run_at": run_at,
                "attempt": 0,
                "max_attempts": 3,
                "timeout_ms": 1_000,
                "created_at": NOON,
                "handed_back": 0,
            }
        )
    ids = jobs.add_rows(rows)
    expected = [
        id_ for _, _, id_ in sorted((row["priority"], row["run_at"], id_) for row, id_ in zip(rows, ids, strict=True))
    ]
    claimed: list[int] = []
    while batch := jobs.claim(limit, jobs=("a", "b", "c")):
        assert len(batch) <= limit
        claimed += [record.id for record in batch]
    assert claimed == expected


@pytest.mark.parametrize("limit", [20, 40, 200])
def test_the_order_holds_when_one_of_many_jobs_has_all_the_old_records(jobs: JobTable, limit: int) -> None:
    # contract: C2
    names = "bcdefgh"
    late = [id_ for n, name in enumerate(names) for id_ in jobs.add(job=name, run_at=NOON - timedelta(seconds=50 - n))]
    early = [jobs.add(run_at=NOON - timedelta(seconds=400 - n))[0] for n in range(60)]
    claimed: list[int] = []
    while batch := jobs.claim(limit, jobs=(*names, "a")):
        claimed += [record.id for record in batch]
    assert claimed == early + late


def test_future_records_and_other_queues_in_front_hide_nothing(jobs: JobTable) -> None:
    # contract: C2
    jobs.add(1_000, priority=0, run_at=NOON + timedelta(microseconds=1))
    jobs.add(1_000, priority=0, queue="other")
    due = jobs.add(3, priority=200)
    assert jobs.look().due
    assert [record.id for record in jobs.claim(10)] == due
    assert jobs.claim(10) == []
    seen = jobs.look()
    assert not seen.due
    assert 0 < seen.wait <= 0.000_001
    jobs.clock.move(seconds=1)
    assert len(jobs.claim(10)) == 10


def test_a_record_is_due_at_its_very_instant(jobs: JobTable) -> None:
    # contract: C2
    [exact] = jobs.add(run_at=NOON)
    assert jobs.look().due
    assert [record.id for record in jobs.claim(5)] == [exact]


@SERVERS
def test_a_second_claimer_gets_the_rest_at_once(jobs: JobTable) -> None:
    # contract: C2
    ids = jobs.add(10)
    jobs.add(5, run_at=NOON + timedelta(hours=1))
    other = jobs.another()
    with jobs.db.engine().connect() as conn, jobs.db.transaction(conn):
        first = claim(conn, jobs.db, jobs.source(), 4)
        assert [record.id for record in first] == ids[:4]
        second = jobs.claim(10, db=other)  # would wait, or find less, if the first held more than it returned
        assert [record.id for record in second] == ids[4:]


@SERVERS
def test_a_claim_locks_what_it_returns_and_nothing_else(jobs: JobTable, database: Database) -> None:
    # contract: C2
    ids = jobs.add(40) + jobs.add(20, run_at=NOON + timedelta(hours=1)) + jobs.add(20, queue="other")
    ids += jobs.add(20, job="b", priority=0) + jobs.add(5, attempt=5)
    with jobs.db.engine().connect() as conn, jobs.db.transaction(conn):
        mine = {record.id for record in claim(conn, jobs.db, jobs.source(), 6)}
        assert len(mine) == 6
        with Blocker(database) as operator:
            locked = operator.execute("SELECT id FROM rowlock_job ORDER BY id FOR UPDATE SKIP LOCKED")
            assert {row.id for row in locked} == set(ids) - mine
            # Nor a gap: nobody who inserts waits.
            operator.execute("INSERT INTO rowlock_program (pair, job, fingerprint, announced_at)"
                             " VALUES ('p', 'j', 'f', '2027-01-01')")  # fmt: skip


@SERVERS
def test_a_row_that_an_operator_holds_is_passed_over(jobs: JobTable, database: Database) -> None:
    # contract: C2
    held, *free = jobs.add(4)
    with Blocker(database) as operator:
        operator.lock_row("rowlock_job", id=held)
        assert [record.id for record in jobs.claim(2)] == free[:2]
        assert [record.id for record in jobs.claim(2)] == free[2:]
        assert jobs.claim(2) == []
        operator.rollback()
    assert [record.id for record in jobs.claim(2)] == [held]


@SERVERS
@pytest.mark.parametrize("limit", [1, 5])
def test_many_held_rows_in_front_do_not_hide_those_behind(jobs: JobTable, database: Database, limit: int) -> None:
    # contract: C2
    jobs.add(200, priority=50)
    jobs.add(100, priority=50, job="b")
    free = jobs.add(3, priority=50) + jobs.add(3, priority=60, job="b")
    with Blocker(database) as operator:
        hold(operator, f"id < {free[0]}")
        got = [record.id for record in jobs.claim(limit, jobs=("a", "b"))]
        assert got == free[: len(got)]
        got += [record.id for record in jobs.claim(limit, jobs=("a", "b"))]
        assert got == free[: min(2 * limit, 6)]


# --- C3, C4: what a claim takes -----------------------------------------------------------------------------------


def test_a_claim_takes_at_most_what_it_was_asked_for(jobs: JobTable) -> None:
    # contract: C3
    jobs.add(50)
    assert jobs.claim(0) == []
    assert jobs.db.run(claim, jobs.source(jobs=()), 5) == []
    assert len(jobs.claim(7)) == 7
    assert sorted(row.state for row in jobs.rows()) == ["pending"] * 43 + ["running"] * 7


def test_taking_ownership_counts_the_attempt_in_the_same_step(jobs: JobTable) -> None:
    # contract: C4
    [id_] = jobs.add(key="k", headers='{"a":"b"}', payload='{"x":"é"}', max_attempts=3, timeout_ms=1_234)
    with statements(jobs.db.engine()) as sent:
        [record] = jobs.claim(1)
    row = jobs.row(id_)
    assert (row.state, row.attempt, row.token) == ("running", 1, record.token)
    assert (row.lease, row.claimed_at) == (NOON + timedelta(milliseconds=LEASE_MS), NOON)
    assert row.claimed_by == "tester:1"
    writes = [statement for statement in sent if re.search(r"UPDATE\s.*\sSET\s", statement, re.DOTALL)]
    assert len(writes) == 1, "state, token and attempt are one statement"
    assert (record.id, record.job, record.fingerprint, record.key) == (id_, "a", FINGERPRINT, "k")
    assert (record.queue, record.priority, record.attempt, record.max_attempts) == ("default", 100, 1, 3)
    assert (record.timeout_ms, record.lease_ms) == (1_234, LEASE_MS)
    payload, headers = record.payload, record.headers
    assert (payload if isinstance(payload, bytes) else payload.encode()) == '{"x":"é"}'.encode()
    assert (headers if isinstance(headers, bytes) else str(headers).encode()) == b'{"a":"b"}'
    assert jobs.db.dialect.from_db(record.run_at) == NOON - timedelta(minutes=1)


def test_each_record_and_each_claim_has_a_token_of_its_own(jobs: JobTable) -> None:
    # contract: L1
    [first] = jobs.add()
    tokens = [record.token for record in jobs.claim(1)]
    jobs.add(20)
    tokens += [record.token for record in jobs.claim(30)]
    jobs.clock.move(seconds=61)
    assert len(jobs.rescue()) == 21
    again = jobs.claim(30)
    tokens += [record.token for record in again]
    assert len(set(tokens)) == len(tokens) == 42
    assert all(len(token) >= 24 for token in tokens)
    assert next(record.attempt for record in again if record.id == first) == 2


def test_leases_are_those_of_each_job(jobs: JobTable) -> None:
    # contract: L2
    jobs.add(2)
    jobs.add(2, job="b")
    source = jobs.source()
    both = type(source)(
        JOBS, "default", (*source.branches, *jobs.source(jobs=("b",), lease_ms=1_500).branches), "tester:1"
    )
    claimed = jobs.db.run(claim, both, 10)
    leases = {record.job: record.lease_ms for record in claimed}
    assert leases == {"a": LEASE_MS, "b": 1_500}
    for row in jobs.rows():
        assert row.lease == NOON + timedelta(milliseconds=leases[row.job])


# --- C5: what no claim may take -----------------------------------------------------------------------------------


def test_exhausted_records_in_front_never_occupy_a_claim(jobs: JobTable) -> None:
    # contract: C5
    jobs.add(500, priority=0, attempt=5, max_attempts=5)
    jobs.add(100, priority=0, attempt=9, max_attempts=5)
    jobs.add(20, priority=0, max_attempts=0)
    good = jobs.add(3)
    assert [record.id for record in jobs.claim(3)] == good
    assert jobs.claim(3) == []


def test_they_are_buried_in_bounded_steps_of_their_own(jobs: JobTable) -> None:
    # contract: C5
    spent = jobs.add(7, attempt=5, max_attempts=5) + jobs.add(2, attempt=101, max_attempts=100, queue="nobody's")
    absurd = jobs.add(1, max_attempts=0) + jobs.add(1, max_attempts=-3) + jobs.add(1, attempt=200, max_attempts=150)
    left = jobs.add(2) + jobs.add(1, job="unknown") + jobs.add(1, run_at=NOON + timedelta(days=1))
    assert len(jobs.bury(limit=5)) == 5
    assert len(jobs.bury(limit=5)) == 5
    assert len(jobs.bury(limit=5)) == 2
    assert jobs.bury() == []
    for row in jobs.rows(spent):
        assert (row.state, row.error_category, row.finished_at) == ("dead", "attempts_exhausted", NOON)
    for row in jobs.rows(absurd):
        assert (row.state, row.error_category, row.finished_at) == ("blocked", "invalid_policy", NOON)
    assert {row.state for row in jobs.rows(left)} == {"pending"}


def test_burying_says_what_it_did(jobs: JobTable) -> None:
    # contract: C5
    [spent] = jobs.add(attempt=5, max_attempts=5, queue="q")
    [absurd] = jobs.add(max_attempts=0, job="b")
    told = {record.id: record for record in jobs.bury()}
    assert (told[spent].state, told[spent].category, told[spent].queue) == ("dead", "attempts_exhausted", "q")
    assert (told[absurd].state, told[absurd].category, told[absurd].job) == ("blocked", "invalid_policy", "b")


@SERVERS
def test_burying_passes_over_rows_that_somebody_holds(jobs: JobTable, database: Database) -> None:
    # contract: C5
    held, free = jobs.add(2, attempt=5, max_attempts=5)
    with Blocker(database) as operator:
        operator.lock_row("rowlock_job", id=held)
        assert [record.id for record in jobs.bury()] == [free]
        operator.execute("UPDATE rowlock_job SET attempt = 0 WHERE id = :id", id=held)
        operator.commit()
    assert jobs.bury() == []
    assert jobs.row(held).state == "pending"


@SERVERS
def test_burying_and_rescuing_reach_what_is_behind_many_held_rows(jobs: JobTable, database: Database) -> None:
    # contract: C5
    jobs.add(30, attempt=5, max_attempts=5)
    jobs.running(30, lease=timedelta(seconds=-2))
    [spent] = jobs.add(attempt=5, max_attempts=5, queue="behind")
    [expired] = jobs.running(lease=timedelta(seconds=-1), queue="behind")
    with Blocker(database) as operator:
        hold(operator, f"id < {spent}")
        assert [record.id for record in jobs.bury(limit=10)] == [spent]
        assert [record.id for record in jobs.rescue(limit=10)] == [expired.id]


# --- C7: READ COMMITTED; SQLite's idle poll -----------------------------------------------------------------------


def isolation(conn: sa.Connection, _db: Store) -> str:
    name = "transaction_isolation" if conn.dialect.name == "postgresql" else "@@tx_isolation"
    query = f"SHOW {name}" if conn.dialect.name == "postgresql" else f"SELECT {name}"
    return str(conn.exec_driver_sql(query).scalar_one()).upper().replace("-", " ")


def in_transaction(conn: sa.Connection, db: Store) -> str:
    with db.transaction(conn):
        return isolation(conn, db)


@SERVERS
@pytest.mark.parametrize("given", ["url", "engine"])
async def test_own_transactions_are_read_committed_whatever_the_default(database: Database, given: str) -> None:
    # contract: C7
    if database.dialect == "postgresql":
        database.server.run(
            f"ALTER DATABASE {database.parsed.database} SET default_transaction_isolation = 'serializable'"
        )
    options = {} if given == "url" else {"isolation_level": "SERIALIZABLE"}
    sync = sa.create_engine(database.sync_url, **options)
    concurrent = create_async_engine(database.async_url, **options)
    stores = (
        [Store("default", database.url)]
        if given == "url"
        else [Store("default", target) for target in (sync, concurrent)]
    )
    try:
        for db in stores:
            for _ in range(2):  # a pooled connection, the second time
                if db.target is not concurrent:
                    assert db.run(in_transaction) == "READ COMMITTED"
                if db.target is not sync:
                    assert await db.arun(in_transaction) == "READ COMMITTED"
                    assert await db.aread(isolation) == "READ COMMITTED"
    finally:
        for db in stores:
            await db.aclose()
        sync.dispose()
        await concurrent.dispose()


@pytest.mark.databases("sqlite", reason="C7: servers have no lock of the whole database")
def test_looking_takes_no_write_lock(jobs: JobTable, database: Database) -> None:
    # contract: C7
    jobs.add(run_at=NOON + timedelta(hours=1))
    with Blocker(database) as writer:
        writer.begin()
        assert not jobs.look().due
        assert asyncio.run(in_writer_thread(jobs)) is False
        assert jobs.db.run(bury, JOBS) == []  # nothing to bury: it only looked
        assert jobs.rescue() == []


async def in_writer_thread(jobs: JobTable) -> bool:
    return (await jobs.db.aread(look, jobs.source())).due


@pytest.mark.databases("sqlite", reason="C7: servers have no lock of the whole database")
def test_a_claim_with_nothing_due_waits_for_no_writer(jobs: JobTable, database: Database) -> None:
    # contract: C7: also one that was not preceded by a look, as after another claim, or after a failure
    jobs.add(run_at=NOON + timedelta(hours=1))
    with Blocker(database) as writer:
        writer.begin()
        assert jobs.claim() == []
