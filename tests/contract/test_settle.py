"""Settling: what each outcome writes, set-wise, with each record checked on its own (L1, L6, R1, S6, M6)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from rowlock.model.backoff import Backoff
from rowlock.model.outcome import Category, GivenBack, Raised, Settlement, State, decide
from rowlock.model.table import JOBS
from rowlock.store.renew import Hold
from rowlock.store.settle import Verdict, settle, settle_one
from support.databases import Database
from support.jobtable import NOON, JobTable, statements
from support.races import Blocker

SERVERS = pytest.mark.databases("postgresql", "mariadb", reason="L6: SQLite has no row locks")
SETTLED, LOST, BUSY = Verdict.SETTLED, Verdict.LOST, Verdict.BUSY


@pytest.fixture
def jobs(database: Database) -> Iterator[JobTable]:
    with JobTable(database) as made:
        yield made


def ack(hold: Hold) -> Settlement:
    return Settlement(hold.id, hold.token, State.SUCCEEDED, "ack")


def failed(hold: Hold, delay_ms: int | None = 1_000, **more: object) -> Settlement:
    state = State.DEAD if delay_ms is None else State.PENDING
    values = {"category": Category.FAILED, "error_class": "builtins.Boom", "summary": None, **more}
    return Settlement(hold.id, hold.token, state, "failed", delay_ms=delay_ms, **values)  # type: ignore[arg-type]


def snooze(hold: Hold, delay_ms: int) -> Settlement:
    return Settlement(hold.id, hold.token, State.PENDING, "snooze", delay_ms=delay_ms, refund=True)


# --- what is written --------------------------------------------------------------------------------------------------


def test_success_ends_the_record_and_clears_the_error_of_an_earlier_attempt(jobs: JobTable) -> None:
    # contract: S3
    [hold] = jobs.running(error_category="failed", error_class="Old", error_summary="old")
    now = jobs.clock.move(seconds=3)
    assert jobs.db.run(settle, JOBS, [ack(hold)]) == [SETTLED]
    row = jobs.row(hold.id)
    assert (row.state, row.finished_at, row.lease, row.token) == ("succeeded", now, None, hold.token)
    assert (row.error_category, row.error_class, row.error_summary) == (None, None, None)
    assert (row.attempt, row.payload) == (1, "null")


def test_a_failure_waits_from_the_settlement_on_and_says_why(jobs: JobTable) -> None:
    # contract: R1
    [hold] = jobs.running()
    now = jobs.clock.move(seconds=50)  # a long run: the wait is not counted from its start
    assert jobs.db.run(settle, JOBS, [failed(hold, 2_500, summary="safe")]) == [SETTLED]
    row = jobs.row(hold.id)
    assert (row.state, row.run_at, row.finished_at) == ("pending", now + timedelta(seconds=2.5), None)
    assert (row.error_category, row.error_class, row.error_summary) == ("failed", "builtins.Boom", "safe")
    assert (row.attempt, row.lease) == (1, None)


def test_the_longest_delays_can_be_written(jobs: JobTable) -> None:
    # contract: E6
    one, other = jobs.running(2)
    ten_years = timedelta(days=3_650)
    assert jobs.db.run(settle, JOBS, [snooze(one, int(ten_years.total_seconds()) * 1_000), snooze(other, 1)]) == [
        SETTLED,
        SETTLED,
    ]
    assert [row.run_at for row in jobs.rows()] == [NOON + ten_years, NOON + timedelta(milliseconds=1)]


def test_the_last_failure_is_dead(jobs: JobTable) -> None:
    # contract: R1
    [hold] = jobs.running()
    assert jobs.db.run(settle, JOBS, [failed(hold, None)]) == [SETTLED]
    row = jobs.row(hold.id)
    assert (row.state, row.error_category, row.finished_at) == ("dead", "failed", NOON)


def test_retry_at_an_instant_and_one_in_the_past_is_now(jobs: JobTable) -> None:
    # contract: R6
    holds = jobs.running(4)
    instants = [
        NOON + timedelta(days=1, microseconds=1), NOON - timedelta(days=1), datetime(1970, 1, 1, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),
    ]  # fmt: skip
    batch = [
        Settlement(hold.id, hold.token, State.PENDING, "retry", at=at) for hold, at in zip(holds, instants, strict=True)
    ]
    assert jobs.db.run(settle, JOBS, batch) == [SETTLED] * 4
    assert [row.run_at for row in jobs.rows()] == [instants[0], NOON, NOON, instants[3]]


def test_a_snooze_gives_the_attempt_back_and_keeps_the_earlier_error(jobs: JobTable) -> None:
    # contract: R6
    [hold] = jobs.running(error_category="failed", error_class="Old", error_summary="old")
    assert jobs.db.run(settle, JOBS, [snooze(hold, 60_000)]) == [SETTLED]
    row = jobs.row(hold.id)
    assert (row.state, row.attempt, row.run_at) == ("pending", 0, NOON + timedelta(minutes=1))
    assert (row.error_category, row.error_class, row.error_summary) == ("failed", "Old", "old")


def test_a_record_given_back_is_as_it_was_before_the_claim(jobs: JobTable) -> None:
    # contract: C3
    [id_] = jobs.add(attempt=2, error_category="failed", error_class="Old", error_summary="old")
    before = jobs.row(id_)
    [record] = jobs.claim()
    jobs.clock.move(seconds=1)
    back = decide(GivenBack(), id=id_, token=record.token, attempt=3, max_attempts=5, backoff=Backoff(1, 1))
    assert jobs.db.run(settle, JOBS, [back]) == [SETTLED]
    row = jobs.row(id_)
    same = [name for name in row._fields if name not in ("token", "claimed_by", "claimed_at")]
    assert {name: getattr(row, name) for name in same} == {name: getattr(before, name) for name in same}
    assert jobs.claim()[0].attempt == 3


def test_a_blocked_record_is_kept_whole_with_its_attempt(jobs: JobTable) -> None:
    # contract: S4
    [hold] = jobs.running(payload="{not json", key="k")
    one = Settlement(
        hold.id, hold.token, State.BLOCKED, "blocked", refund=True, category=Category.CORRUPT_PAYLOAD
    )  # fmt: skip
    assert jobs.db.run(settle, JOBS, [one]) == [SETTLED]
    row = jobs.row(hold.id)
    assert (row.state, row.error_category, row.attempt) == ("blocked", "corrupt_payload", 0)
    assert (row.payload, row.key, row.finished_at) == ("{not json", "k", NOON)


def test_the_tenth_hand_back_counts(jobs: JobTable) -> None:
    # contract: M6
    [id_] = jobs.add(max_attempts=3)
    seen = []
    for _ in range(11):
        [record] = jobs.claim()
        back = Settlement(id_, record.token, State.PENDING, "returned", refund=True, handed_back=True)
        assert jobs.db.run(settle, JOBS, [back]) == [SETTLED]
        seen.append((record.attempt, jobs.row(id_).attempt))
        if len(seen) == 5:  # one that never started is not counted as handed back
            [record] = jobs.claim()
            jobs.db.run(settle, JOBS, [Settlement(id_, record.token, State.PENDING, "returned", refund=True)])
    assert seen == [(1, 0)] * 9 + [(1, 1), (2, 2)]
    # Used up by hand-backs, it ends like every record without attempts left.
    [record] = jobs.claim()
    back = Settlement(id_, record.token, State.PENDING, "returned", refund=True, handed_back=True)
    assert jobs.db.run(settle, JOBS, [back]) == [SETTLED]
    assert [(buried.id, buried.state) for buried in jobs.bury()] == [(id_, "dead")]


def test_hand_backs_of_one_batch_are_counted_each_by_its_own(jobs: JobTable) -> None:
    # contract: M6
    ninth, tenth = jobs.running(handed_back=8)[0], jobs.running(handed_back=9)[0]
    batch = [
        Settlement(h.id, h.token, State.PENDING, "returned", refund=True, handed_back=True) for h in (ninth, tenth)
    ]
    assert jobs.db.run(settle, JOBS, batch) == [SETTLED, SETTLED]
    assert [(row.attempt, row.handed_back) for row in jobs.rows()] == [(0, 9), (1, 10)]


# --- S6: what is stored of an error can always be stored --------------------------------------------------------------


class Nasty(Exception):
    __module__ = "a\0b\ud800" + "m" * 300


def test_no_error_text_can_fail_a_settlement(jobs: JobTable) -> None:
    # contract: S6
    from rowlock import Dead, SafeError

    errors = [Nasty("secret"), SafeError("a\0b\ud800c"), SafeError("é" * 600), Dead("\U0001f600" * 600), Dead("\0")]
    holds = jobs.running(len(errors))
    batch = [
        decide(Raised(error), id=h.id, token=h.token, attempt=1, max_attempts=5, backoff=Backoff(1, 1))
        for error, h in zip(errors, holds, strict=True)
    ]
    assert jobs.db.run(settle, JOBS, batch) == [SETTLED] * len(errors)
    rows = jobs.rows()
    assert rows[0].error_summary is None
    assert len(rows[0].error_class) == 200
    assert "\0" not in rows[0].error_class
    assert rows[1].error_summary == "a\\x00b\\ud800c"
    assert rows[2].error_summary == "é" * 500
    assert rows[3].error_summary == "\U0001f600" * 500
    assert rows[4].error_summary == "\\x00"


# --- L6: set-wise, each on its own ------------------------------------------------------------------------------------


def mixed(holds: list[Hold]) -> list[Settlement]:
    makers = [
        ack,
        lambda hold: failed(hold, hold.id * 1_000, error_class=f"C{hold.id}"),
        lambda hold: failed(hold, None, summary=f"s{hold.id}"),
        lambda hold: snooze(hold, hold.id * 10),
        lambda hold: Settlement(hold.id, hold.token, State.PENDING, "retry", at=NOON + timedelta(days=hold.id)),
        lambda hold: Settlement(hold.id, hold.token, State.SUCCEEDED, "drop"),
        lambda hold: Settlement(hold.id, hold.token, State.CANCELLED, "cancelled", category=Category.CANCELLED),
    ]
    return [makers[n % len(makers)](hold) for n, hold in enumerate(holds)]


def test_a_conflict_of_one_is_its_own_and_undoes_no_other(jobs: JobTable) -> None:
    # contract: L6
    holds = jobs.running(28)
    stolen, expired, gone = holds[7], holds[8], holds[17]
    jobs.change(stolen.id, token="another's")
    jobs.change(expired.id, lease=NOON)
    jobs.change(gone.id, state="dead")
    before = {row.id: row for row in jobs.rows()}
    batch = mixed(holds)
    lost = {stolen.id, expired.id, gone.id}
    assert jobs.db.run(settle, JOBS, batch) == [LOST if hold.id in lost else SETTLED for hold in holds]
    for one, row in zip(batch, jobs.rows(), strict=True):
        if row.id in lost:
            assert row == before[row.id]
            continue
        assert (row.state, row.lease) == (one.state, None)
        if one.outcome in ("snooze", "failed", "retry") and one.state is State.PENDING:
            expected = one.at or NOON + timedelta(milliseconds=one.delay_ms or 0)
            assert row.run_at == expected
        else:
            assert row.finished_at == NOON
        assert row.error_category == one.category
        assert (row.error_class, row.error_summary) == (one.error_class, one.summary)
        assert row.attempt == (0 if one.refund else 1)


def test_the_verdicts_come_in_the_order_of_the_settlements(jobs: JobTable) -> None:
    # contract: L6
    holds = jobs.running(9)
    for hold in holds[::3]:
        jobs.change(hold.id, token="another's")
    batch = mixed(holds)[::-1]
    assert jobs.db.run(settle, JOBS, batch) == [LOST if n % 3 == 0 else SETTLED for n in range(9)][::-1]


@pytest.mark.parametrize("number", [7, 8, 9, 24, 25, 100])
def test_one_kind_in_any_number_settles_what_is_held_and_nothing_else(jobs: JobTable, number: int) -> None:
    # contract: L1, L6
    holds = jobs.running(number)
    assert jobs.db.run(settle, JOBS, [ack(hold) for hold in holds[: number // 2]]) == [SETTLED] * (number // 2)
    jobs.change(holds[-1].id, token="another's")
    jobs.change(holds[-2].id, lease=NOON)
    before = {row.id: row for row in jobs.rows()}
    rest = holds[number // 2 :]
    assert jobs.db.run(settle, JOBS, [ack(hold) for hold in rest]) == [SETTLED] * (len(rest) - 2) + [LOST] * 2
    rows = {row.id: row for row in jobs.rows()}
    assert [row.state for row in rows.values()] == ["succeeded"] * (number - 2) + ["running"] * 2
    assert [rows[hold.id] for hold in holds[-2:]] == [before[hold.id] for hold in holds[-2:]]


def test_many_are_settled_with_one_statement_of_each_kind(jobs: JobTable) -> None:
    # contract: L6
    holds = jobs.running(150, token="same")
    batch = [
        failed(hold, hold.id, error_class=f"C{hold.id}", summary=f"s{hold.id}") if hold.id % 3 else ack(hold)
        for hold in holds
    ]
    with statements(jobs.db.engine()) as sent:
        assert jobs.db.run(settle, JOBS, batch) == [SETTLED] * 150
    if jobs.db.dialect.one_writer:
        assert sum(statement.startswith("BEGIN") for statement in sent) == 1
        assert sum(statement.startswith("COMMIT") for statement in sent) == 1
    else:
        assert sum(" SET " in statement for statement in sent) == 2
    for one, row in zip(batch, jobs.rows(), strict=True):
        assert (row.state, row.error_class, row.error_summary) == (one.state, one.error_class, one.summary)
        if one.delay_ms is not None:
            assert row.run_at == NOON + timedelta(milliseconds=one.delay_ms)


def test_more_than_one_statement_takes(jobs: JobTable) -> None:
    # contract: L6
    holds = jobs.running(1_203, token="same")
    jobs.change(holds[600].id, token="another's")
    verdicts = jobs.db.run(settle, JOBS, [ack(hold) for hold in holds])
    assert [n for n, verdict in enumerate(verdicts) if verdict is not SETTLED] == [600]
    assert sum(row.state == "succeeded" for row in jobs.rows()) == 1_202


@SERVERS
def test_a_row_that_an_operator_holds_delays_only_its_own_settlement(jobs: JobTable, database: Database) -> None:
    # contract: L6
    holds = jobs.running(14)
    held, lost = holds[3], holds[4]
    jobs.change(lost.id, token="another's")
    batch = mixed(holds)
    with Blocker(database) as operator:
        operator.lock_row("rowlock_job", id=held.id)
        verdicts = jobs.db.run(settle, JOBS, batch)
        assert verdicts == [{held.id: BUSY, lost.id: LOST}.get(hold.id, SETTLED) for hold in holds]
        operator.rollback()
    assert jobs.row(held.id).state == "running"
    assert jobs.db.run(settle_one, JOBS, batch[3]) is SETTLED
