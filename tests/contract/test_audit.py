"""What operators did is kept: when, what, how many, by whom if said (O6)."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from rowlock import App, AuditEntry, FilterError, InvalidState, Jobs
from rowlock.store import audit
from rowlock.store.audit import Action
from support.databases import Database
from support.jobtable import FINGERPRINT, JobTable, failing


@pytest.fixture
def app(app_factory: Callable[..., App]) -> App:
    made = app_factory()

    @made.job(name="a", max_attempts=5, timeout=1)
    def a() -> None:
        pass

    return made


def told(app: App, **wanted: Any) -> list[tuple[str, dict[str, Any], int, str | None]]:
    return [(each.action, dict(each.detail), each.count, each.by) for each in app.audit.list(**wanted).items]


def test_each_deed_is_one_row_with_what_it_was_of(app: App, table: JobTable) -> None:  # contract: O6
    [first, second] = table.dead(2)
    blocked = table.dead(1, state="blocked", error_category="unknown_job", fingerprint=app.jobs["a"].wire.fingerprint)
    before = table.now()
    app.records.replay(first, by="Zoë")
    app.records.purge(second)
    app.records.release(job="a", category="unknown_job", by="cron")
    assert told(app) == [
        ("release", {"job": "a", "category": "unknown_job"}, 1, "cron"),
        ("purge", {"id": second}, 1, None),
        ("replay", {"id": first}, 1, "Zoë"),
    ]
    assert told(app, action="replay") == told(app, by="Zoë") == told(app, limit=3)[2:]
    assert all(before <= each.at <= table.now() for each in app.audit.list().items)
    assert table.row(blocked[0]).state == "pending"


def test_what_changed_nothing_leaves_nothing(app: App, table: JobTable) -> None:  # contract: O6
    table.dead(3)
    app.records.replay(state="dead", dry_run=True, by="me")
    app.records.purge(state="blocked")
    [running] = [hold.id for hold in table.running()]
    with pytest.raises(InvalidState):
        app.records.purge(running)
    assert told(app) == []


def test_a_deed_of_many_transactions_is_one_row(app: App, table: JobTable) -> None:  # contract: O6
    table.dead(450)
    app.records.replay(state="dead", older_than="1s", queue="default")
    assert told(app) == [("replay", {"state": "dead", "queue": "default", "older_than": 1.0}, 450, None)]


@pytest.mark.parametrize(
    ("what", "state"), [("replay", "dead"), ("purge", "dead"), ("release", "blocked"), ("cancel", "pending")]
)
def test_a_deed_that_is_cut_off_is_done_and_told_as_far_as_it_went(
    app: App, table: JobTable, what: str, state: str
) -> None:
    # contract: O2, O3, O4, O6: what is many is done in bounded transactions
    known = {"fingerprint": app.jobs["a"].wire.fingerprint, "error_category": "unknown_job"}
    ids = table.dead(450, state=state, **(known if what == "release" else {}))
    writes: list[str] = []

    def third(statement: str) -> bool:
        if re.search(r"(UPDATE|DELETE FROM) [`\"]?rowlock_job\b", statement):
            writes.append(statement)
        return len(writes) == 3

    with failing(sa.Engine, third, lambda: RuntimeError("cut off"), 1), pytest.raises(RuntimeError, match="cut off"):
        getattr(app.records, what)(queue="default")
    assert [row.id for row in table.rows() if row.state == state] == ids[400:]
    assert told(app) == [(what, {"queue": "default"}, 400, None)]


def test_it_commits_and_rolls_back_with_the_deed(app: App, table: JobTable, engine: sa.Engine) -> None:
    # contract: O6, O2
    ids = table.dead(3)
    with Session(engine) as session:
        app.records.replay(ids[0], connection=session)
        session.rollback()
    assert told(app) == []
    with Session(engine) as session, session.begin():
        app.records.purge(ids[0], connection=session)
        app.records.replay(state="dead", connection=session, by="me")
    assert told(app) == [("replay", {"state": "dead"}, 2, "me"), ("purge", {"id": ids[0]}, 1, None)]


@pytest.mark.databases("mariadb", reason="E2: elsewhere a session's character set has every character, or is converted")
def test_texts_stay_whole_in_a_session_of_an_older_character_set(app: App, table: JobTable, database: Database) -> None:
    # contract: O6, O2
    [id_] = table.dead(job="Überweisung 支付", key="ключ")
    table.dead(job="?berweisung ??")
    old = sa.create_engine(database.sync_url.update_query_dict({"charset": "latin1"}))
    with Session(old) as session, session.begin():
        app.records.replay(job="Überweisung 支付", key="ключ", by="Иван", connection=session)
    old.dispose()
    assert table.row(id_).state == "pending"
    assert told(app) == [("replay", {"job": "Überweisung 支付", "key": "ключ"}, 1, "Иван")]


async def test_from_a_coroutine_and_in_pages(app: App, table: JobTable) -> None:  # contract: O6
    for id_ in table.dead(5):
        await app.records.apurge(id_)
    page = await app.audit.alist(limit=2)
    seen = list(page.items)
    while page.next is not None:
        page = await app.audit.alist(limit=2, after=page.next)
        seen += page.items
    assert [each.id for each in seen] == [each.id for each in app.audit.list().items]
    assert len(seen) == 5
    await app.aclose()


@pytest.mark.parametrize(
    "wanted", [{"action": "destroy"}, {"by": ""}, {"by": "x" * 256}, {"by": 1}, {"limit": 0}, {"after": -1}], ids=repr
)
def test_what_is_no_filter_is_refused(app: App, wanted: dict[str, Any]) -> None:  # contract: O6, Z1
    with pytest.raises(FilterError, match=next(iter(wanted))):
        app.audit.list(**wanted)


def test_each_action_has_its_word(table: JobTable) -> None:  # contract: O6
    for action in Action:
        table.db.run(audit.note, action, count=2, detail={"queue": "a", "for": timedelta(seconds=90)}, by="me")
    found = table.db.run(audit.list_).items
    assert [(each.action, each.count, each.detail) for each in reversed(found)] == [
        (word, 2, {"queue": "a", "for": 90.0})
        for word in ("replay", "purge", "release", "cancel", "pause", "resume", "accept", "forget")
    ]
    assert isinstance(found[0], AuditEntry)
    assert FINGERPRINT not in repr(found)


async def test_a_telemetry_database_holds_the_entries_of_all(
    app_factory: Callable[..., App], database: Database, tmp_path: Path, async_engine: Any
) -> None:
    # contract: O6, N9
    jobs = Jobs(database="main")

    @jobs.job(name="a", max_attempts=5, timeout=1)
    def a() -> None:
        pass

    databases = {"main": database.url, "telemetry": f"sqlite:///{tmp_path}/telemetry.db"}
    settings = {"database": {name: {"url": url} for name, url in databases.items()}, "runtime": {"mode": "worker"}}
    app = app_factory(jobs, settings=settings)
    with JobTable(database, real_time=True) as table:
        ids = table.dead(450)
        app.records.replay(ids[0], database="main", by="me")
        await app.records.areplay(state="dead", database="main")
        async with async_engine() as engine, engine.begin() as connection:
            await app.queues.apause("q", connection=connection, database="main")
        with table.db.engine().connect() as conn:
            assert conn.exec_driver_sql("SELECT COUNT(*) FROM rowlock_audit").scalar_one() == 0
    for name in ("main", "telemetry"):
        assert told(app, database=name) == [
            ("pause", {"database": "main", "queue": "q"}, 1, None),
            ("replay", {"database": "main", "state": "dead"}, 449, None),
            ("replay", {"database": "main", "id": ids[0]}, 1, "me"),
        ]
    await app.aclose()
