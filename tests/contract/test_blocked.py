"""Records that this program must not run as they are: set aside, whole, their attempt unspent (S4, S7, W5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import sqlalchemy as sa

from rowlock import App, Context, Jobs
from rowlock.model.table import JOBS
from rowlock.runtime.events import Event
from rowlock.store import schema
from rowlock.store.claim import bury, rescue
from rowlock.store.programs import Pair, block_unknown, strangers
from rowlock.testing import TestApp
from support.databases import Database
from support.jobtable import FINGERPRINT, NOON, JobTable
from support.waiting import wait_until_async


@dataclass(frozen=True)
class Letter:
    to: str
    copies: int = 1


@dataclass(frozen=True)
class OldLetter:
    address: str


def upgrade(old: OldLetter) -> Letter:
    if old.address == "exit":
        raise SystemExit(3)
    if old.address == "deep":
        raise RecursionError
    return Letter(old.address, copies=2)


class Post:
    """An application, its open case, and what its handlers got."""

    def __init__(self, engine: sa.Engine, **options: Any) -> None:
        self.engine = engine
        self.jobs = Jobs()
        self.app = App("sqlite:////nowhere/at/all.db", include=[self.jobs])
        self.got: list[tuple[int, Letter]] = []
        self.blocked: list[Event] = []
        self.app.on("blocked")(self.blocked.append)

        @self.jobs.job(max_attempts=3, timeout=1, name="post", aliases=("mail",), accepts=((OldLetter, upgrade),))
        async def post(input: Letter, ctx: Context) -> None:
            self.got.append((ctx.id, input))

        self.post = post
        self.case = TestApp(self.app, engine=engine, now=NOON, **options)

    def enqueue(self, to: str = "a") -> int:
        return self.post.enqueue(Letter(to)).id

    def spoil(self, id_: int, **columns: Any) -> None:
        with self.engine.begin() as connection:
            connection.execute(schema.job.update().where(schema.job.c.id == id_).values(**columns))

    def row(self, id_: int) -> Any:
        with self.engine.connect() as connection:
            return connection.execute(sa.select(schema.job).where(schema.job.c.id == id_)).one()


@pytest.fixture
def post(engine: sa.Engine) -> Iterator[Post]:
    made = Post(engine)
    with made.case:
        yield made


CORRUPT = {
    "no JSON": "{to: 1}",
    "nothing": "",
    "a wrong type": '{"to": 5, "copies": 1}',
    "a missing field": '{"copies": 1}',
    "an unknown field": '{"to": "a", "copies": 1, "bcc": "b"}',
    "no record": "[]",
    "null": "null",
    "absurd nesting": "[" * 100_000,
    "text behind it": '{"to": "a", "copies": 1} x',
    "a number out of range": '{"to": "a", "copies": 1' + "0" * 40 + "}",
}
POLICY = {
    "too many attempts": {"max_attempts": 101},
    "an absurd number of attempts": {"max_attempts": 2_000_000_000},
    "no time": {"timeout_ms": 0},
    "negative time": {"timeout_ms": -5},
    "too much time": {"timeout_ms": 3_600_001},
    "a negative attempt": {"attempt": -7},
    "no attempts at all": {"max_attempts": 0},
    "negative attempts": {"max_attempts": -1},
}


def test_each_kind_is_set_aside_and_the_rest_of_the_queue_goes_on(post: Post) -> None:
    # contract: S4
    spoiled: dict[int, tuple[str, dict[str, Any]]] = {}
    good = [post.enqueue("first")]

    def spoil(category: str, what: str, **columns: Any) -> None:
        id_ = post.enqueue(what)
        post.spoil(id_, **columns)
        spoiled[id_] = (category, columns)

    for what, payload in CORRUPT.items():
        spoil("corrupt_payload", what, payload=payload)
    for what, columns in POLICY.items():
        spoil("invalid_policy", what, **columns)
    spoil("unknown_job", "name", job="nobody's")
    spoil("unknown_job", "case", job="Post")
    spoil("unknown_job", "space", job="post ")
    spoil("schema_mismatch", "fingerprint", fingerprint="0" * 64)
    spoil("schema_mismatch", "fingerprint of an alias", job="mail", fingerprint="0" * 64)
    good.append(post.enqueue("last"))
    before = {id_: post.row(id_) for id_ in spoiled}
    post.case.drain()
    assert [id_ for id_, _ in post.got] == good
    for id_, (category, columns) in spoiled.items():
        row = post.row(id_)
        assert (row.state, row.error_category) == ("blocked", category), columns
        assert (row.attempt, row.finished_at, row.lease) == (before[id_].attempt, NOON, None), columns
        same = ("payload", "job", "fingerprint", "key", "queue", "priority", "run_at", "max_attempts", "timeout_ms")
        assert [getattr(row, name) for name in same] == [getattr(before[id_], name) for name in same]
        assert (row.error_class, row.error_summary) == (None, None)
    assert {event.id: event.outcome for event in post.blocked} == {
        id_: category for id_, (category, _) in spoiled.items()
    }
    assert {event.queue for event in post.blocked} == {"default"}
    assert not post.case.failures


@pytest.mark.databases("sqlite", reason="S4: only there a lease must cover the timeout (L5)")
def test_a_stored_timeout_that_outlasts_the_lease_is_an_invalid_policy(engine: sa.Engine) -> None:
    # contract: S4
    made = Post(engine, leases="declared")
    with made.case:
        covered, outlasting = made.enqueue(), made.enqueue()
        made.spoil(covered, timeout_ms=59_999)
        made.spoil(outlasting, timeout_ms=60_000)
        made.case.drain()
        assert made.row(covered).state == "succeeded"
        assert (made.row(outlasting).state, made.row(outlasting).error_category) == ("blocked", "invalid_policy")
        assert made.row(outlasting).attempt == 0


def test_names_and_inputs_of_yesterday_still_run(post: Post) -> None:
    # contract: J4, J10
    old_fingerprint = post.post.fingerprints[1]
    by_alias, by_old_input, both = post.enqueue(), post.enqueue(), post.enqueue()
    post.spoil(by_alias, job="mail")
    post.spoil(by_old_input, fingerprint=old_fingerprint, payload='{"address": "b"}')
    post.spoil(both, job="mail", fingerprint=old_fingerprint, payload='{"address": "c"}')
    assert post.case.drain() == 3
    assert dict(post.got) == {by_alias: Letter("a"), by_old_input: Letter("b", 2), both: Letter("c", 2)}


def test_what_an_upgrade_raises_is_a_failed_attempt_and_ends_nothing(post: Post) -> None:
    # contract: R4
    old_fingerprint = post.post.fingerprints[1]
    exits, corrupt, behind = post.enqueue(), post.enqueue(), post.enqueue()
    post.spoil(exits, fingerprint=old_fingerprint, payload='{"address": "exit"}')
    post.spoil(corrupt, fingerprint=old_fingerprint, payload='{"to": "new shape"}')
    assert post.case.drain() == 3
    row = post.row(exits)
    assert (row.state, row.attempt, row.error_category, row.error_class) == ("pending", 1, "failed", "SystemExit")
    assert (post.row(corrupt).state, post.row(corrupt).error_category) == ("blocked", "corrupt_payload")
    assert [id_ for id_, _ in post.got] == [behind]


def test_a_blocked_record_frees_its_key(post: Post) -> None:
    # contract: E4
    first = post.post.enqueue(Letter("a"), key="k").id
    post.spoil(first, payload="{")
    post.case.drain()
    assert post.row(first).state == "blocked"
    second = post.post.enqueue(Letter("a"), key="k")
    assert second.created
    assert second.id != first


# --- S7: who claims what ----------------------------------------------------------------------------------------------


def test_a_worker_takes_only_pairs_that_it_knows_and_spends_no_attempt_of_others(database: Database) -> None:
    # contract: S7
    new = "e" * 64
    with JobTable(database) as jobs:
        theirs = jobs.add(200, priority=0, fingerprint=new) + jobs.add(200, priority=0, job="b")
        crossed = jobs.add(1, job="b", fingerprint=FINGERPRINT)
        ours = jobs.add(3)
        assert [record.id for record in jobs.claim(10)] == ours
        assert not jobs.look().due
        assert {(row.state, row.attempt) for row in jobs.rows([*theirs, *crossed])} == {("pending", 0)}
        # The new worker knows ("a", new) and ("b", FINGERPRINT), as pairs: not every name with every input.
        source = jobs.source()
        branch = source.branches[0]
        pairs = [("a", new), ("b", FINGERPRINT)]
        known = type(source)(
            JOBS, "default", tuple(type(branch)(job, fingerprint, 60_000) for job, fingerprint in pairs), "new:1"
        )
        from rowlock.store.claim import claim

        jobs.add(5, job="c", fingerprint=new)
        taken: list[Any] = []
        while batch := jobs.db.run(claim, known, 100):
            taken += batch
        assert {(record.job, record.fingerprint) for record in taken} == {("a", new), ("b", FINGERPRINT)}
        assert len(taken) == 401


@pytest.mark.databases("sqlite", reason="W5: servers refuse text that is not UTF-8")
@pytest.mark.parametrize("kind", ["TEXT", "BLOB"])
@pytest.mark.parametrize("column", ["payload", "headers", "key", "job", "queue", "fingerprint", "error_class"])
def test_bytes_that_are_no_text_fail_no_statement_of_others(database: Database, column: str, kind: str) -> None:
    # contract: W5
    with JobTable(database) as jobs:
        bad = jobs.add(3)
        good = jobs.add(1, priority=200)
        [spent] = jobs.add(attempt=5, max_attempts=5)
        [held] = jobs.running(lease=-(NOON - NOON.replace(hour=11)))
        with jobs.db.engine().connect() as connection:
            for n, id_ in enumerate([*bad, spent, held.id]):
                connection.exec_driver_sql(
                    f'UPDATE rowlock_job SET "{column}" = CAST(? AS {kind}) WHERE id = ?', (b"\xff\xfe%d" % n, id_)
                )
        claimed = jobs.claim(10)
        expected = bad + good if column in {"payload", "headers", "key", "error_class"} else good
        assert [record.id for record in claimed] == expected
        assert [record.id for record in jobs.db.run(bury, JOBS)] == [spent]
        assert [record.id for record in jobs.db.run(rescue, JOBS)] == [held.id]
        known = {Pair("a", FINGERPRINT)}
        jobs.db.run(strangers, known, 0)
        moved = {record.id for record in jobs.db.run(block_unknown, known, 0)}
        assert moved == {"job": {*bad, held.id}, "fingerprint": {*bad, held.id}}.get(column, set())


@pytest.mark.databases("sqlite", reason="W5: servers refuse text that is not UTF-8")
async def test_a_worker_sets_records_aside_whose_names_are_no_text(
    database: Database, app_factory: Callable[..., App]
) -> None:
    # contract: W5, C5
    jobs, blocked = Jobs(), list[Event]()

    @jobs.job(max_attempts=3, timeout=1, name="a")
    async def a() -> None:
        pass

    app = app_factory(
        jobs, settings={"database": {"default": {"url": database.url}}, "job": {"poll_ms": 20, "unknown_ms": 0}}
    )
    app.on("blocked")(blocked.append)
    ids = [a.enqueue().id for _ in range(3)]
    with app.databases["default"].engine().connect() as connection:
        for id_, kind in zip(ids, ("TEXT", "BLOB"), strict=False):
            connection.exec_driver_sql(f"UPDATE rowlock_job SET job = CAST(? AS {kind}) WHERE id = ?", (b"\xff", id_))
    async with app.worker():
        await wait_until_async(lambda: len(blocked) == 2 and app.records.get(ids[2]).state == "succeeded")
        assert app.health()["status"] == "ok"
    assert [app.records.get(id_).error_category for id_ in ids[:2]] == ["unknown_job"] * 2
