"""Looking at records: list by every filter, show one, count (O1)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from rowlock import App, FilterError, NotFound, State
from rowlock.store.clock import Clock
from support.jobtable import JobTable

AppFactory = Callable[..., App]


@pytest.fixture
def app(app_factory: AppFactory, table: JobTable) -> App:
    return app_factory()


def ended(table: JobTable, state: str, **columns: Any) -> int:
    return table.add(state=state, finished_at=table.now(), **columns)[0]


# --- list -------------------------------------------------------------------------------------------------------------


def test_each_filter_takes_what_it_says_and_all_together(app: App, table: JobTable) -> None:
    # contract: O1
    old = timedelta(days=3)
    dead = ended(table, "dead", job="mail.send", error_category="failed", queue="mail", key="k")
    blocked = ended(table, "blocked", job="mail.send", error_category="unknown_job", created_at=table.now() - old)
    [pending] = table.add(job="Mail.send", key="K")
    [running] = [hold.id for hold in table.running(queue="mail")]

    def found(**wanted: Any) -> set[int]:
        return {record.id for record in app.records.list(**wanted).items}

    assert found() == {dead, blocked, pending, running}
    assert found(state="dead") == found(state=State.DEAD) == {dead}
    assert found(job="mail.send") == {dead, blocked}
    assert found(job="Mail.send") == {pending}
    assert found(queue="mail") == {dead, running}
    assert found(category="unknown_job") == {blocked}
    assert found(key="k") == {dead}
    assert found(key="k ") == found(key="ḱ") == set()
    assert found(older_than=timedelta(days=2)) == found(older_than=172_800) == {blocked}
    assert found(older_than=0) == {dead, blocked, pending, running}
    assert found(state="dead", job="mail.send", queue="mail", category="failed", key="k") == {dead}
    assert found(state="dead", queue="default") == set()


def test_pages_are_newest_first_and_whole_whatever_arrives_meanwhile(app: App, table: JobTable) -> None:
    # contract: O1
    ids = table.add(25, queue="a")
    page = app.records.list(queue="a", limit=10)
    seen = [record.id for record in page.items]
    while page.next is not None:
        table.add(3, queue="a")
        page = app.records.list(queue="a", limit=10, after=page.next)
        seen += [record.id for record in page.items]
    assert seen == ids[::-1]
    exact = app.records.list(queue="a", limit=31)
    assert (len(exact.items), exact.next) == (31, None)
    assert app.records.list(queue="nobody's").items == []


@pytest.mark.parametrize(
    "wanted",
    [
        {"limit": 0},
        {"limit": 1_001},
        {"limit": True},
        {"state": "done"},
        {"state": 1},
        {"job": 1},
        {"older_than": -1},
        {"key": "a\0b"},
        {"job": "\udcff"},
        {"after": "1"},
        {"after": -1},
    ],
    ids=repr,
)
def test_what_is_no_filter_is_refused(app: App, wanted: dict[str, Any]) -> None:
    # contract: O1, Z1
    with pytest.raises(FilterError, match=next(iter(wanted))):
        app.records.list(**wanted)


@pytest.mark.parametrize("value", ["' OR 1 = 1 --", "%", "_", "\\", '"', "`", ":key", "%(key)s", "{key}"])
def test_a_filter_is_a_value_never_sql(app: App, table: JobTable, value: str) -> None:
    # contract: O1, Z2
    table.add(2)
    assert app.records.list(job=value, queue=value, category=value, key=value).items == []


# --- one --------------------------------------------------------------------------------------------------------------


async def test_one_is_shown_with_the_tables_names_and_without_its_payload(app: App, table: JobTable) -> None:
    # contract: O1, S6
    [hold] = table.running(payload='"a secret"', key="k", headers='{"trace":"é"}')
    row = table.row(hold.id)
    record = await app.records.aget(hold.id)
    assert record == app.records.get(hold.id) == app.records.list().items[0] == (await app.records.alist()).items[0]
    names = set(type(record).__slots__)
    assert names == set(row._fields) - {"payload", "token", "handed_back"}
    assert {name: getattr(record, name) for name in names} == {name: row._mapping[name] for name in names}
    assert "secret" not in repr(record)
    assert hold.token not in repr(record)
    assert app.records.payload(hold.id) == await app.records.apayload(hold.id) == b'"a secret"'
    await app.aclose()


async def test_an_unknown_id_is_not_found(app: App) -> None:
    # contract: O1
    for id_ in (0, -1, 1, 2**63 - 1, 2**63, 10**30):
        with pytest.raises(NotFound, match=str(id_)):
            app.records.get(id_)
        with pytest.raises(LookupError):
            await app.records.apayload(id_)
    for wrong in ("1", None, 1.0, True):
        with pytest.raises(TypeError, match="id is"):
            app.records.get(wrong)
    await app.aclose()


# --- counts -----------------------------------------------------------------------------------------------------------


async def test_counts_are_by_queue_and_state_due_and_future_apart(app: App, table: JobTable) -> None:
    # contract: O1
    assert app.records.counts() == ()
    table.add(3, queue="a")
    table.add(2, queue="a", run_at=table.now() + timedelta(hours=1))
    table.running(1, queue="a")
    for state in ("succeeded", "dead", "blocked", "cancelled"):
        ended(table, state, queue="b", run_at=table.now() + timedelta(hours=1))
    counts = {(count.queue, count.state): (count.count, count.future) for count in app.records.counts()}
    assert counts == {
        ("a", State.PENDING): (5, 2),
        ("a", State.RUNNING): (1, 0),
        **{("b", State(state)): (1, 0) for state in ("succeeded", "dead", "blocked", "cancelled")},
    }
    assert await app.records.acounts() == app.records.counts()
    await app.aclose()


@pytest.mark.databases("postgresql", "mariadb", reason="L2: SQLite's clock is the host's")
def test_ages_and_due_times_are_by_the_databases_clock(
    app: App, table: JobTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    # contract: O1, L2
    def asked(self: Clock) -> None:
        raise AssertionError("the host's clock was asked")

    monkeypatch.setattr(Clock, "host_now", asked)
    table.add(1)
    table.add(1, run_at=table.now() + timedelta(seconds=100), created_at=table.now() + timedelta(seconds=100))
    [count] = app.records.counts()
    assert (count.count, count.future) == (2, 1)
    assert len(app.records.list(older_than=0).items) == 1


def test_what_an_operator_wrote_into_a_row_fails_no_look(app: App, table: JobTable, engine: sa.Engine) -> None:
    # contract: O1, W5
    table.add(1, error_summary="\u2028\x1b[31m é \U0001f600", error_class="a" * 255, headers="no JSON")
    [id_] = table.add(1, payload="", fingerprint="", run_at=table.now() + timedelta(days=36_500))
    assert len(app.records.list().items) == 2
    assert app.records.get(id_).fingerprint == ""
    assert app.records.payload(id_) == b""
    assert sum(count.count for count in app.records.counts()) == 2
