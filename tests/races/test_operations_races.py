"""Operators and programs that meet: replays, purges, enqueues of the same keys, claims and pauses (O2, O5, E4)."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import sqlalchemy as sa

from rowlock import App, Done, InvalidState, Jobs, KeyTaken
from rowlock.errors import EnqueueBusy
from rowlock.model.outcome import Settlement, State
from rowlock.model.table import JOBS
from rowlock.store import settle
from support.databases import Database
from support.jobtable import JobTable
from support.races import Blocker, in_background, wait_for_waiters
from support.waiting import barrier, in_threads

jobs = Jobs()


@jobs.job(name="a", max_attempts=5, timeout=1)
def a() -> None:
    pass


@pytest.fixture
def app(app_factory: Callable[..., App]) -> App:
    return app_factory(jobs)


def test_replays_of_the_same_records_share_them(app: App, table: JobTable) -> None:  # contract: O2, O6
    ids = table.dead(600)
    start = barrier(4)

    def replay() -> Done:
        start.wait()
        return app.records.replay(state="dead")

    done = in_threads(*[replay] * 4)
    left = app.records.replay(state="dead").count  # what one passed over since another had it, that one changed
    assert sum(each.count for each in done) + left == 600
    assert left == 0
    assert set(table.states()) == {"pending"}
    assert [row.id for row in table.rows()] == ids
    assert sum(entry.count for entry in app.audit.list().items) == 600


def test_a_replay_and_a_purge_of_the_same_records_share_them(app: App, table: JobTable) -> None:  # contract: O2
    table.dead(600)
    start = barrier(2)

    def change(what: Callable[..., Done]) -> Callable[[], Done]:
        def run() -> Done:
            start.wait()
            return what(state="dead")

        return run

    replayed, purged = in_threads(change(app.records.replay), change(app.records.purge))
    assert replayed.count + purged.count == 600
    assert len(table.rows()) == replayed.count
    assert set(table.states()) <= {"pending"}


def test_a_replay_and_an_enqueue_of_one_key_make_one_active_record(app: App, table: JobTable) -> None:
    # contract: O2, E4
    for number in range(12):
        key = f"k{number}"
        [old] = table.dead(key=key)
        start = barrier(3)

        def replay(old: int = old, start: threading.Barrier = start) -> str:
            start.wait()
            try:
                app.records.replay(old)
            except (KeyTaken, EnqueueBusy) as refused:
                return type(refused).__name__
            return "replayed"

        def enqueue(key: str = key, start: threading.Barrier = start) -> int:
            start.wait()
            return a.enqueue(key=key).id

        said, *ids = in_threads(replay, enqueue, enqueue)
        active = [row.id for row in table.rows() if row.key == key and row.state == "pending"]
        assert len(active) == 1
        assert set(ids) == set(active)
        assert (said == "replayed") is (active == [old])


def test_two_replays_of_one_record(app: App, table: JobTable) -> None:  # contract: O2
    # case: C81
    [id_] = table.dead()
    start = barrier(4)

    def replay() -> str:
        start.wait()
        try:
            return str(app.records.replay(id_).count)
        except InvalidState as refused:
            return type(refused).__name__

    assert sorted(in_threads(*[replay] * 4)) == ["1", "InvalidState", "InvalidState", "InvalidState"]
    assert [entry.count for entry in app.audit.list().items] == [1]


@pytest.mark.databases("postgresql", "mariadb", reason="E4: SQLite has one write transaction at a time")
def test_a_replay_that_loses_its_key_between_look_and_write(
    app: App, table: JobTable, database: Database, engine: sa.Engine
) -> None:
    # contract: O2, E4
    lost, free = table.dead(key="k")[0], table.dead()[0]
    at = "'2027-01-01 00:00:00.000000'"
    key = "`key`" if database.dialect == "mariadb" else "key"
    with Blocker(database) as other:  # a plain INSERT of somebody's: it takes no lock that is looked at first
        other.execute(
            "INSERT INTO rowlock_job (job, fingerprint, payload, queue, priority, state, run_at, attempt,"
            f" max_attempts, timeout_ms, created_at, {key})"
            f" VALUES ('a', 'f', 'null', 'default', 1, 'pending', {at}, 0, 5, 1, {at}, 'k')"
        )
        late = in_background(lambda: app.records.replay(state="dead"))
        wait_for_waiters(database)
        other.commit()
        done = late.result(20)
    assert done == Done(1, 1)
    assert tuple(table.states([lost, free])) == ("dead", "pending")
    with pytest.raises(KeyTaken):
        app.records.replay(lost)


def test_a_late_settlement_changes_no_replayed_record(app: App, table: JobTable) -> None:  # contract: O2, L1
    # case: C07
    [hold] = table.running()
    table.change(hold.id, state="dead", lease=None, finished_at=table.now())
    app.records.replay(hold.id)
    before = table.row(hold.id)
    late = [Settlement(hold.id, hold.token, State.SUCCEEDED, "ack")]
    assert table.db.run(settle.settle, JOBS, late) == [settle.Verdict.LOST]
    assert table.row(hold.id) == before


def test_no_claim_that_begins_after_a_pause_takes_anything(app: App, table: JobTable) -> None:  # contract: O5
    table.add(2_000)
    paused, stop = threading.Event(), threading.Event()
    before: list[int] = []
    after: list[int] = []

    def claims() -> None:
        db = table.another()
        while not stop.is_set():
            begins_after = paused.is_set()
            records = table.claim(3, db=db)
            (after if begins_after else before).extend(record.id for record in records)
            if begins_after and not records:
                return

    workers = [threading.Thread(target=claims) for _ in range(3)]
    for worker in workers:
        worker.start()
    try:
        while not before:
            assert any(worker.is_alive() for worker in workers)
        app.queues.pause("default")
        paused.set()
        for worker in workers:
            worker.join(20)
    finally:
        stop.set()
    assert after == []
    assert len(before) < 2_000
    running = [row.id for row in table.rows() if row.state == "running"]
    assert sorted(before) == running
