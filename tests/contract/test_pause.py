"""A paused queue: nobody claims from it, its records wait, what is in work ends (O5)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from rowlock import App, FilterError, Reason, State
from rowlock.store import pause
from rowlock.store.operate import run
from rowlock.testing import TestApp
from support.databases import Database
from support.jobtable import JobTable, statements
from support.waiting import wait_until


@pytest.fixture
def app(app_factory: Callable[..., App], database: Database) -> App:
    settings = {"database": {"default": {"url": database.url}}, "job": {"poll_ms": 20}, "runtime": {"mode": "worker"}}
    return app_factory(settings=settings)


@pytest.fixture
def table(database: Database) -> Iterator[JobTable]:
    with JobTable(database) as made:
        yield made


def set_pause(table: JobTable, queue: str = "default", *, on: bool = True) -> bool:
    return run(table.db, (pause.pause if on else pause.resume)(table.db, queue))


def polls(app: App, queue: str, number: int) -> None:
    """Waits until the queue has been looked at so many times more."""

    def beat() -> Any:
        return app.health()["loops"].get(f"claim:{queue}", {}).get("beat")

    for _ in range(number):
        before = beat()
        wait_until(lambda before=before: beat() != before)


def test_a_claim_takes_nothing_of_a_paused_queue_and_other_queues_go_on(table: JobTable) -> None:  # contract: O5
    default = table.add(3)
    other = table.add(2, queue="other")
    assert set_pause(table) is True
    assert set_pause(table) is False
    assert not table.look().due
    assert table.look().wait is None
    assert table.claim(10) == []
    assert [record.id for record in table.claim(10, queue="other")] == other
    assert {row.state for row in table.rows(default)} == {"pending"}
    assert set_pause(table, on=False) is True
    assert set_pause(table, on=False) is False
    assert table.look().due
    assert [record.id for record in table.claim(10)] == default


def test_a_queue_is_paused_byte_for_byte(table: JobTable) -> None:  # contract: O5, S5
    ids = {name: table.add(queue=name)[0] for name in ("café", "Café", "cafe", "café ")}
    set_pause(table, "café")
    for name, id_ in ids.items():
        assert [record.id for record in table.claim(queue=name)] == ([] if name == "café" else [id_])


def test_it_costs_an_idle_poll_no_further_read(table: JobTable) -> None:  # contract: K3, O5
    table.look()  # connected
    for paused in (False, True):
        if paused:
            set_pause(table)
        with statements(table.db.engine()) as sent:
            table.look()
        assert len(sent) == 1


def test_what_nobody_holds_any_more_is_still_moved_on(table: JobTable) -> None:  # contract: O5, K2
    [lost] = [hold.id for hold in table.running(lease=timedelta(seconds=1))]
    [spent] = table.add(attempt=5)
    set_pause(table)
    table.clock.move(seconds=2)
    table.rescue()
    table.bury()
    assert (table.row(lost).state, table.row(spent).state) == ("pending", "dead")
    assert table.claim(10) == []


def test_workers_stop_claiming_and_finish_what_is_in_work(app: App) -> None:  # contract: O5
    begun, go_on = threading.Event(), threading.Event()

    @app.job(name="bill", max_attempts=2, timeout=30, queue="billing")
    def bill() -> None:
        begun.set()
        assert go_on.wait(20)

    first = bill.enqueue()
    with app.worker_thread():
        assert begun.wait(20)
        assert app.queues.pause("billing") is True
        second = bill.enqueue()
        go_on.set()
        wait_until(lambda: app.records.get(first.id).state is State.SUCCEEDED)
        polls(app, "billing", 3)
        assert app.records.get(second.id).state is State.PENDING
    with app.worker_thread():  # it outlives a restart
        polls(app, "billing", 3)
        assert app.records.get(second.id).state is State.PENDING
        assert app.queues.resume("billing") is True
        wait_until(lambda: app.records.get(second.id).state is State.SUCCEEDED)


def test_a_start_says_which_queues_are_paused(app: App, caplog: pytest.LogCaptureFixture) -> None:  # contract: O5
    @app.job(name="bill", max_attempts=2, timeout=30, queue="billing")
    def bill() -> None:
        pass

    app.queues.pause("billing")
    with caplog.at_level("WARNING", "rowlock"), app.worker_thread():
        wait_until(lambda: any("queues are paused" in record.getMessage() for record in caplog.records))
    [said] = [record.getMessage() for record in caplog.records if "are paused" in record.getMessage()]
    assert "1 queues are paused, and nobody claims from them (O5): 'billing'" in said


def test_in_the_callers_transaction(app: App, engine: sa.Engine) -> None:  # contract: O5, O6
    with Session(engine) as session:
        assert app.queues.pause("a", connection=session) is True
        session.rollback()
    assert app.queues.list() == ()
    with Session(engine) as session, session.begin():
        assert app.queues.pause("a", connection=session, by="me") is True
        assert app.queues.pause("a", connection=session) is False  # and the transaction goes on
        assert app.queues.pause("b", connection=session) is True
    assert [info.name for info in app.queues.list() if info.paused_at] == ["a", "b"]
    with Session(engine) as session:
        assert app.queues.resume("a", connection=session) is True
        session.rollback()
    assert app.queues.resume("b") is True
    assert [info.name for info in app.queues.list() if info.paused_at] == ["a"]
    assert [(each.action, each.detail, each.count, each.by) for each in app.audit.list().items] == [
        ("resume", {"queue": "b"}, 1, None),
        ("pause", {"queue": "b"}, 1, None),
        ("pause", {"queue": "a"}, 1, "me"),
    ]


@pytest.mark.databases("mariadb", reason="E2: elsewhere a statement sees what is committed, in every character set")
def test_in_a_blind_session_of_an_older_character_set(app: App, database: Database) -> None:  # contract: O5, E4
    old = sa.create_engine(database.sync_url.update_query_dict({"charset": "latin1"}))
    with Session(old) as session, session.begin():
        session.execute(sa.text("SELECT COUNT(*) FROM rowlock_pause"))  # the snapshot
        app.queues.pause("支付")
        assert app.queues.pause("支付", connection=session) is False
        assert app.queues.pause("счета", connection=session) is True
    assert [info.name for info in app.queues.list()] == ["счета", "支付"]
    with Session(old) as session, session.begin():
        assert app.queues.resume("支付", connection=session) is True
    old.dispose()
    assert [info.name for info in app.queues.list()] == ["счета"]


async def test_from_a_coroutine(app: App, async_engine: Any) -> None:  # contract: O5
    assert await app.queues.apause("a") is True
    async with async_engine() as engine, engine.begin() as connection:
        assert await app.queues.apause("a", connection=connection) is False
        assert await app.queues.apause("b", connection=connection) is True
    assert [info.name for info in await app.queues.alist()] == ["a", "b"]
    assert await app.queues.aresume("a") is True
    assert await app.queues.aresume("a") is False
    await app.aclose()


def test_queues_are_listed_with_workers_and_counts(app: App, table: JobTable) -> None:  # contract: O1, O5, M2
    app.queue("declared", workers=7)

    @app.job(name="here", max_attempts=1, timeout=1, queue="named")
    def here() -> None:
        pass

    table.add(3, queue="foreign")
    before = table.now()
    app.queues.pause("unknown")
    found = {info.name: info for info in app.queues.list()}
    assert list(found) == ["declared", "foreign", "named", "unknown"]
    assert {name: info.workers for name, info in found.items()} == {
        "declared": 7, "foreign": None, "named": 4, "unknown": None,
    }  # fmt: skip
    assert [(count.state, count.count) for count in found["foreign"].counts] == [("pending", 3)]
    assert found["unknown"].counts == ()
    assert found["unknown"].paused_at is not None
    assert found["foreign"].paused_at is None
    assert before is not None
    assert dict(app.queues)["declared"].workers == 7


@pytest.mark.parametrize("name", ["", " ", "x" * 129, "a\0b", "\udcff", 1, None], ids=repr)
def test_what_is_no_name_of_a_queue_is_refused(app: App, name: Any) -> None:  # contract: O5, Z1
    for change in (app.queues.pause, app.queues.resume):
        with pytest.raises(FilterError, match="queue"):
            change(name)
    with pytest.raises(FilterError, match="by"):
        app.queues.pause("a", by="")


def test_a_record_says_that_its_queue_is_paused(app: App) -> None:  # contract: H4, O5
    @app.job(name="bill", max_attempts=2, timeout=30, queue="billing now")
    def bill() -> None:
        pass

    due, later = bill.enqueue(), bill.enqueue(delay=3_600)
    app.queues.pause("billing now")
    found = app.records.explain(due.id)
    assert found.reason is Reason.PAUSED
    assert "rowlock queues resume 'billing now'" in found.sentence
    assert found.facts["queue"] == "billing now"
    assert found.facts["paused_at"] == app.queues.list()[0].paused_at
    assert app.records.explain(later.id).reason is Reason.NOT_DUE
    app.queues.resume("billing now")
    assert app.records.explain(due.id).reason is not Reason.PAUSED


def test_the_kit_leaves_a_paused_queue_alone(app: App) -> None:  # contract: O5, X1
    ran: list[int] = []

    @app.job(name="bill", max_attempts=2, timeout=30, queue="billing")
    def bill() -> None:
        ran.append(1)

    with TestApp(app) as case:
        app.queues.pause("billing")
        done = bill.enqueue()
        assert case.drain() == 0
        assert app.records.get(done.id).state is State.PENDING
        app.queues.resume("billing")
        assert case.drain() == 1
        assert app.audit.list().items[0].at == case.now
    assert ran == [1]


def test_schedules_go_on_and_their_records_wait(app: App) -> None:  # contract: O5, T1
    ran: list[int] = []

    @app.job(name="hourly", max_attempts=2, timeout=30, queue="billing", schedule="0 * * * *", catch_up="latest")
    def hourly() -> None:
        ran.append(1)

    with TestApp(app) as case:
        case.drain()
        app.queues.pause("billing")
        case.advance(hours=1)
        assert case.drain() == 0
        [record] = app.records.list().items
        assert (record.job, record.state) == ("hourly", State.PENDING)
        app.queues.resume("billing")
        assert case.drain() == 1
    assert ran == [1]
