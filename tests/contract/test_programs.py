"""What live workers say they know, and what they do with records that nobody knows (S7, S4)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from rowlock import App, Jobs, State
from rowlock.store import schema
from rowlock.store.programs import Pair, announce, block_unknown
from support.jobtable import FINGERPRINT, JobTable
from support.waiting import wait_until

HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Letter:
    to: str


@dataclass(frozen=True)
class LongLetter:
    to: str
    text: str


def settings(url: str, **job: Any) -> dict[str, Any]:
    job = {"poll_ms": 20, **job}
    return {"database": {"default": {"url": url}}, "runtime": {"mode": "worker"}, "job": job}


def post(input: type = Letter, *, name: str = "post", **options: Any) -> Jobs:
    jobs = Jobs()

    def handler(letter: Any) -> None:
        pass

    handler.__annotations__["letter"] = input
    jobs.job(name=name, max_attempts=3, timeout=5, **options)(handler)
    return jobs


def announced(app: App) -> dict[str, Any]:
    with app.databases["default"].engine().connect() as connection:
        rows = connection.execute(sa.select(schema.program.c.job, schema.program.c.announced_at))
        return {row.job: row.announced_at for row in rows}


def test_a_worker_announces_its_names_and_its_declared_jobs(
    app_factory: Callable[..., App], database_url: str
) -> None:  # contract: S7, J8
    jobs = post(aliases=("mail",))
    jobs.declare("media.render", input=Letter, max_attempts=1, timeout=1)
    app = app_factory(jobs, settings=settings(database_url))
    with app.worker_thread():
        wait_until(lambda: set(announced(app)) == {"post", "mail", "media.render"})


def test_an_announcement_is_renewed_before_it_could_be_taken_for_gone(
    app_factory: Callable[..., App], database_url: str
) -> None:  # contract: S7
    app = app_factory(post(), settings=settings(database_url, unknown_ms=300))
    with app.worker_thread():
        first = wait_until(lambda: announced(app).get("post"))
        wait_until(lambda: announced(app)["post"] > first)


def test_what_another_version_knows_is_left_alone(
    app_factory: Callable[..., App], database_url: str
) -> None:  # contract: S7
    old = app_factory(post(), settings=settings(database_url, unknown_ms=60_000))
    new_jobs = post(LongLetter)
    new = app_factory(new_jobs, settings=settings(database_url))
    roster_pairs = {Pair("post", new_jobs.jobs[0].wire.fingerprint)}
    new.databases["default"].run(announce, roster_pairs)
    theirs = new_jobs.jobs[0].enqueue(LongLetter("a", "b"))
    with old.worker_thread():
        ours = old.jobs["post"].enqueue(Letter("a"))
        wait_until(lambda: old.records.get(ours.id).state is State.SUCCEEDED)
    left = old.records.get(theirs.id)
    assert (left.state, left.attempt, left.error_category) == (State.PENDING, 0, None)


@pytest.mark.parametrize(
    ("name", "category"), [("post", "schema_mismatch"), ("telegram", "unknown_job")], ids=["input", "name"]
)
def test_unknown_at_once(
    app_factory: Callable[..., App], database_url: str, name: str, category: str
) -> None:  # contract: S7, S4
    app = app_factory(post(), settings=settings(database_url, unknown_ms=0))
    other_jobs = post(LongLetter, name=name)
    app_factory(other_jobs, settings=settings(database_url))
    theirs = other_jobs.jobs[0].enqueue(LongLetter("a", "b"), key="k")
    later = other_jobs.jobs[0].enqueue(LongLetter("a", "b"), delay=60)
    with app.worker_thread():
        wait_until(lambda: app.records.get(theirs.id).state is State.BLOCKED)
        behind = app.jobs["post"].enqueue(Letter("a"))
        wait_until(lambda: app.records.get(behind.id).state is State.SUCCEEDED)
    record = app.records.get(theirs.id)
    assert (record.error_category, record.attempt, record.key) == (category, 0, "k")
    assert app.records.get(later.id).state is State.PENDING


def test_a_name_that_nobody_knows_is_warned_of_once(
    app_factory: Callable[..., App], database_url: str, caplog: pytest.LogCaptureFixture
) -> None:  # contract: S7
    # case: C58
    app = app_factory(post(), settings=settings(database_url, unknown_ms=90))
    other_jobs = post(name="old.name")
    app_factory(other_jobs, settings=settings(database_url))
    other_jobs.jobs[0].enqueue_many([(Letter("a"), {"delay": timedelta(hours=1)}) for _ in range(5)])
    with caplog.at_level(logging.WARNING, "rowlock"), app.worker_thread():
        first = wait_until(lambda: announced(app).get("post"))
        wait_until(lambda: announced(app)["post"] > first)
        second = announced(app)["post"]
        wait_until(lambda: announced(app)["post"] > second)
    said = [record.getMessage() for record in caplog.records if "old.name" in record.getMessage()]
    assert len(said) == 1
    assert app.records.list(state="pending").items[0].attempt == 0


@contextmanager
def table(database: Any) -> Any:
    with JobTable(database) as jobs:
        yield jobs


def test_only_silence_of_the_whole_window_makes_a_pair_unknown(database: Any) -> None:  # contract: S7
    with table(database) as jobs:
        ours, theirs = Pair("ours", FINGERPRINT), Pair("theirs", FINGERPRINT)
        [id_] = jobs.add(job="theirs")
        jobs.db.run(announce, {theirs})
        jobs.clock.move(hours=1)
        assert jobs.db.run(block_unknown, {ours}, HOUR_MS) == []
        jobs.clock.move(seconds=1)
        assert [found.id for found in jobs.db.run(block_unknown, {ours}, HOUR_MS)] == [id_]


def test_a_record_waits_the_window_itself(database: Any) -> None:  # contract: S7
    with table(database) as jobs:
        [id_] = jobs.add(job="theirs", run_at=jobs.now() - timedelta(minutes=59))
        assert jobs.db.run(block_unknown, {Pair("ours", FINGERPRINT)}, HOUR_MS) == []
        jobs.clock.move(minutes=1)
        assert [found.id for found in jobs.db.run(block_unknown, {Pair("ours", FINGERPRINT)}, HOUR_MS)] == [id_]


def test_a_long_queue_alone_makes_nothing_unknown(database: Any) -> None:  # contract: S7
    with table(database) as jobs:
        jobs.add(300, job="theirs", run_at=jobs.now() - timedelta(days=9))
        jobs.db.run(announce, {Pair("theirs", FINGERPRINT)})
        assert jobs.db.run(block_unknown, {Pair("ours", FINGERPRINT)}, HOUR_MS) == []
