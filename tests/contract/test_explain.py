"""Why a record is not running (H4), and the commands that say and cure it (O3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rowlock import App, Explanation, NotFound, Reason
from rowlock.store.explain import explain
from rowlock.store.programs import Pair, announce
from rowlock.store.release import Known
from support.cli import Result, commands
from support.databases import Database
from support.jobtable import FINGERPRINT, JobTable

PAIR = Pair("a", FINGERPRINT)
PROGRAM = {PAIR: Known(("a",), None)}


@pytest.fixture
def table(database: Database) -> Iterator[JobTable]:
    with JobTable(database) as made:
        yield made


def why(table: JobTable, id_: int, program: Any = PROGRAM) -> Explanation:
    return table.db.run(explain, id_, program, 3_600_000)


def test_not_due(table: JobTable) -> None:  # contract: H4
    until = table.now() + timedelta(hours=3)
    [id_] = table.add(run_at=until)
    found = why(table, id_)
    assert (found.reason, found.facts["until"]) == (Reason.NOT_DUE, until)
    assert "in 3 h" in found.sentence


def test_not_due_after_a_failure_names_it(table: JobTable) -> None:  # contract: H4
    [id_] = table.add(
        run_at=table.now() + timedelta(seconds=90), attempt=1, error_category="failed", error_class="ValueError"
    )
    found = why(table, id_)
    assert found.facts["error_class"] == "ValueError"
    assert "attempt 1 of 5 ended (failed: ValueError)" in found.sentence


def test_held_and_by_whom(table: JobTable) -> None:  # contract: H4
    [hold] = table.running(claimed_by="host:1")
    found = why(table, hold.id)
    assert (found.reason, found.facts["holder"]) == (Reason.HELD, "host:1")
    assert found.facts["until"] == table.now() + timedelta(minutes=1)


@pytest.mark.parametrize(("most", "next_"), [(5, "pending"), (1, "dead")])
def test_an_expired_lease_waits_for_its_rescue(table: JobTable, most: int, next_: str) -> None:  # contract: H4, L7
    [hold] = table.running(claimed_by="host:1", max_attempts=most)
    table.clock.move(minutes=1)
    found = why(table, hold.id)
    assert (found.reason, found.facts["next"]) == (Reason.LEASE_EXPIRED, next_)


def test_attempts_used_up(table: JobTable) -> None:  # contract: H4, C5
    [id_] = table.add(attempt=5)
    assert why(table, id_).reason is Reason.EXHAUSTED


def test_due_and_waiting_for_a_slot(table: JobTable) -> None:  # contract: H4
    table.db.run(announce, {PAIR})
    table.add(3, priority=5)
    table.add(2, priority=5, run_at=table.now() + timedelta(hours=1))
    table.add(4, run_at=table.now() - timedelta(hours=1))
    table.add(2, queue="other")
    first, second = table.add(2)
    table.add(3, priority=200)
    assert [why(table, id_).reason for id_ in (first, second)] == [Reason.WAITING] * 2
    assert [why(table, id_).facts["before"] for id_ in (first, second)] == [7, 8]
    assert "8 due records are before it" in why(table, second).sentence


def test_what_is_before_it_is_counted_within_a_bound(table: JobTable) -> None:  # contract: H4
    table.db.run(announce, {PAIR})
    table.add(1_001, priority=5)
    [id_] = table.add()
    found = why(table, id_)
    assert found.facts["before"] == 1_000
    assert "1,000 due records or more" in found.sentence


def test_no_worker_has_spoken_of_late(table: JobTable) -> None:  # contract: H4, S7
    [id_] = table.add()
    assert why(table, id_).reason is Reason.NO_WORKER
    table.db.run(announce, {PAIR})
    assert why(table, id_).reason is Reason.WAITING
    table.clock.move(minutes=12)
    found = why(table, id_)
    assert found.reason is Reason.NO_WORKER
    assert "for 12 min" in found.sentence


def test_no_program_knows_it(table: JobTable) -> None:  # contract: H4, S7
    # case: C58
    [id_] = table.add(job="old.name")
    found = why(table, id_)
    assert (found.reason, found.facts["known_here"], found.facts["announced_at"]) == (Reason.NO_PROGRAM, False, None)
    table.db.run(announce, {Pair("old.name", FINGERPRINT)})
    assert why(table, id_).reason is Reason.WAITING  # of another program's worker
    table.clock.move(minutes=30)
    found = why(table, id_)
    assert found.reason is Reason.NO_PROGRAM
    assert "for 30 min" in found.sentence


@pytest.mark.parametrize(
    ("category", "job", "remedies"),
    [
        ("unknown_job", "a", ["release", "replay", "purge"]),
        ("unknown_job", "b", ["replay", "purge"]),
        ("corrupt_payload", "a", ["replay", "purge"]),
    ],
)
def test_blocked_says_what_to_do(table: JobTable, category: str, job: str, remedies: list[str]) -> None:
    # contract: H4, O3
    [id_] = table.add(state="blocked", error_category=category, job=job, finished_at=table.now())
    found = why(table, id_)
    assert (found.reason, found.facts["category"], found.facts["remedies"]) == (Reason.BLOCKED, category, remedies)


def test_ended(table: JobTable) -> None:  # contract: H4
    at = {"finished_at": table.now(), "attempt": 5}
    [dead] = table.add(state="dead", error_category="failed", error_class="ValueError", error_summary="no", **at)
    [done] = table.add(state="succeeded", **at)
    [cancelled] = table.add(state="cancelled", **at)
    found = why(table, dead)
    assert found.reason is Reason.DEAD
    assert "(failed: ValueError: no)" in found.sentence
    assert why(table, done).reason is Reason.SUCCEEDED
    assert why(table, cancelled).reason is Reason.CANCELLED
    with pytest.raises(NotFound):
        why(table, 10_000)


# --- through the application and the command ---------------------------------------------------------------------

SOURCE = """
import os
from rowlock import App

