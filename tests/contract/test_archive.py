"""Archives: nothing goes uncopied, in one database and between two, also when a move is cut off (N7)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from rowlock import App, Archive, DeclarationError, Lifecycle, Retention, Ttl
from rowlock.store import archive as moving
from rowlock.testing import TestApp
from support.databases import Database, SQLite
from support.rows import NOW, count, insert, stamp, values

DAY = timedelta(days=1)
MICROS = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
Case = tuple[TestApp, sa.Engine, sa.Engine]


@pytest.fixture(params=["one database", "two databases"])
def case(
    request: pytest.FixtureRequest, app_factory: Callable[..., App], engine: sa.Engine, tmp_path: Path
) -> Iterator[Case]:
    """The case, and the engines of source and target. The second database is a file, whatever the first one is."""
    two = request.param == "two databases"
    other = sa.create_engine(f"sqlite:///{tmp_path / 'archive.db'}") if two else engine
    if two:
        app = App(databases={"default": engine, "old": other})
        engines: Any = {"default": engine, "old": other}
    else:
        app, engines = app_factory(migrate=False), engine
    with TestApp(app, engine=engines, now=NOW) as made:
        yield made, engine, other
    app.close()
    if two:
        other.dispose()


def table(name: str, *more: Any) -> sa.Table:
    return sa.Table(
        name, sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True), sa.Column("body", sa.Text),
        sa.Column("paid", sa.Numeric(9, 2)), sa.Column("created_at", MICROS, index=True), *more,
    )  # fmt: skip


def filled(case: Case, ages: list[timedelta], **archive: Any) -> tuple[sa.Table, sa.Table]:
    """Source and archive, both declared, with a row of each age in the source."""
    t, source, target = case
    live, old = table("deed"), table("old_deed", sa.Column("note", sa.String(5)))
    live.create(source)
    old.create(target)
    rows = [
        {"id": n, "body": f"ä'{n}", "paid": f"{n}.25", "created_at": stamp(source, age, live.c.created_at)}
        for n, age in enumerate(ages, 1)
    ]
    insert(source, live, rows)
    where = {} if source is target else {"database": "old"}
    t.app.lifecycle(live, Lifecycle("audit", archive=Archive(old, **{"after": "30d"} | where | archive)))
    return live, old


def everything(engine: sa.Engine, made: sa.Table) -> list[Any]:
    columns = [made.c[name] for name in ("id", "body", "paid", "created_at")]
    with engine.connect() as conn:
        return [tuple(row) for row in conn.execute(sa.select(*columns).order_by(made.c.id))]


def test_old_rows_move_whole(case: Case) -> None:
    # contract: N7
    t, source, target = case
    live, old = filled(case, [31 * DAY] * 600 + [29 * DAY] * 3)
    before = everything(source, live)
    report = t.sweep()
    assert (report.swept, report.skipped, report.errors) == (600, 0, ())
    assert everything(target, old) == before[:600]
    assert everything(source, live) == before[600:]
    t.advance(DAY)
    t.sweep()
    assert everything(target, old) == before
    assert count(source, live) == 0


def test_copies_are_kept_as_long_as_is_said(case: Case) -> None:
    # contract: N7
    t, source, target = case
    live, old = filled(case, [31 * DAY, 89 * DAY, 91 * DAY], keep="90d")
    t.sweep()
    assert count(source, live) == 0
    assert values(target, old.c.id) == [1, 2] or t.sweep().swept == 1  # the archive may be swept before it is filled
    assert values(target, old.c.id) == [1, 2]
    t.advance(DAY)
    t.sweep()
    assert values(target, old.c.id) == [1]


def test_without_a_target_nothing_is_deleted(case: Case) -> None:
    # contract: N7
    t, source, target = case
    live, old = filled(case, [31 * DAY] * 3)
    old.drop(target)
    report = t.sweep()
    assert report.swept == 0
    assert count(source, live) == 3
    assert len(report.errors) == 1
    old.create(target)
    assert t.sweep().swept == 3
    assert values(target, old.c.id) == [1, 2, 3]


def test_a_move_that_was_cut_off_behind_the_copy_converges(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    # contract: N7
    t, source, target = case
    live, old = filled(case, [31 * DAY] * 7)
    whole = moving.delete_held

    def cut(*_: Any) -> int:
        raise RuntimeError("the machine is gone")

    monkeypatch.setattr(moving, "delete_held", cut)
    assert t.sweep().swept == 0
    assert count(source, live) == 7
    assert count(target, old) == (7 if source is not target else 0)
    monkeypatch.setattr(moving, "delete_held", whole)
    with source.begin() as conn:  # the row was changed in between: the later form is what is kept
        conn.execute(live.update().where(live.c.id == 3).values(body="changed"))
    before = everything(source, live)
    report = t.sweep()
    assert (report.swept, report.errors) == (7, ())
    assert everything(target, old) == before
    assert count(source, live) == 0


def test_rows_are_held_until_their_copies_are_written(case: Case, database: Database) -> None:
    # contract: N7
    t, _, _ = case
    filled(case, [31 * DAY] * 3)
    free: list[int] = []
    somebody = sa.create_engine(database.sync_url, poolclass=sa.NullPool)

    def before(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if not statement.startswith("INSERT INTO old_deed"):
            return
        if isinstance(database, SQLite):
            free.append(not database.locked())
            return
        with somebody.connect() as conn:
            free.append(len(conn.exec_driver_sql("SELECT id FROM deed FOR UPDATE SKIP LOCKED").all()))

    sa.event.listen(sa.Engine, "before_cursor_execute", before)
    try:
        assert t.sweep().swept == 3
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", before)
    assert free == [0]


def test_a_key_that_was_used_anew_does_not_overwrite_the_copy_of_its_first_row(case: Case) -> None:
    # contract: N7
    t, source, target = case
    live, old = filled(case, [90 * DAY, 90 * DAY])
    t.sweep()
    insert(source, live, [{"id": 2, "body": "another", "created_at": stamp(source, 40 * DAY, live.c.created_at)}])
    insert(source, live, [{"id": 3, "body": "third", "created_at": stamp(source, 40 * DAY, live.c.created_at)}])
    report = t.sweep()
    assert (report.swept, report.skipped) == (1, 1)
    assert "has another of its key" in report.errors[0]
    assert values(source, live.c.id) == [2]
    assert [row[1] for row in everything(target, old)] == ["ä'1", "ä'2", "third"]


def test_a_row_that_the_archive_refuses_stays_alone(case: Case) -> None:
    # contract: N3, N7
    t, source, target = case
    live = table("deed")
    old = sa.Table("old_deed", sa.MetaData(), *[column._copy() for column in live.c], sa.CheckConstraint("body <> '5'"))
    live.create(source)
    old.create(target)
    at = stamp(source, 31 * DAY, live.c.created_at)
    insert(source, live, [{"id": n, "body": str(n), "created_at": at} for n in range(1, 21)])
    where = {} if source is target else {"database": "old"}
    t.app.lifecycle(live, Lifecycle("audit", retention=Retention("30d"), archive=Archive(old, **where)))
    report = t.sweep()
    assert (report.swept, report.skipped, len(report.errors)) == (19, 1, 1)
    assert values(source, live.c.id) == [5]
    assert 5 not in values(target, old.c.id)


def test_guards_are_asked_before_rows_move(case: Case) -> None:
    # contract: N6, N7
    t, source, target = case
    live, old = filled(case, [31 * DAY] * 4)
    t.app.retention_guard(live)(lambda rows: [row for row in rows if row.id != 2])
    t.sweep()
    assert values(source, live.c.id) == [2]
    assert values(target, old.c.id) == [1, 3, 4]


def test_a_target_that_does_not_fit_is_refused(app_factory: Callable[..., App]) -> None:
    # contract: N7, J5
    app = app_factory(migrate=False)
    live = table("deed", sa.Column("extra", sa.Integer))
    for target, words in ((table("old_deed"), "no column 'extra'"), (live, "the table itself")):
        with pytest.raises(DeclarationError, match=words):
            app.lifecycle(live, Lifecycle("audit", archive=Archive(target, "1d")))
    with pytest.raises(DeclarationError, match="no database 'old'"):
        app.lifecycle(live, Lifecycle("audit", archive=Archive(table("o", sa.Column("extra", sa.Integer)), "1d",
                                                               database="old")))  # fmt: skip
    with pytest.raises(DeclarationError, match="N1"):
        app.lifecycle(live, Lifecycle("audit", archive=Archive("old_deed", "1d")))


def test_a_ttl_moves_rows_as_well(case: Case) -> None:
    # contract: N1, N7
    t, source, target = case
    live, old = table("deed", sa.Column("ends", MICROS)), table("old_deed", sa.Column("ends", MICROS))
    live.create(source)
    old.create(target)
    for number, ago in enumerate((2 * DAY, DAY / 2), 1):
        insert(source, live, [{"id": number, "created_at": None, "ends": stamp(source, ago, live.c.ends)}])
    where = {} if source is target else {"database": "old"}
    t.app.lifecycle(live, Lifecycle("event", ttl=Ttl("ends", "1d"), archive=Archive(old, **where)))
    assert t.sweep().swept == 1
    assert values(target, old.c.id) == [1]
