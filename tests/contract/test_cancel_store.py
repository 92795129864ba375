"""Cancelling in the database: what waits ends at once, what somebody holds is asked to, and nothing runs again (O4)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from rowlock import Done, InvalidState, NotFound, State
from rowlock.model.outcome import Category, Settlement
from rowlock.model.table import JOBS
from rowlock.store import operate, schema
from rowlock.store.asked import carry_out
from rowlock.store.cancel import cancel_all, cancel_one
from rowlock.store.records import Filter
from rowlock.store.settle import Verdict, settle, settle_one
from support.databases import Database
from support.jobtable import LEASE_MS, JobTable

LEASE = timedelta(milliseconds=LEASE_MS)
UNFINISHED = [
    pytest.param(State.PENDING, "retry", {"delay_ms": 0}, id="retry"),
    pytest.param(State.PENDING, "failed", {"delay_ms": 5_000, "category": Category.FAILED}, id="failed"),
    pytest.param(State.PENDING, "snooze", {"delay_ms": 5_000, "refund": True}, id="snooze"),
    pytest.param(State.PENDING, "returned", {"refund": True, "handed_back": True}, id="handed back"),
    pytest.param(State.DEAD, "failed", {"category": Category.FAILED}, id="the last failure"),
    pytest.param(State.DEAD, "timed_out", {"category": Category.TIMED_OUT}, id="the last timeout"),
    pytest.param(State.BLOCKED, "blocked", {"category": Category.CORRUPT_PAYLOAD, "refund": True}, id="blocked"),
]
COMPLETE = [
    pytest.param(State.SUCCEEDED, "ack", {}, id="ack"),
    pytest.param(State.SUCCEEDED, "drop", {}, id="drop"),
    pytest.param(State.DEAD, "dead", {"category": Category.REJECTED, "summary": "no"}, id="dead"),
]


@pytest.fixture
def jobs(database: Database) -> Iterator[JobTable]:
    with JobTable(database) as made:
        yield made


def cancel(jobs: JobTable, id_: int, **options: Any) -> State:
    return operate.run(jobs.db, cancel_one(jobs.db, id_, **options))


def carried(jobs: JobTable) -> list[int]:
    return [record.id for record in jobs.db.run(carry_out).records]


# --- asking -----------------------------------------------------------------------------------------------------------


def test_a_pending_record_is_cancelled_at_once_and_frees_its_key(jobs: JobTable) -> None:
    # contract: O4, S3
    [id_] = jobs.add(key="k", error_category="failed", error_class="x.Y", error_summary="z")
    assert cancel(jobs, id_, by="ada") is State.CANCELLED
    row = jobs.row(id_)
    assert (row.state, row.finished_at, row.error_category) == ("cancelled", jobs.now(), "cancelled")
    assert (row.error_class, row.error_summary, row.lease) == (None, None, None)
    assert jobs.claim() == []
    assert jobs.cancels() == {}
    jobs.add(key="k")  # the unique index would refuse it


def test_a_running_record_is_asked_and_stays_as_it_is(jobs: JobTable) -> None:
    # contract: O4
    [hold] = jobs.running()
    before = jobs.row(hold.id)
    assert cancel(jobs, hold.id, by="ada") is State.RUNNING
    assert cancel(jobs, hold.id, by="bob") is State.RUNNING
    assert jobs.row(hold.id) == before
    with jobs.db.engine().connect() as connection:
        assert [tuple(row) for row in connection.execute(sa.select(schema.cancel))] == [(hold.id, jobs.now(), "ada")]


@pytest.mark.parametrize("state", ["succeeded", "dead", "blocked", "cancelled"])
def test_what_ended_can_not_be_cancelled(jobs: JobTable, state: str) -> None:
    # contract: O4
    [id_] = jobs.add(state=state, finished_at=jobs.now())
    before = jobs.row(id_)
    for dry_run in (False, True):
        with pytest.raises(InvalidState, match=f"record {id_} .* it is {state}"):
            cancel(jobs, id_, dry_run=dry_run)
    assert (jobs.row(id_), jobs.cancels()) == (before, {})


@pytest.mark.parametrize("id_", [0, 1, 2**63 - 1, 2**63, -1])
def test_an_unknown_id_is_not_found(jobs: JobTable, id_: int) -> None:
    # contract: O4, O2
    with pytest.raises(NotFound, match=str(id_)):
        cancel(jobs, id_)


def test_a_dry_run_changes_nothing(jobs: JobTable) -> None:
    # contract: O4
    [id_], [hold] = jobs.add(), jobs.running()
    before = jobs.rows()
    assert cancel(jobs, id_, dry_run=True) is State.CANCELLED
    assert cancel(jobs, hold.id, dry_run=True) is State.RUNNING
    assert operate.run(jobs.db, cancel_all(jobs.db, Filter(), dry_run=True)) == Done(2, 0)
    assert (jobs.rows(), jobs.cancels()) == (before, {})


def test_by_filter_all_that_wait_or_run(jobs: JobTable) -> None:
    # contract: O4
    ids = jobs.add(450, queue="a")
    holds = jobs.running(3, queue="a")
    left = [*jobs.add(queue="b"), *jobs.add(queue="a", state="succeeded", finished_at=jobs.now())]
    assert operate.run(jobs.db, cancel_all(jobs.db, Filter(queue="a"))) == Done(453, 0)
    assert {row.state for row in jobs.rows(ids)} == {"cancelled"}
    assert list(jobs.cancels()) == [hold.id for hold in holds]
    assert [row.state for row in jobs.rows(left)] == ["pending", "succeeded"]
    assert operate.run(jobs.db, cancel_all(jobs.db, Filter(queue="a", state=State.PENDING))) == Done(0, 0)


# --- settling ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("one", [False, True])
@pytest.mark.parametrize(("state", "outcome", "values"), UNFINISHED)
def test_an_attempt_that_did_not_complete_settles_as_cancelled(
    jobs: JobTable, state: State, outcome: str, values: dict[str, Any], one: bool
) -> None:
    # contract: O4; case: C71
    [hold], [other] = jobs.running(), jobs.running()
    cancel(jobs, hold.id)
    mine, theirs = (Settlement(each.id, each.token, state, outcome, **values) for each in (hold, other))
    if one:
        verdicts = [jobs.db.run(settle_one, JOBS, each) for each in (mine, theirs)]
    else:
        verdicts = jobs.db.run(settle, JOBS, [mine, theirs])
    assert verdicts == [Verdict.CANCELLED, Verdict.SETTLED]
    row = jobs.row(hold.id)
    assert (row.state, row.error_category, row.finished_at) == ("cancelled", "cancelled", jobs.now())
    assert (row.attempt, row.lease) == (1 - values.get("refund", False), None)
    assert jobs.row(other.id).state == state
    jobs.clock.move(seconds=10)
    assert carried(jobs) == []
    assert jobs.cancels() == {}
    assert hold.id not in [record.id for record in jobs.claim(10)]
    assert jobs.db.run(settle, JOBS, [mine], repeated=True) == [Verdict.CANCELLED]


@pytest.mark.parametrize(("state", "outcome", "values"), COMPLETE)
def test_work_that_completed_all_the_same_is_what_it_says(
    jobs: JobTable, state: State, outcome: str, values: dict[str, Any]
) -> None:
    # contract: O4; case: C71
    [hold] = jobs.running()
    cancel(jobs, hold.id)
    said = Settlement(hold.id, hold.token, state, outcome, **values)
    assert jobs.db.run(settle, JOBS, [said]) == [Verdict.SETTLED]
    row = jobs.row(hold.id)
    assert (row.state, row.error_category) == (state, values.get("category"))
    assert carried(jobs) == []
    assert (jobs.row(hold.id), jobs.cancels()) == (row, {})


def test_an_attempt_without_its_hold_cancels_nothing(jobs: JobTable) -> None:
    # contract: L1, O4; case: C03
    [hold] = jobs.running(lease=LEASE)
    cancel(jobs, hold.id)
    late = Settlement(hold.id, hold.token, State.CANCELLED, "cancelled", category=Category.CANCELLED)
    failed = Settlement(hold.id, "another", State.PENDING, "failed", delay_ms=0)
    assert jobs.db.run(settle, JOBS, [failed]) == [Verdict.LOST]
    jobs.clock.move(milliseconds=LEASE_MS)
    before = jobs.row(hold.id)
    assert jobs.db.run(settle, JOBS, [late]) == [Verdict.LOST]
    assert jobs.row(hold.id) == before


# --- what nobody holds ------------------------------------------------------------------------------------------------


def test_a_record_whose_worker_died_becomes_cancelled(jobs: JobTable) -> None:
    # contract: O4, L7
    [hold], [other] = jobs.running(key="k"), jobs.running()
    cancel(jobs, hold.id)
    assert carried(jobs) == []
    jobs.clock.move(milliseconds=LEASE_MS)
    assert carried(jobs) == [hold.id]
    row = jobs.row(hold.id)
    assert (row.state, row.token, row.lease, row.error_category) == ("cancelled", None, None, "cancelled")
    assert row.finished_at == jobs.now()
    assert [record.id for record in jobs.rescue()] == [other.id]
    assert jobs.cancels() == {}
    mine = Settlement(hold.id, hold.token, State.SUCCEEDED, "ack")
    assert jobs.db.run(settle, JOBS, [mine], repeated=True) == [Verdict.LOST]


@pytest.mark.parametrize("attempt", [1, 5])
def test_what_was_rescued_first_is_cancelled_all_the_same(jobs: JobTable, attempt: int) -> None:
    # contract: O4, L7, C5
    [hold] = jobs.running()
    jobs.change(hold.id, attempt=attempt)
    cancel(jobs, hold.id)
    jobs.clock.move(milliseconds=LEASE_MS)
    jobs.rescue()
    assert jobs.row(hold.id).state == ("pending" if attempt == 1 else "dead")
    assert carried(jobs) == [hold.id]
    assert jobs.row(hold.id).state == "cancelled"


@pytest.mark.parametrize("limit", [1, 5])
def test_a_claim_says_which_of_its_records_must_not_be_run(jobs: JobTable, limit: int) -> None:
    # contract: O4
    [hold] = jobs.running()
    cancel(jobs, hold.id)
    jobs.clock.move(milliseconds=LEASE_MS)
    jobs.rescue()
    jobs.add(4)
    assert [bool(record.cancelled) for record in jobs.claim(limit)] == [True, *[False] * (limit - 1)]


def test_cancels_are_carried_out_in_bounded_pages_that_nothing_hides(jobs: JobTable) -> None:
    # contract: O4, L7
    held = [hold.id for hold in jobs.running(250)]
    lost = [hold.id for hold in jobs.running(250, lease=timedelta(seconds=1))]
    assert operate.run(jobs.db, cancel_all(jobs.db, Filter())) == Done(500, 0)
    jobs.clock.move(seconds=1)
    found: list[int] = []
    after: int | None = 0
    pages = 0
    while after is not None:
        records, after = jobs.db.run(carry_out, after)
        found += [record.id for record in records]
        pages += 1
    assert (found, pages) == (lost, 3)
    assert list(jobs.cancels()) == held


def test_the_cancel_of_a_record_that_is_gone_goes_as_well(jobs: JobTable) -> None:
    # contract: O4
    [hold] = jobs.running()
    cancel(jobs, hold.id)
    with jobs.db.engine().begin() as connection:
        connection.execute(schema.job.delete())
    assert (carried(jobs), jobs.cancels()) == ([], {})
