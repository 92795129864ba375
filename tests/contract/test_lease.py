"""Holding a record: each condition of ownership on its own, renewal, expired leases (L1, L4, L7)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from rowlock.model.outcome import Category, Settlement, State
from rowlock.model.table import JOBS
from rowlock.store import schema
from rowlock.store.renew import Hold, renew, renew_one, verify_holds
from rowlock.store.settle import Verdict, settle, settle_one
from support.databases import Database
from support.jobtable import LEASE_MS, NOON, JobTable
from support.races import Blocker

SERVERS = pytest.mark.databases("postgresql", "mariadb", reason="L4: SQLite has no row locks")
KINDS = ("ack", "retry", "failed", "dead", "blocked", "snooze", "returned")
ENDED = ("succeeded", "dead", "blocked", "cancelled")


@pytest.fixture
def jobs(database: Database) -> Iterator[JobTable]:
    with JobTable(database) as made:
        yield made


# --- every way of acting on a hold ------------------------------------------------------------------------------------


def settlement(kind: str, hold: Hold) -> Settlement:
    kinds: dict[str, Callable[[], Settlement]] = {
        "ack": lambda: Settlement(hold.id, hold.token, State.SUCCEEDED, "ack"),
        "retry": lambda: Settlement(hold.id, hold.token, State.PENDING, "retry", delay_ms=hold.id * 1_000),
        "failed": lambda: Settlement(
            hold.id, hold.token, State.PENDING, "failed", delay_ms=5_000, category=Category.FAILED,
            error_class=f"Class{hold.id}", summary=f"summary {hold.id}",
        ),
        "dead": lambda: Settlement(hold.id, hold.token, State.DEAD, "dead", category=Category.REJECTED),
        "blocked": lambda: Settlement(
            hold.id, hold.token, State.BLOCKED, "blocked", refund=True, category=Category.CORRUPT_PAYLOAD
        ),
        "snooze": lambda: Settlement(hold.id, hold.token, State.PENDING, "snooze", delay_ms=10, refund=True),
        "returned": lambda: Settlement(hold.id, hold.token, State.PENDING, "returned", refund=True, handed_back=True),
    }  # fmt: skip
    return kinds[kind]()


@dataclass(frozen=True)
class Act:
    """Does something as the holder; answers the ids for which it took effect."""

    name: str
    do: Callable[[JobTable, list[Hold]], set[int]]

    def __call__(self, jobs: JobTable, holds: list[Hold]) -> set[int]:
        return self.do(jobs, holds)


def _settling(kind: str) -> Act:
    def do(jobs: JobTable, holds: list[Hold]) -> set[int]:
        verdicts = jobs.db.run(settle, JOBS, [settlement(kind, hold) for hold in holds])
        assert set(verdicts) <= {Verdict.SETTLED, Verdict.LOST}
        return {hold.id for hold, verdict in zip(holds, verdicts, strict=True) if verdict is Verdict.SETTLED}

    return Act(f"settle {kind}", do)


def _settling_one(jobs: JobTable, holds: list[Hold]) -> set[int]:
    verdicts = {hold.id: jobs.db.run(settle_one, JOBS, settlement("failed", hold)) for hold in holds}
    assert set(verdicts.values()) <= {Verdict.SETTLED, Verdict.LOST}
    return {id_ for id_, verdict in verdicts.items() if verdict is Verdict.SETTLED}


def _renewing(jobs: JobTable, holds: list[Hold]) -> set[int]:
    answer = jobs.db.run(renew, JOBS, holds)
    assert not answer.busy
    assert answer.renewed | answer.lost == {hold.id for hold in holds}
    return answer.renewed


ACTS = [
    Act("renew", _renewing),
    Act("renew_one", lambda jobs, holds: {hold.id for hold in holds if jobs.db.run(renew_one, JOBS, hold)}),
    *(_settling(kind) for kind in KINDS),
    Act("settle_one", _settling_one),
    Act("verify", lambda jobs, holds: {h.id for h in holds} - jobs.db.run(verify_holds, JOBS, [h[:2] for h in holds])),
]


def only_the_good_ones(jobs: JobTable, act: Act, good: list[Hold], bad: list[Hold]) -> None:
    """Of a batch with both, exactly the good ones are touched."""
    before = {row.id: row for row in jobs.rows([hold.id for hold in good + bad])}
    batch = [hold for pair in zip(bad, good, strict=True) for hold in pair]
    mine = {hold.id for hold in good}
    assert act(jobs, batch) == mine, act.name
    for row in jobs.rows(before):
        changed = row.id in mine and act.name != "verify"
        assert (row != before[row.id]) is changed, f"{act.name}: {row} was {before[row.id]}"


# --- L1: id, token, state, unexpired lease ----------------------------------------------------------------------------


def test_a_wrong_token_owns_nothing(jobs: JobTable) -> None:
    # contract: L1
    for act in ACTS:
        good, others = jobs.running(2), jobs.running(2)
        jobs.clock.move(seconds=1)
        only_the_good_ones(jobs, act, good, [Hold(h.id, "nobody's", LEASE_MS) for h in others])


def test_a_token_of_another_record_of_the_batch_owns_nothing(jobs: JobTable) -> None:
    # contract: L1
    for act in ACTS:
        good, (first, second) = jobs.running(2), jobs.running(2)
        jobs.clock.move(seconds=1)
        swapped = [Hold(first.id, second.token, LEASE_MS), Hold(second.id, first.token, LEASE_MS)]
        only_the_good_ones(jobs, act, good, swapped)


def test_a_record_that_is_not_running_is_owned_by_nobody(jobs: JobTable) -> None:
    # contract: L1
    for act, state in itertools.product(ACTS, ["pending", *ENDED]):
        good, bad = jobs.running(1), jobs.running(1)
        jobs.change(bad[0].id, state=state)  # token and deadline are as they were
        jobs.clock.move(seconds=1)
        only_the_good_ones(jobs, act, good, bad)


@pytest.mark.parametrize("late", [timedelta(0), timedelta(microseconds=1), timedelta(hours=1)])
def test_an_expired_lease_owns_nothing_and_one_that_equals_now_is_expired(jobs: JobTable, late: timedelta) -> None:
    # contract: L1
    for act in ACTS:
        good = jobs.running(1, lease=late + timedelta(seconds=30, microseconds=1))
        bad = jobs.running(1, lease=timedelta(seconds=30))
        jobs.clock.move(seconds=30)
        jobs.clock.time += late
        only_the_good_ones(jobs, act, good, bad)


def test_the_last_microsecond_of_a_lease_is_a_part_of_it(jobs: JobTable) -> None:
    # contract: L1
    for act in ACTS:
        [hold] = jobs.running(1, lease=timedelta(microseconds=1))
        assert act(jobs, [hold]) == {hold.id}


def test_an_unknown_id_owns_nothing(jobs: JobTable) -> None:
    # contract: L1
    for act in ACTS:
        good = jobs.running(1)
        jobs.clock.move(seconds=1)
        only_the_good_ones(jobs, act, good, [Hold(good[0].id + 1_000, good[0].token, LEASE_MS)])


# --- L1: the token stays ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("singly", [False, True])
def test_a_repeated_settlement_recognises_its_own_effect(jobs: JobTable, singly: bool) -> None:
    # contract: L1
    def write(one: Settlement, repeated: bool) -> Verdict:
        if singly:
            return jobs.db.run(settle_one, JOBS, one, repeated=repeated)
        return jobs.db.run(settle, JOBS, [one], repeated=repeated)[0]

    for kind in KINDS:
        [hold] = jobs.running(1)
        one = settlement(kind, hold)
        assert write(one, repeated=False) is Verdict.SETTLED
        settled = jobs.row(hold.id)
        assert settled.token == hold.token
        jobs.clock.move(hours=1)
        assert write(one, repeated=True) is Verdict.SETTLED
        assert write(one, repeated=False) is Verdict.LOST  # who does not repeat does not own it
        assert jobs.row(hold.id) == settled


def test_a_repeated_settlement_does_not_take_anothers_effect_for_its_own(jobs: JobTable) -> None:
    # contract: L1
    jobs.add()
    [first] = jobs.claim(1, lease_ms=1_000)
    jobs.clock.move(seconds=2)
    jobs.rescue()
    own = Settlement(first.id, first.token, State.PENDING, "retry", delay_ms=0)
    # Given back by the rescue, not by the settlement: no token of it is left.
    assert jobs.db.run(settle, JOBS, [own], repeated=True) == [Verdict.LOST]
    [second] = jobs.claim(1)
    assert jobs.db.run(settle, JOBS, [own], repeated=True) == [Verdict.LOST]
    jobs.db.run(settle, JOBS, [Settlement(second.id, second.token, State.SUCCEEDED, "ack")])
    before = jobs.row(first.id)
    assert jobs.db.run(settle, JOBS, [own], repeated=True) == [Verdict.LOST]
    assert jobs.db.run(settle_one, JOBS, own, repeated=True) is Verdict.LOST
    assert jobs.row(first.id) == before


def test_a_repeated_settlement_that_came_too_late_is_lost(jobs: JobTable) -> None:
    # contract: L1
    [hold] = jobs.running(lease=timedelta(seconds=5))
    jobs.clock.move(seconds=5)
    assert jobs.db.run(settle, JOBS, [settlement("ack", hold)], repeated=True) == [Verdict.LOST]
    assert jobs.db.run(settle_one, JOBS, settlement("ack", hold), repeated=True) is Verdict.LOST
    assert jobs.row(hold.id).state == "running"


def test_a_repeated_batch_settles_what_the_first_try_did_not(jobs: JobTable) -> None:
    # contract: L1
    done, open_, lost = jobs.running(3)
    batch = [settlement("ack", hold) for hold in (done, open_, lost)]
    jobs.db.run(settle, JOBS, batch[:1])
    jobs.change(lost.id, token="another's")
    assert jobs.db.run(settle, JOBS, batch, repeated=True) == [Verdict.SETTLED, Verdict.SETTLED, Verdict.LOST]
    assert [row.state for row in jobs.rows()] == ["succeeded", "succeeded", "running"]


# --- C03 of the field: the late holder --------------------------------------------------------------------------------


def test_a_late_holder_can_do_nothing_to_the_next_one(jobs: JobTable) -> None:
    # contract: L1
    for n, act in enumerate(ACTS):
        queue = f"queue {n}"
        jobs.add(queue=queue)
        [late] = jobs.claim(1, queue=queue, lease_ms=1_000)
        jobs.clock.move(seconds=1)
        assert late.id in {record.id for record in jobs.rescue()}
        [present] = jobs.claim(1, queue=queue)
        before = jobs.row(late.id)
        assert act(jobs, [Hold(late.id, late.token, LEASE_MS)]) == set(), act.name
        assert jobs.row(late.id) == before
        assert act(jobs, [Hold(present.id, present.token, LEASE_MS)]) == {present.id}, act.name


# --- L4: renewal ------------------------------------------------------------------------------------------------------


def test_renewal_moves_each_deadline_by_its_own_lease_from_now(jobs: JobTable) -> None:
    # contract: L4
    holds = [Hold(hold.id, hold.token, 1_000 * n) for n, hold in enumerate(jobs.running(5), 1)]
    now = jobs.clock.move(seconds=59)
    answer = jobs.db.run(renew, JOBS, holds)
    assert (answer.renewed, answer.lost, answer.busy) == ({hold.id for hold in holds}, set(), set())
    assert [row.lease - now for row in jobs.rows()] == [timedelta(seconds=n) for n in range(1, 6)]
    assert jobs.db.run(renew_one, JOBS, holds[0]._replace(lease_ms=7_000))
    assert jobs.row(holds[0].id).lease == now + timedelta(seconds=7)
    row = jobs.row(holds[0].id)
    assert (row.state, row.attempt, row.token) == ("running", 1, holds[0].token)


def test_any_number_is_renewed_at_once(jobs: JobTable) -> None:
    # contract: L4
    holds = jobs.running(1_100, token="same")
    jobs.change(holds[-1].id, token="other")
    jobs.clock.move(seconds=30)
    answer = jobs.db.run(renew, JOBS, holds)
    assert len(answer.renewed) == 1_099
    assert answer.lost == {holds[-1].id}
    assert jobs.db.run(verify_holds, JOBS, [hold[:2] for hold in holds]) == {holds[-1].id}


@SERVERS
def test_a_row_that_an_operator_holds_delays_only_its_own_renewal(jobs: JobTable, database: Database) -> None:
    # contract: L4
    held, *free = jobs.running(4)
    [lost] = jobs.running(1)
    jobs.change(lost.id, token="another's")
    now = jobs.clock.move(seconds=30)
    with Blocker(database) as operator:
        operator.lock_row("rowlock_job", id=held.id)
        answer = jobs.db.run(renew, JOBS, [held, *free, lost])
        assert (answer.renewed, answer.lost, answer.busy) == ({hold.id for hold in free}, {lost.id}, {held.id})
        assert jobs.db.run(verify_holds, JOBS, [held[:2]]) == set()
        operator.rollback()
    assert {row.lease for row in jobs.rows([hold.id for hold in free])} == {now + timedelta(milliseconds=LEASE_MS)}
    assert jobs.db.run(renew, JOBS, [held]).renewed == {held.id}


# --- L7: expired leases -----------------------------------------------------------------------------------------------


def test_an_expired_record_is_claimed_again_with_a_new_token(jobs: JobTable) -> None:
    # contract: L7
    [id_] = jobs.add(max_attempts=3, key="k")
    run_at, tokens = jobs.row(id_).run_at, set[str]()
    for attempt in (1, 2, 3):
        [record] = jobs.claim(1)
        tokens.add(record.token)
        assert (record.id, record.attempt) == (id_, attempt)
        assert jobs.claim(1) == []
        jobs.clock.move(seconds=59, milliseconds=999)
        assert jobs.rescue() == []
        jobs.clock.move(milliseconds=1)  # a lease that equals now is expired
        [rescued] = jobs.rescue()
        assert (rescued.id, rescued.job, rescued.queue, rescued.attempt) == (id_, "a", "default", attempt)
        assert jobs.row(id_).run_at == run_at
    row = jobs.row(id_)
    assert (row.state, row.attempt, row.error_category) == ("dead", 3, "attempts_exhausted")
    assert (row.finished_at, row.lease) == (jobs.clock.now(), None)
    assert (rescued.state, rescued.category) == ("dead", "attempts_exhausted")
    assert len(tokens) == 3
    assert jobs.claim(1) == []


def test_any_worker_moves_on_what_no_program_knows_any_more(jobs: JobTable) -> None:
    # contract: K2
    unknown = jobs.running(2, job="gone", queue="nobody's", lease=timedelta(seconds=-1))
    fresh = jobs.running(2, job="gone")
    assert {record.id for record in jobs.rescue()} == {hold.id for hold in unknown}
    assert {row.state for row in jobs.rows([hold.id for hold in fresh])} == {"running"}


def test_rescue_goes_in_bounded_steps_the_oldest_first(jobs: JobTable) -> None:
    # contract: L7
    def expired(seconds: int) -> int:
        return jobs.running(1, lease=timedelta(seconds=-seconds))[0].id

    ids = [expired(seconds) for seconds in (1, 5, 3, 2, 4)]
    rounds = [{record.id for record in jobs.rescue(limit=2)} for _ in range(4)]
    assert rounds == [{ids[1], ids[4]}, {ids[2], ids[3]}, {ids[0]}, set()]


@SERVERS
@pytest.mark.parametrize("change", ["renewed", "settled", "taken"])
def test_rescue_leaves_alone_what_changed_since_it_was_read(jobs: JobTable, database: Database, change: str) -> None:
    # contract: L1
    held, free = jobs.running(2, lease=timedelta(seconds=-1))
    later: datetime = NOON + timedelta(hours=1)
    changes = {
        "renewed": "lease = :later",
        "settled": "state = 'succeeded', lease = NULL",
        "taken": "token = 'new', lease = :later",
    }[change]
    with Blocker(database) as holder:
        values = {"later": jobs.db.dialect.to_db(later)} if ":later" in changes else {}
        holder.execute(f"UPDATE rowlock_job SET {changes} WHERE id = :id", id=held.id, **values)
        assert [record.id for record in jobs.rescue()] == [free.id]
        holder.commit()
    before = jobs.row(held.id)
    assert jobs.rescue() == []
    assert jobs.row(held.id) == before


@contextmanager
def just_before(jobs: JobTable, words: str, change: Callable[[], object]) -> Iterator[list[str]]:
    """Somebody else's change is committed right before the first statement of the store that has these words."""
    seen: list[str] = []

    def look(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if words in statement and not seen:
            seen.append(statement)
            change()

    engine = jobs.db.engine()
    sa.event.listen(engine, "before_cursor_execute", look)
    try:
        yield seen
    finally:
        sa.event.remove(engine, "before_cursor_execute", look)


@pytest.mark.parametrize("step", ["rescue", "bury"])
def test_clean_up_judges_again_what_changed_between_its_look_and_its_lock(
    jobs: JobTable, engine: sa.Engine, step: str
) -> None:
    # contract: L1
    if step == "rescue":
        changed, same = (hold.id for hold in jobs.running(2, lease=timedelta(seconds=-1)))
        new = {"lease": NOON + timedelta(seconds=30)}
    else:
        changed, same = jobs.add(2, attempt=5, max_attempts=5)
        new = {"attempt": 0}

    def change() -> None:
        with engine.begin() as connection:
            connection.execute(schema.job.update().where(schema.job.c.id == changed).values(**new))

    words = "BEGIN IMMEDIATE" if jobs.db.dialect.one_writer else "FOR UPDATE"
    with just_before(jobs, words, change) as seen:
        moved = jobs.rescue() if step == "rescue" else jobs.bury()
    assert len(seen) == 1
    assert [record.id for record in moved] == [same]
    assert jobs.row(changed).state == ("running" if step == "rescue" else "pending")
