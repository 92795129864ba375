"""Counts and pages of a table with a long history (O1)."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from rowlock import App, State
from rowlock.store import counts, listing
from support.jobtable import JobTable

STATES = ("pending", "running", "succeeded", "dead", "blocked", "cancelled")


@pytest.fixture
def app(app_factory: Callable[..., App], table: JobTable) -> App:
    return app_factory()


def history(table: JobTable, number: int, **weights: int) -> list[dict[str, Any]]:
    """Rows of every state and two queues, mixed; answers what was written, by id in order."""
    now, chance = table.now(), random.Random(7)
    base = {
        "job": "a", "fingerprint": "f" * 64, "payload": "null", "priority": 100, "attempt": 0, "max_attempts": 5,
        "timeout_ms": 1_000, "created_at": now, "handed_back": 0, "run_at": now - timedelta(minutes=1),
    }  # fmt: skip
    rows = [
        {
            **base,
            "state": state,
            "queue": chance.choice(("mail", "web", "web", "web")),
            "lease": now + timedelta(hours=1) if state == "running" else None,
            "created_at": now - timedelta(seconds=number - n),
        }
        for n, state in enumerate(chance.choices(list(weights), list(weights.values()), k=number))
    ]
    ids = table.add_rows(rows)
    return [{**row, "id": id_} for row, id_ in zip(rows, ids, strict=True)]


@pytest.mark.parametrize("near", [20, 5_000])
def test_each_state_has_whole_pages_in_order(
    app: App, table: JobTable, monkeypatch: pytest.MonkeyPatch, near: int
) -> None:
    # contract: O1
    # case: C84
    monkeypatch.setattr(listing, "NEAR", near)
    rows = history(table, 200, pending=1, running=1, succeeded=20, dead=3, blocked=1, cancelled=1)
    for state in STATES:
        for queue in (None, "mail"):
            wanted = [row["id"] for row in rows if row["state"] == state and queue in {None, row["queue"]}]
            found: list[int] = []
            page = app.records.list(state=state, queue=queue, limit=7)
            while True:
                assert [record.state for record in page.items] == [state] * len(page.items)
                found += [record.id for record in page.items]
                if page.next is None:
                    break
                assert len(page.items) == 7
                page = app.records.list(state=state, queue=queue, limit=7, after=page.next)
            assert found == wanted[::-1]
            for size in (40, 300):
                after, oldest = 0, []
                while ids := table.db.run(_oldest, State(state), after, size):
                    oldest += ids
                    after = ids[-1]
                assert oldest == [row["id"] for row in rows if row["state"] == state]


def _oldest(conn: Any, db: Any, state: State, after: int, limit: int) -> list[int]:
    return listing.oldest(conn, db, state, [], after=after, limit=limit)


def test_few_ended_records_are_counted(app: App, table: JobTable) -> None:  # contract: O1
    history(table, 400, pending=1, running=1, succeeded=20, dead=3, blocked=1, cancelled=4)
    found = app.records.counts()
    assert sum(count.count for count in found) == 400
    assert not any(count.estimated for count in found)


def test_many_ended_records_are_estimated_and_say_so(
    app: App, table: JobTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    # contract: O1
    # case: C84
    monkeypatch.setattr(counts, "EXACT", 100)
    monkeypatch.setattr(counts, "RUNS", 100)
    monkeypatch.setattr(counts, "RUN", 5)
    rows = history(table, 3_000, pending=1, succeeded=20, dead=2, blocked=1, cancelled=5)
    exact = {
        (queue, state): sum(row["queue"] == queue and row["state"] == state for row in rows)
        for queue in ("mail", "web")
        for state in STATES
    }
    found = {(count.queue, count.state): count for count in app.records.counts()}
    for (queue, state), count in exact.items():
        if state in {"succeeded", "cancelled"}:
            assert found[queue, State(state)].estimated
            assert count * 0.7 < found[queue, State(state)].count < count * 1.3
        elif count:
            assert (found[queue, State(state)].count, found[queue, State(state)].estimated) == (count, False)
    assert app.records.counts() == tuple(sorted(found.values(), key=lambda count: (count.queue, count.state)))


def test_those_that_lie_scattered_are_estimated_too(app: App, table: JobTable, monkeypatch: pytest.MonkeyPatch) -> None:
    # contract: O1
    monkeypatch.setattr(counts, "EXACT", 100)
    ids = table.add(50, state="succeeded", queue="a", created_at=table.now() - timedelta(days=1))
    far = max(ids) + 10_000_000
    now = table.now()
    row = {
        "job": "a", "fingerprint": "f" * 64, "payload": "null", "priority": 100, "attempt": 0, "max_attempts": 5,
        "timeout_ms": 1_000, "created_at": now, "handed_back": 0, "run_at": now, "state": "succeeded", "queue": "b",
    }  # fmt: skip
    table.add_rows([{**row, "id": far + n} for n in range(60)])
    found = app.records.counts()
    assert all(count.estimated for count in found)
    assert sum(count.count for count in found) >= 100
    assert {count.queue for count in found} == {"a", "b"}