app = App(os.environ["APP_URL"])

@app.job(name="work", max_attempts=3, timeout=5)
def work() -> None: ...
"""


@pytest.fixture
def cli(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., Result]]:
    folder = tmp_path / "program"
    folder.mkdir()
    (folder / "explained.py").write_text(SOURCE)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("APP_URL", database.url)
    monkeypatch.setenv("ROWLOCK_APP", "explained:app")
    with commands(capsys, folder) as run:
        yield run


async def test_sync_and_async_say_the_same(app_factory: Callable[..., App]) -> None:  # contract: H4
    app = app_factory()

    @app.job(name="work", max_attempts=3, timeout=5)
    def work() -> None: ...

    id_ = work.enqueue().id
    try:
        assert app.records.explain(id_) == await app.records.aexplain(id_)
        assert app.records.explain(id_).reason is Reason.NO_WORKER
    finally:
        await app.aclose()


def test_the_commands(cli: Callable[..., Result], table: JobTable) -> None:  # contract: H4, O3
    from rowlock.model.wire import NO_INPUT

    row = {"job": "work", "fingerprint": NO_INPUT.fingerprint, "state": "blocked", "error_category": "unknown_job"}
    first, _ = table.add(2, **row, finished_at=table.now())
    [other] = table.add(**{**row, "job": "telegram"}, finished_at=table.now())
    said = cli("records", "explain", str(first))
    assert said.out.startswith(f"record {first} is blocked: ")
    assert "rowlock records release" in said.out
    assert cli("records", "explain", str(first), "--json").json["reason"] == "blocked"
    assert "no record has the id 99999" in cli("records", "explain", "99999").sentence
    assert cli("records", "release", "--dry-run").out == "2 records would be released\n"
    assert "give --yes" in cli("records", "release").sentence
    assert cli("records", "release", str(first), "--yes").out == "1 record released\n"
    assert cli("records", "release", "--yes", "--json").json == {"count": 1, "conflicts": 0, "dry_run": False}
    assert [row.state for row in table.rows()] == ["pending", "pending", "blocked"]
    assert "'telegram' at all" in cli("records", "release", str(other), "--yes").sentence
