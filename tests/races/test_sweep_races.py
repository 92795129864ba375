"""Sweeps in forced order with others: a replay between look and deletion, locked rows, two at once (N2, N3, L2)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from rowlock.store import sweep, turn
from rowlock.store.database import Database as Store
from rowlock.store.lifecycles import Lifecycles
from rowlock.store.subject import Subject
from support.databases import Database
from support.jobtable import JobTable
from support.races import Blocker, in_background, wait_for_waiters

OLD = timedelta(days=8)
EVERY = timedelta(hours=1)


def subject(db: Store) -> Subject:
    found = Lifecycles({}, lambda: ["default"]).subjects(db, {})
    return next(each for each in found if each.name == "rowlock_job")


def ended(table: JobTable, number: int) -> list[int]:
    at = table.now() - OLD
    return table.add(number, state="succeeded", created_at=at, run_at=at, finished_at=at, attempt=1)


def turn_of(table: JobTable) -> turn.Turn:
    taken = table.db.run(turn.take, "one", EVERY, early=True)
    assert taken is not None
    return taken


def remove(db: Store, keys: list[Any], taken: turn.Turn) -> Callable[[], int]:
    return lambda: db.run(sweep.remove, subject(db), 0, keys, taken)


def left(table: JobTable) -> list[int]:
    return [row.id for row in table.rows()]


def test_a_record_that_is_replayed_between_look_and_deletion_survives(table: JobTable) -> None:
    # contract: N2, N3
    first, second, third = ended(table, 3)
    page = table.db.run(sweep.look, subject(table.db), 0, None)
    assert page.keys == [(first,), (second,), (third,)]
    table.change(first, state="pending", finished_at=None)
    table.change(second, finished_at=table.now())  # it ran again, and ended just now
    assert remove(table.db, page.keys, turn_of(table))() == 1
    assert left(table) == [first, second]


@pytest.mark.databases("postgresql", "mariadb", reason="C7: on SQLite one transaction writes at a time")
def test_a_row_that_somebody_holds_is_passed_over_and_waited_for_by_nobody(table: JobTable, database: Database) -> None:
    # contract: N3, L2
    table.add(2_000, state="dead", finished_at=table.now())  # MariaDB reads a table of five rows whole, and waits
    ids = ended(table, 5)
    page = table.db.run(sweep.look, subject(table.db), 0, None)
    with Blocker(database) as blocker:
        blocker.lock_row("rowlock_job", id=ids[2])
        assert remove(table.db, page.keys, turn_of(table))() == 4
        blocker.execute("UPDATE rowlock_job SET state = 'pending' WHERE id = :id", id=ids[2])
        blocker.commit()
    assert [row.id for row in table.rows() if row.state != "dead"] == [ids[2]]


@pytest.mark.databases("sqlite", reason="C7: elsewhere rows are locked one by one")
def test_a_replay_that_holds_the_file_is_seen_by_the_deletion_that_waited_for_it(
    table: JobTable, database: Database
) -> None:
    # contract: N3, L2
    first, second = ended(table, 2)
    page = table.db.run(sweep.look, subject(table.db), 0, None)
    taken = turn_of(table)
    with Blocker(database) as blocker:
        blocker.execute("UPDATE rowlock_job SET state = 'pending' WHERE id = :id", id=first)
        late = in_background(remove(table.db, page.keys, taken))
        wait_for_waiters(database)
        blocker.commit()
        assert late.result(10) == 1
    assert left(table) == [first]
    assert second not in left(table)


def test_two_sweepers_at_once_delete_each_row_once(table: JobTable) -> None:
    # contract: N3
    # case: C80, C33
    ids = ended(table, 600)
    other, taken = table.another(), turn_of(table)
    keys = [(id_,) for id_ in ids]

    def all_of_them(db: Store, parts: list[list[Any]]) -> int:
        return sum(remove(db, part, taken)() for part in parts)

    parts = [keys[start : start + 50] for start in range(0, 600, 50)]
    one = in_background(lambda: all_of_them(table.db, parts))
    two = in_background(lambda: all_of_them(other, parts))
    deleted = one.result(60) + two.result(60)
    again = all_of_them(table.db, parts)  # those that were passed over, the other one holding them
    assert deleted + again == 600
    assert left(table) == []


def test_a_sweeper_whose_turn_is_lost_deletes_nothing(table: JobTable) -> None:
    # contract: N3
    ids = ended(table, 3)
    mine = turn_of(table)
    table.db.run(turn.give_back, mine, timedelta(0), {})
    assert table.another().run(turn.take, "two", EVERY, early=True) is not None
    with pytest.raises(turn.TurnLost):
        remove(table.db, [(id_,) for id_ in ids], mine)()
    assert left(table) == ids
