"""A record's states under any order of enqueue, claim, renewal, settlement, crash, clean-up and time (L1, E4, C2, S3).

The store and the model of support/model.py go the same way, and are compared after each step: every column that says
who owns a record and what becomes of it. A crash needs no step of its own: whoever held a record is forgotten, and can
come back late, since every token that was ever given out is used again and again.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from rowlock import Backoff
from rowlock.errors import InvalidState, KeyTaken
from rowlock.model.answer import Ack, Dead, Drop, Retry, Snooze
from rowlock.model.outcome import Blocked, Cancelled, Category, End, GivenBack, Raised, Returned, TimedOut, decide
from rowlock.model.request import EnqueueRequest
from rowlock.model.table import JOBS
from rowlock.store import change, operate, schema
from rowlock.store.asked import carry_out
from rowlock.store.cancel import cancel_one
from rowlock.store.claim import Branch, Source, claim
from rowlock.store.database import Database as Store
from rowlock.store.enqueue import JobTarget, enqueue, enqueue_joined
from rowlock.store.programs import Pair
from rowlock.store.release import Known, Release
from rowlock.store.renew import Hold, renew, renew_one, standing
from rowlock.store.replay import Purge, Replay
from rowlock.store.settle import settle, settle_one
from support.databases import Database
from support.jobtable import FINGERPRINT, NOON, JobTable
from support.model import BACKOFF_CAP_MS, BACKOFF_MS, MS, Model, Record
from support.races import Blocker

LEASES = {"a": 1_000, "b": 2_500}
PROGRAM = {Pair(job, FINGERPRINT): Known((job,), None) for job in LEASES}
BACKOFF = Backoff(BACKOFF_MS / 1_000, BACKOFF_CAP_MS / 1_000)
COLUMNS = (
    *("id", "job", "key", "priority", "run_at", "max_attempts", "state", "attempt", "handed_back", "lease"),
    *("token", "error_category", "finished_at"),
)

KINDS = (
    *("ack", "drop", "failed", "timed_out", "retry", "retry_at", "dead", "snooze", "returned", "handed_back"),
    *("cancelled", "unknown_job", "schema_mismatch", "corrupt_payload"),
)
some = st.integers(0, 11)  # one of those that there are, the youngest first
seldom = st.sampled_from([False, False, False, True])
doors = st.sampled_from(["own", "joined", "rolled back"])
waits = st.sampled_from([1, 500, 1_000, 2_500])
kinds = st.sampled_from(KINDS)
keys = st.sampled_from([None, "k", "K", "l"])
asked = st.tuples(keys, st.sampled_from([5, 100]), st.sampled_from([None, 1_000, -1_000]))


class Holder(NamedTuple):
    """One who was given a record. Most of them have lost it since."""

    id: int
    token: str
    attempt: int
    most: int
    lease_ms: int


def end_of(kind: str, wait_ms: int, machine: Machine) -> End:
    ends: dict[str, Any] = {
        "ack": lambda: Returned(Ack()),
        "drop": lambda: Returned(Drop()),
        "failed": lambda: Raised(ValueError("no")),
        "timed_out": TimedOut,
        "retry": lambda: Returned(Retry(after=wait_ms / 1_000)),
        "retry_at": lambda: Returned(Retry(at=machine.clock.time + timedelta(milliseconds=wait_ms))),
        "dead": lambda: Raised(Dead("given up")),
        "snooze": lambda: Returned(Snooze(wait_ms / 1_000)),
        "returned": GivenBack,
        "handed_back": lambda: GivenBack(shutdown=True),
        "cancelled": Cancelled,
    }
    return ends[kind]() if kind in ends else Blocked(Category(kind))


class Machine(RuleBasedStateMachine):
    def __init__(self, jobs: JobTable, other: Store, engine: sa.Engine) -> None:
        super().__init__()
        self.jobs, self.engine, self.clock = jobs, engine, jobs.clock
        self.stores = [jobs.db, other]
        self.turn = 0
        self.clock.time = NOON
        self.model = Model()
        self.holders: list[Holder] = []
        self.tokens: set[str] = set()
        self.operator = ExitStack()
        with engine.begin() as connection:
            for table in ("rowlock_job", "rowlock_cancel", "rowlock_audit"):
                connection.exec_driver_sql(f"DELETE FROM {table}")

    @property
    def db(self) -> Store:
        """Two processes take turns."""
        self.turn += 1
        return self.stores[self.turn % 2]

    def pick(self, number: int, *states: str) -> int | None:
        """A record by its number, the youngest is 0; None if there is none in these states."""
        ids = [id_ for id_, each in self.model.records.items() if not states or each.state in states]
        return sorted(ids)[-1 - number % len(ids)] if ids else None

    def holders_of(self, numbers: list[int]) -> list[Holder]:
        """By even numbers some who hold a record now, by odd ones some who ever did; a record comes once in a batch."""
        now = [holder for holder in self.holders if self.model.owns(holder.id, holder.token)]
        among = [self.holders if number % 2 or not now else now for number in numbers]
        picked = [group[-1 - number // 2 % len(group)] for group, number in zip(among, numbers, strict=True)]
        return list({holder.id: holder for holder in picked}.values())

    @initialize(items=st.lists(asked, min_size=3, max_size=5), most=st.integers(2, 4), claimed=st.integers(1, 4))
    def begin(self, items: list[Any], most: int, claimed: int) -> None:
        self.enqueue("a", items, most, "own")
        self.enqueue("b", items, most, "own")
        self._to(1_000 * MS)
        self.claim("ab", claimed)

    # --- enqueueing -------------------------------------------------------------------------------------------------

    @rule(job=st.sampled_from("ab"), items=st.lists(asked, min_size=1, max_size=3), most=st.integers(1, 3),
          door=doors)  # fmt: skip
    def enqueue(self, job: str, items: list[Any], most: int, door: str) -> None:
        target, db = JobTarget((job,), most, 1_000), self.db
        requests = [self._request(n, *item) for n, item in enumerate(items)]
        if door == "own":
            answers = enqueue(db, target, requests)
        else:
            with self.engine.connect() as caller:
                answers = enqueue_joined(caller, db, target, requests)
                caller.commit() if door == "joined" else caller.rollback()
        before = self.model.records
        if door == "rolled back":
            self.model.records = dict(before)
        for (key, priority, wait_ms), answer in zip(items, answers, strict=True):
            there = self.model.active(job, key)
            assert answer.created is (there is None)
            if there is not None:
                assert (answer.id, answer.state) == (there, self.model.records[there].state)
                continue
            assert answer.id not in self.model.records
            due = self.model.now + max(wait_ms or 0, 0) * MS
            self.model.records[answer.id] = Record(job, key, priority, due, most)
        if door == "rolled back":
            self.model.records = before

    def _request(self, n: int, key: str | None, priority: int, wait_ms: int | None) -> EnqueueRequest:
        if wait_ms is None or (wait_ms > 0 and n % 2):
            return EnqueueRequest("null", FINGERPRINT, key, None, wait_ms, priority, "default", None)
        at = self.clock.time + timedelta(milliseconds=wait_ms)
        return EnqueueRequest("null", FINGERPRINT, key, at, None, priority, "default", None)

    # --- holding ----------------------------------------------------------------------------------------------------

    @rule(known=st.sampled_from(["a", "b", "ab"]), limit=st.integers(1, 4))
    def claim(self, known: str, limit: int) -> None:
        source = Source(JOBS, "default", tuple(Branch(job, FINGERPRINT, LEASES[job]) for job in known), "tester:1")
        claimed = self.db.run(claim, source, limit)
        wanted = self.model.claimable(known)[:limit]
        if self.model.locked:  # rows that others hold may stand in for some: fewer, never in another order
            assert bool(claimed) is bool(wanted)
            wanted = wanted[: len(claimed)]
        assert [record.id for record in claimed] == wanted
        for record in claimed:
            assert record.token not in self.tokens
            self.tokens.add(record.token)
            self.model.claim(record.id, record.token, LEASES[record.job])
            row = self.model.records[record.id]
            assert bool(record.cancelled) is (record.id in self.model.asked)
            assert (record.attempt, record.max_attempts, record.key) == (row.attempt, row.most, row.key)
            self.holders.append(Holder(record.id, record.token, row.attempt, row.most, record.lease_ms))

    @precondition(lambda self: self.holders)
    @rule(numbers=st.lists(some, min_size=1, max_size=4), crossed=seldom)
    def renew(self, numbers: list[int], crossed: bool) -> None:
        holds = [Hold(h.id, h.token, h.lease_ms) for h in self.holders_of(numbers)]
        if crossed:  # the tokens of the batch, but not in pairs
            holds = [Hold(h.id, holds[n - 1].token, h.lease_ms) for n, h in enumerate(holds)]
        if len(holds) == 1 and holds[0].id not in self.model.locked:
            assert self.db.run(renew_one, JOBS, holds[0]) is (self.model.renew(*holds[0]) == "renewed")
            return
        answer = self.db.run(renew, JOBS, holds)
        said = {id_: name for name, ids in answer._asdict().items() for id_ in ids}
        assert said == {hold.id: self.model.renew(*hold) for hold in holds}

    @precondition(lambda self: self.holders)
    @rule(ends=st.lists(st.tuples(some, kinds, waits), min_size=1, max_size=4), crossed=seldom,
          repeated=st.booleans())  # fmt: skip
    def settle(self, ends: list[tuple[int, str, int]], crossed: bool, repeated: bool) -> None:
        holders = self.holders_of([number for number, _, _ in ends])
        tokens = [holders[n - 1].token if crossed else holder.token for n, holder in enumerate(holders)]
        said = [(h.id, token, kind, wait) for h, token, (_, kind, wait) in zip(holders, tokens, ends, strict=False)]
        settlements = [
            decide(
                end_of(kind, wait, self), id=id_, token=token, attempt=holder.attempt, max_attempts=holder.most,
                backoff=BACKOFF,
            )
            for holder, (id_, token, kind, wait) in zip(holders, said, strict=True)
        ]  # fmt: skip
        if len(said) == 1 and said[0][0] not in self.model.locked:
            verdicts = [self.db.run(settle_one, JOBS, settlements[0], repeated=repeated)]
        else:
            verdicts = self.db.run(settle, JOBS, settlements, repeated=repeated)
        assert verdicts == [self.model.settle(*each, repeated=repeated) for each in said]

    # --- clean-up and operators -------------------------------------------------------------------------------------

    @rule()
    def rescue(self) -> None:
        assert {record.id: record.state for record in self.jobs.rescue()} == self.model.rescue()

    @rule()
    def bury(self) -> None:
        assert {record.id: record.state for record in self.jobs.bury()} == self.model.bury()

    @rule()
    def carry_out(self) -> None:
        assert {record.id for record in self.db.run(carry_out).records} == self.model.carry_out()

    @rule(number=some, door=doors)
    def cancel(self, number: int, door: str) -> None:
        db = self.db
        self._operate("cancel", number, door, ("pending", "running"), lambda id_: cancel_one(db, id_), db)

    @rule(number=some, door=doors)
    def release(self, number: int, door: str) -> None:
        db = self.db
        self._operate("release", number, door, ("blocked",), lambda id_: change.one(Release(db, PROGRAM), id_), db)

    @rule(number=some, door=doors)
    def replay(self, number: int, door: str) -> None:
        db = self.db
        self._operate("replay", number, door, ("dead",), lambda id_: change.one(Replay(db, PROGRAM), id_), db)

    @rule(number=some, door=doors)
    def purge(self, number: int, door: str) -> None:
        db = self.db
        self._operate("purge", number, door, ("dead", "blocked"), lambda id_: change.one(Purge(db), id_), db)

    def _operate(
        self, name: str, number: int, door: str, states: tuple[str, ...], make: Callable[[int], Any], db: Store
    ) -> None:
        """By even numbers on a record that is as it must be, if there is one."""
        id_ = self.pick(number // 2, *states) if number % 2 == 0 else None
        if id_ is None and (id_ := self.pick(number // 2)) is None:
            return
        with self.engine.connect() as caller:
            try:
                answer = operate.run(db, make(id_), None if door == "own" else caller)
                said = "done" if isinstance(answer, change.Done) else str(answer)
            except KeyTaken:
                said = "taken"
            except InvalidState:
                said = "refused"
            caller.rollback() if door == "rolled back" else caller.commit()
        model = copy.deepcopy(self.model) if door == "rolled back" else self.model
        assert said == getattr(model, name)(id_)

    @rule(number=some, most=st.sampled_from([0, 1, 2, 101]), handed_back=st.sampled_from([0, 9]))
    def change_by_hand(self, number: int, most: int, handed_back: int) -> None:
        """Somebody spoils the limits of a pending record, or it has been through many a deploy."""
        if (id_ := self.pick(number, "pending")) is None or id_ in self.model.locked:
            return
        self.jobs.change(id_, max_attempts=most, handed_back=handed_back)
        self.model.records[id_].most, self.model.records[id_].handed_back = most, handed_back

    @precondition(lambda self: not self.model.locked and not self.jobs.db.dialect.one_writer)
    @rule(number=some)
    def lock(self, number: int) -> None:
        if (id_ := self.pick(number, "pending", "running", "blocked")) is not None:
            self.operator.enter_context(Blocker(self.jobs.database)).lock_row("rowlock_job", id=id_)
            self.model.locked.add(id_)

    @precondition(lambda self: self.model.locked)
    @rule()
    def unlock(self) -> None:
        self.operator.close()
        self.model.locked.clear()

    # --- time -------------------------------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([0.001, 1, 300, 499, 700, 700, 1_000, 60_000]))
    def time_passes(self, ms: float) -> None:
        self._to(self.model.now + round(ms * MS))

    @rule(number=some, early=st.booleans())
    def time_of_a_lease(self, number: int, early: bool) -> None:
        """The instant of a deadline, at which the lease has ended, or the last microsecond of it."""
        if (id_ := self.pick(number, "running")) is not None:
            self._to(max(self.model.now, self.model.records[id_].lease - early))

    def _to(self, now: int) -> None:
        self.model.now = now
        self.clock.time = NOON + timedelta(microseconds=now)

    # --- after each step --------------------------------------------------------------------------------------------

    @invariant()
    def the_table_is_as_the_model_says(self) -> None:
        with self.engine.connect() as connection:
            rows = {row.id: row for row in connection.execute(sa.select(*(schema.job.c[name] for name in COLUMNS)))}
            asked = set(connection.exec_driver_sql("SELECT id FROM rowlock_cancel").scalars())
        assert rows.keys() == self.model.records.keys()
        for id_, row in rows.items():
            model = self.model.records[id_]
            token = row.token if row.token in self.tokens or row.token is None else model.token  # an enqueue's own
            found = Record(
                row.job, row.key, row.priority, _since(row.run_at), row.max_attempts, row.state, row.attempt,
                row.handed_back, _since(row.lease), token, row.error_category, _since(row.finished_at),
            )  # fmt: skip
            assert found == model, f"record {id_}"
            self.model.active(row.job, row.key)
        assert asked == self.model.asked

    @invariant()
    def each_hold_stands_or_not_as_the_model_says(self) -> None:
        # By turns of each record the first holder, who has mostly lost it, and the last one.
        order = self.holders if self.turn % 2 else reversed(self.holders)
        holders = {holder.id: holder for holder in order}.values()
        stands = self.jobs.db.run(standing, JOBS, [(holder.id, holder.token) for holder in holders])
        assert stands == {h.id for h in holders if self.model.owns(h.id, h.token)}

    def teardown(self) -> None:
        self.operator.close()
        if sys.exc_info()[0] is None:
            self.model.locked.clear()
            self._nothing_is_stuck()

    def _nothing_is_stuck(self) -> None:
        """Whatever state the walk left, workers can bring each record to an end (K2)."""
        for _ in range(8):
            if self.pick(0, "pending", "running") is None:
                break
            self._to(self.model.now + 3_600_000 * MS)
            self.rescue()
            self.bury()
            self.carry_out()
            while self.model.claimable("ab"):
                self.claim("ab", 4)
                self.settle([(n, "ack", 1) for n in range(0, 8, 2)], crossed=False, repeated=False)
        assert not self.pick(0, "pending", "running")
        self.the_table_is_as_the_model_says()


def _since(moment: Any) -> int | None:
    return None if moment is None else (moment - NOON) // timedelta(microseconds=1)


@pytest.fixture
def jobs(database: Database) -> Iterator[JobTable]:
    with JobTable(database) as made:
        yield made


def walk(jobs: JobTable, engine: sa.Engine, examples: int, steps: int) -> None:
    other = jobs.another()
    run_state_machine_as_test(
        lambda: Machine(jobs, other, engine),
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            phases=[Phase.generate],  # to shrink a walk takes minutes, and it can be read as it is
            suppress_health_check=list(HealthCheck),
            database=None,
        ),
    )


def test_the_store_goes_the_way_of_the_model(jobs: JobTable, engine: sa.Engine) -> None:
    # contract: L1, L7, C2, C4, C5, E4, S3, O2, O3, O4
    walk(jobs, engine, examples=10, steps=40)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_the_store_goes_the_way_of_the_model_for_long(jobs: JobTable, engine: sa.Engine) -> None:
    # contract: L1, L7, C2, C4, C5, E4, S3, O2, O3, O4
    walk(jobs, engine, examples=150, steps=60)
