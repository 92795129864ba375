"""Two schedulers at one cursor, in each order: who comes second makes nothing again, and says nothing (T5, T7)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest

from rowlock import Jobs
from rowlock.store import cursors, operate
from rowlock.store.cursors import Made
from rowlock.store.database import Database as Store
from support.databases import Database
from support.jobtable import NOON, JobTable
from support.races import in_background, wait_for_waiters
from support.waiting import BOUND

MINUTE = timedelta(minutes=1)


@pytest.fixture
def table(database: Database) -> Iterator[JobTable]:
    with JobTable(database) as made:
        yield made


def job(cron: str = "* * * * *", name: str = "tick", **options: Any) -> Any:
    @Jobs().job(max_attempts=1, timeout=1, name=name, schedule=cron, **options)
    def tick() -> None: ...

    return tick


def look(db: Store) -> cursors.Look:
    return db.run(cursors.read)


def begun(table: JobTable, tick: Any) -> None:
    """A cursor, and three minutes that are due."""
    table.db.run(cursors.begin, [tick], look(table.db))
    table.clock.move(minutes=3)


class Pass:
    """A pass of a scheduler of its own, that stands still before its commit."""

    def __init__(self, table: JobTable, tick: Any) -> None:
        self.db = table.another()
        self._seen = look(self.db)
        self._tick = tick
        self._advanced, self._go = threading.Event(), threading.Event()
        self._failing: BaseException | None = None

    def run_to_its_commit(self) -> Future[Made | None]:
        future = in_background(self._run)
        assert self._advanced.wait(BOUND)
        return future

    def commit(self) -> None:
        self._go.set()

    def fail(self, error: BaseException) -> None:
        self._failing = error
        self._go.set()

    def _run(self) -> Made | None:
        return self.db.run(cursors.materialise, self._tick, self._seen, self._hold)

    def _hold(self) -> None:
        self._advanced.set()
        assert self._go.wait(BOUND)
        if self._failing is not None:
            raise self._failing


def minutes(table: JobTable) -> list[int]:
    return [(row.run_at - NOON) // MINUTE for row in table.rows()]


@pytest.mark.databases("postgresql", "mariadb", reason="T5: on SQLite the second waits, see below")
def test_a_second_scheduler_passes_over_a_cursor_that_is_held(table: JobTable) -> None:
    # contract: T5; case: C41
    tick = job()
    begun(table, tick)
    first = Pass(table, tick)
    future = first.run_to_its_commit()
    assert table.db.run(cursors.materialise, tick, look(table.db)) is None
    first.commit()
    made = future.result(BOUND)
    assert made is not None
    assert len(made.ids) == 3
    assert table.db.run(cursors.materialise, tick, look(table.db)) is None
    assert minutes(table) == [1, 2, 3]


@pytest.mark.databases("sqlite", reason="T5: one writer; on the others the second passes over it, see above")
def test_a_second_scheduler_waits_for_the_file_and_finds_nothing_left(table: JobTable, database: Database) -> None:
    # contract: T5; case: C41
    tick = job()
    begun(table, tick)
    first = Pass(table, tick)
    seen = look(table.db)
    future = first.run_to_its_commit()
    second = in_background(lambda: table.db.run(cursors.materialise, tick, seen))
    first.commit()
    made = future.result(BOUND)
    assert made is not None
    assert second.result(BOUND) is None
    assert minutes(table) == [1, 2, 3]


def test_a_look_that_is_old_makes_nothing_again(table: JobTable) -> None:
    # contract: T5; case: C42
    tick = job()
    begun(table, tick)
    old = look(table.db)
    assert table.db.run(cursors.materialise, tick, old) is not None
    assert table.db.run(cursors.materialise, tick, old) is None
    table.clock.move(minutes=1)
    made = table.db.run(cursors.materialise, tick, old)
    assert made is not None
    assert len(made.ids) == 1
    assert minutes(table) == [1, 2, 3, 4]


def test_a_pass_that_fails_leaves_all_of_it_to_the_next(table: JobTable) -> None:
    # contract: T5, C3
    tick = job()
    begun(table, tick)
    first = Pass(table, tick)
    future = first.run_to_its_commit()
    first.fail(RuntimeError("ended"))
    with pytest.raises(RuntimeError, match="ended"):
        future.result(BOUND)
    assert minutes(table) == []
    assert look(table.db).cursors["tick"].last_minute == NOON
    made = table.db.run(cursors.materialise, tick, look(table.db))
    assert made is not None
    assert minutes(table) == [1, 2, 3]


def test_two_first_sights_make_one_cursor(table: JobTable) -> None:
    # contract: T4
    tick = job()
    other = table.another()
    both = look(table.db), look(other)
    table.db.run(cursors.begin, [tick], both[0])
    table.clock.move(minutes=5)
    other.run(cursors.begin, [tick], both[1])
    assert look(table.db).cursors["tick"].last_minute == NOON


def test_a_change_waits_for_a_pass_under_way_and_ends_the_old_text(table: JobTable, database: Database) -> None:
    # contract: T7
    old, new = job("* * * * *"), job("*/2 * * * *")
    begun(table, old)
    other = table.another()
    seen = look(table.db)
    first = Pass(table, old)
    future = first.run_to_its_commit()
    accepting = in_background(lambda: operate.run(other, cursors.accept(other, new, None)))
    if database.dialect != "sqlite":
        wait_for_waiters(database)
    first.commit()
    assert future.result(BOUND) is not None
    assert accepting.result(BOUND) is True
    table.clock.move(minutes=3)
    assert table.db.run(cursors.materialise, old, seen) is None  # it looked before, and judges after
    made = other.run(cursors.materialise, new, look(other))
    assert made is not None
    assert minutes(table) == [1, 2, 3, 4, 6]


def test_a_cursor_that_is_forgotten_under_a_pass_is_not_judged(table: JobTable) -> None:
    # contract: T7
    tick = job()
    begun(table, tick)
    seen = look(table.db)
    operate.run(table.db, cursors.forget(table.db, "tick", None))
    assert table.db.run(cursors.materialise, tick, seen) is None
    assert minutes(table) == []


@pytest.mark.databases("postgresql", "mariadb", reason="T5: SQLite has one writer")
def test_of_two_names_both_cursors_are_had_or_none(table: JobTable) -> None:
    # contract: J4, T5: a program of the earlier name is in the middle of a pass
    old, new = job(name="old"), job(name="new", aliases=("old",))
    begun(table, old)
    table.db.run(cursors.begin, [new], look(table.db))
    first = Pass(table, old)
    future = first.run_to_its_commit()
    assert table.db.run(cursors.materialise, new, look(table.db)) is None
    first.commit()
    assert future.result(BOUND) is not None
    assert table.db.run(cursors.materialise, new, look(table.db)) is None
    table.clock.move(minutes=1)
    assert table.db.run(cursors.materialise, new, look(table.db)) is not None
    assert table.db.run(cursors.materialise, old, look(table.db)) is None
    assert minutes(table) == [1, 2, 3, 4]
