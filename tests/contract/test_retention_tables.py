"""Retention of a user's own tables, of whatever shape: keys, times, conditions, guards, failures (N1, N3, N6, N8)."""

from __future__ import annotations

import enum
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import mysql
from sqlalchemy.dialects import sqlite as sqlite_types
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

from rowlock import App, DeclarationError, DeclarationTypeError, Lifecycle, Retention, Ttl
from rowlock.testing import TestApp
from support.rows import NOW, count, insert, stamp, values

DAY, HOUR, MS = timedelta(days=1), timedelta(hours=1), timedelta(milliseconds=1)
MICROS = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")
WEEK = Lifecycle("transient", retention=Retention("7d"))
Make = Callable[..., TestApp]


@pytest.fixture
def case(app_factory: Callable[..., App], engine: sa.Engine) -> Iterator[TestApp]:
    with TestApp(app_factory(migrate=False), engine=engine, now=NOW) as made:
        yield made


def table(*columns: Any, name: str = "message", created: Any = MICROS) -> sa.Table:
    return sa.Table(name, sa.MetaData(), *columns, sa.Column("created_at", created, index=True))


def plain(name: str = "message", *more: Any) -> sa.Table:
    return table(sa.Column("id", sa.Integer, primary_key=True), *more, name=name)


def rows_of_ages(engine: sa.Engine, made: sa.Table, *ages: timedelta, **more: Any) -> None:
    at = [stamp(engine, age, made.c.created_at) for age in ages]
    insert(engine, made, [{"id": n + 1, "created_at": when, **more} for n, when in enumerate(at)])


# --- times ------------------------------------------------------------------------------------------------------------


class Utc(TypeDecorator[datetime]):
    """As many projects have one: aware in the program, naive UTC in the database; refuses naive values."""

    impl = MICROS
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        if value is not None and value.tzinfo is None:
            raise ValueError("naive")
        return None if value is None else value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        return None if value is None else value.replace(tzinfo=UTC)


class Naive(TypeDecorator[datetime]):
    """The other way round: refuses aware ones."""

    impl = MICROS
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:
        if value is not None and value.tzinfo is not None:
            raise ValueError("aware")
        return value


COMPACT = sqlite_types.DATETIME(
    storage_format="%(year)04d%(month)02d%(day)02dT%(hour)02d%(minute)02d%(second)02d.%(microsecond)06d",
    regexp=r"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)\.(\d{6})",
)
TIMES = {
    "naive": MICROS,
    "aware": sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb"),
    "of a format": MICROS.with_variant(COMPACT, "sqlite"),
    "an aware type": Utc(),
    "a naive type": Naive(),
}


def test_rows_age_by_created_at_whatever_its_type(case: TestApp, engine: sa.Engine) -> None:
    # contract: N1
    ages = (6 * DAY, 7 * DAY - MS, 7 * DAY, 7 * DAY + MS, 8 * DAY, -DAY)
    tables: list[sa.Table] = []
    for kind, type_ in TIMES.items():
        made = table(sa.Column("id", sa.Integer, primary_key=True), name=kind, created=type_)
        made.create(engine)
        at = [NOW - age if kind == "an aware type" else stamp(engine, age, made.c.created_at) for age in ages]
        insert(engine, made, [{"id": n, "created_at": when} for n, when in enumerate(at, 1)])
        insert(engine, made, [{"id": 9, "created_at": None}])
        case.app.lifecycle(made, WEEK)
        tables.append(made)
    report = case.sweep()
    assert {made.name: values(engine, made.c.id) for made in tables} == {kind: [1, 2, 6, 9] for kind in TIMES}
    assert (report.swept, report.errors) == (3 * len(tables), ())


@pytest.mark.databases("postgresql", reason="N3: other databases have no such values")
def test_an_infinite_time_fails_nothing(case: TestApp, engine: sa.Engine) -> None:
    # contract: N3
    made = table(sa.Column("id", sa.Integer, primary_key=True), created=sa.DateTime(timezone=True))
    made.create(engine)
    with engine.begin() as conn:
        for number, at in enumerate(("infinity", "-infinity", "0044-03-15 BC", "2020-01-01")):
            conn.execute(
                sa.text("INSERT INTO message VALUES (:id, CAST(:at AS timestamptz))"), {"id": number, "at": at}
            )
    case.app.lifecycle(made, WEEK)
    assert case.sweep().errors == ()
    assert values(engine, made.c.id) == [0]


@pytest.mark.databases("sqlite", reason="N3: elsewhere a column has what its type says")
def test_a_time_that_is_none_keeps_its_row_and_no_other(case: TestApp, engine: sa.Engine) -> None:
    # contract: N3
    made = plain()
    made.create(engine)
    rows_of_ages(engine, made, 8 * DAY, DAY)
    with engine.begin() as conn:
        for number, at in enumerate(("nonsense", "2020-01-01T00:00:00+02:00", b"\xff\xfe", 12, "")):
            conn.execute(sa.text("INSERT INTO message VALUES (:id, :at)"), {"id": 10 + number, "at": at})
    case.app.lifecycle(made, WEEK)
    report = case.sweep()
    assert report.errors == ()
    left = set(values(engine, made.c.id))
    assert 1 not in left
    assert 2 in left


# --- keys -------------------------------------------------------------------------------------------------------------


def key(name: str, kind: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, primary_key=True, autoincrement=False)


BYTES = sa.LargeBinary(16).with_variant(mysql.VARBINARY(16), "mysql", "mariadb")
KEYS: dict[str, tuple[Callable[[], list[Any]], Callable[[int], dict[str, Any]]]] = {
    "a text": (lambda: [key("key", sa.String(80))], lambda n: {"key": f"a'b\"c`%:x {n} \\"}),
    "a uuid": (lambda: [key("key", sa.Uuid())], lambda n: {"key": uuid.UUID(int=n << 64 | n)}),
    "a big number": (lambda: [key("key", sa.BigInteger())], lambda n: {"key": 2**62 + n}),
    "bytes": (lambda: [key("key", BYTES)], lambda n: {"key": n.to_bytes(16, "big")}),
    "two columns": (
        lambda: [key("tenant", sa.String(20)), key("no", sa.Integer())], lambda n: {"tenant": f"t{n % 3}", "no": n},
    ),
    "three columns": (
        lambda: [key("a", sa.Integer()), key("b", sa.Uuid()), key("c", sa.Date())],
        lambda n: {"a": n % 7, "b": uuid.UUID(int=n), "c": NOW.date() - timedelta(days=n)},
    ),
    "odd names": (
        lambda: [key("select", sa.Integer()), sa.Column("a 'b' :c%d", sa.String(5))], lambda n: {"select": n + 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", KEYS)
def test_rows_are_named_by_keys_of_any_kind(case: TestApp, engine: sa.Engine, kind: str) -> None:
    # contract: N3, Z2
    guarded = kind in ("a text", "three columns", "odd names")
    columns, named = KEYS[kind]
    made = table(*columns(), name="order by")
    made.create(engine)
    old, young = stamp(engine, 8 * DAY, made.c.created_at), stamp(engine, DAY, made.c.created_at)
    insert(engine, made, [{**named(n), "created_at": young if n % 10 == 0 else old} for n in range(620)])
    case.app.lifecycle(made, WEEK)
    asked: list[int] = []
    if guarded:

        @case.app.retention_guard(made)
        def all_of_them(rows: Sequence[Any]) -> Sequence[Any]:
            asked.append(len(rows))
            return rows

    report = case.sweep()
    assert (report.swept, report.errors, report.skipped) == (558, (), 0)
    assert count(engine, made) == 62
    assert sum(asked) == (558 if guarded else 0)
    assert max(asked, default=0) <= 500


def test_a_table_in_a_schema_of_its_own_by_a_model(case: TestApp, engine: sa.Engine) -> None:
    # contract: N1
    class Base(DeclarativeBase): ...

    class Message(Base):
        __tablename__ = "mail message"
        no: Mapped[int] = mapped_column("the no", primary_key=True)
        created_at: Mapped[datetime] = mapped_column("made at", MICROS, index=True)
        state: Mapped[str] = mapped_column("st", sa.String(9))

    Base.metadata.create_all(engine)
    old = stamp(engine, 8 * DAY, Message.__table__.c["made at"])
    insert(engine, Message.__table__, [{"the no": n, "made at": old, "st": s} for n, s in ((1, "sent"), (2, "new"))])
    case.app.lifecycle(Message, Lifecycle("transient", retention=Retention("7d", only_when={Message.state: "sent"})))
    assert case.sweep().swept == 1
    assert values(engine, Message.__table__.c["the no"]) == [2]


# --- which rows -------------------------------------------------------------------------------------------------------


class Mood(enum.Enum):
    GOOD = "g"
    BAD = "b"


ONLY_WHEN: list[tuple[dict[str, Any], set[int]]] = [
    ({"status": "sent"}, {1}), ({"status": ["sent", "failed"]}, {1, 2}), ({"status": None}, {3}),
    ({"status": ("sent", None)}, {1, 3}), ({"flag": True}, {1, 2}), ({"flag": False}, {3, 4}),
    ({"mood": Mood.GOOD}, {1, 3}), ({"mood": "BAD"}, {2}), ({"mood": None}, {4}),
    ({"status": "sent", "flag": False}, set()), ({"status": {"sent", "failed"}, "mood": Mood.BAD}, {2}),
    ({"status": "x' OR '1'='1"}, set()), ({"status": "Sent"}, set()),
]  # fmt: skip


def test_only_rows_that_are_as_is_said_go(case: TestApp, engine: sa.Engine) -> None:
    # contract: N1, Z2
    collation = "utf8mb4_bin" if engine.dialect.name in ("mysql", "mariadb") else None
    cells = (
        (1, "sent", True, Mood.GOOD),
        (2, "failed", True, Mood.BAD),
        (3, None, False, Mood.GOOD),
        (4, "", False, None),
    )
    names = ("id", "status", "flag", "mood")
    tables: list[sa.Table] = []
    for number, (only_when, _) in enumerate(ONLY_WHEN):
        made = plain(
            f"message {number}", sa.Column("status", sa.String(20, collation=collation)), sa.Column("flag", sa.Boolean),
            sa.Column("mood", sa.Enum(Mood, name=f"mood_{number}")),
        )  # fmt: skip
        made.create(engine)
        old = stamp(engine, 8 * DAY, made.c.created_at)
        insert(engine, made, [dict(zip(names, each, strict=True), created_at=old) for each in cells])
        case.app.lifecycle(made, Lifecycle("event", retention=Retention("7d", only_when=only_when)))
        tables.append(made)
    assert case.sweep().swept == sum(len(gone) for _, gone in ONLY_WHEN)
    left = [set(values(engine, made.c.id)) for made in tables]
    assert left == [{1, 2, 3, 4} - gone for _, gone in ONLY_WHEN]


def test_a_ttl_counts_from_its_own_column(case: TestApp, engine: sa.Engine) -> None:
    # contract: N1
    made = plain("session", sa.Column("expires", MICROS, index=True))
    made.create(engine)
    new = stamp(engine, timedelta(0), made.c.created_at)
    for number, ago in enumerate((HOUR, 2 * HOUR, HOUR - MS, -DAY), 1):
        insert(engine, made, [{"id": number, "created_at": new, "expires": stamp(engine, ago, made.c.expires)}])
    insert(engine, made, [{"id": 9, "created_at": stamp(engine, 999 * DAY, made.c.created_at), "expires": None}])
    case.app.lifecycle(made, Lifecycle("transient", ttl=Ttl("expires", "1h")))
    case.sweep()
    assert values(engine, made.c.id) == [3, 4, 9]


# --- guards -----------------------------------------------------------------------------------------------------------


def test_vetoed_rows_do_not_starve_those_behind_them(case: TestApp, engine: sa.Engine) -> None:
    # contract: N6
    made = plain()
    made.create(engine)
    rows_of_ages(engine, made, *(20 * DAY - n * MS for n in range(520)))
    case.app.lifecycle(made, WEEK)

    @case.app.retention_guard(made)
    def not_the_first(rows: Sequence[Any]) -> list[Any]:
        return [row for row in rows if row.id > 500]

    report = case.sweep()
    assert (report.swept, report.skipped, report.finished) == (20, 500, True)
    assert values(engine, made.c.id) == list(range(1, 501))


def test_guards_go_together_by_intersection_and_a_cleaner_sees_only_what_goes(case: TestApp, engine: sa.Engine) -> None:
    # contract: N6
    made = plain()
    made.create(engine)
    rows_of_ages(engine, made, *([8 * DAY] * 12))
    case.app.lifecycle(made, WEEK)
    cleaned: list[int] = []
    case.app.retention_guard(made)(lambda rows: [row for row in rows if row.id % 2 == 0])
    case.app.retention_guard(made)(lambda rows: (row for row in rows if row.id % 3 == 0))

    @case.app.retention_guard(made)
    def clean(rows: Sequence[Any]) -> Sequence[Any]:
        assert count(engine, made) == 12  # first outside, then here
        cleaned.extend(row.id for row in rows)
        return rows

    assert case.sweep().swept == 2
    assert sorted(cleaned) == [6, 12]
    assert values(engine, made.c.id) == [1, 2, 3, 4, 5, 7, 8, 9, 10, 11]


WRONG_ANSWERS: list[Callable[[Sequence[Any]], Any]] = [
    lambda rows: 1 / 0, lambda rows: None, lambda rows: [1], lambda rows: 5, lambda rows: [tuple(row) for row in rows],
    lambda rows: sys.exit(1), lambda rows: next(iter(())),
]  # fmt: skip


def test_a_guard_that_fails_keeps_its_batch(case: TestApp, engine: sa.Engine) -> None:
    # contract: N6, N8
    for number, answer in enumerate(WRONG_ANSWERS):
        made = plain(f"message_{number}")
        made.create(engine)
        rows_of_ages(engine, made, *(20 * DAY - n * MS for n in range(520)))
        case.app.lifecycle(made, WEEK)

        @case.app.retention_guard(made)
        def moody(rows: Sequence[Any], answer: Any = answer) -> Any:
            return answer(rows) if rows[0].id == 1 else rows

    report = case.sweep()
    assert (report.swept, report.skipped) == (20 * len(WRONG_ANSWERS), 500 * len(WRONG_ANSWERS))
    assert len(report.errors) == len(WRONG_ANSWERS)
    assert all("moody" in error for error in report.errors)


def test_a_guard_is_declared_for_a_declared_table_and_is_sync(case: TestApp) -> None:
    # contract: N6
    made = plain()
    with pytest.raises(DeclarationError, match="no life cycle"):
        case.app.retention_guard(made)(lambda rows: rows)
    case.app.lifecycle(made, WEEK)

    async def later(rows: Sequence[Any]) -> Sequence[Any]:
        return rows

    for wrong in (later, "text"):
        with pytest.raises(DeclarationTypeError, match="N6"):
            case.app.retention_guard(made)(wrong)  # type: ignore[type-var]


# --- failures ---------------------------------------------------------------------------------------------------------


def test_a_row_that_others_refer_to_stays_alone(case: TestApp, engine: sa.Engine) -> None:
    # contract: N3, N8
    made = plain()
    child = sa.Table("child", made.metadata, sa.Column("id", sa.Integer, primary_key=True),
                     sa.Column("message", sa.ForeignKey("message.id")))  # fmt: skip
    made.metadata.create_all(engine)
    rows_of_ages(engine, made, *(20 * DAY - n * MS for n in range(600)))
    insert(engine, child, [{"id": 1, "message": 77}, {"id": 2, "message": 78}, {"id": 3, "message": 599}])
    case.app.lifecycle(made, WEEK)
    if engine.dialect.name == "sqlite":
        trigger = (
            "CREATE TRIGGER referred BEFORE DELETE ON message WHEN EXISTS (SELECT 1 FROM child WHERE message = old.id)"
            " BEGIN SELECT RAISE(ABORT, 'secret text'); END"
        )
        with engine.begin() as conn:
            conn.exec_driver_sql(trigger)
    report = case.sweep()
    assert (report.swept, report.skipped, report.finished) == (597, 3, True)
    assert values(engine, made.c.id) == [77, 78, 599]
    assert len(report.errors) == 1
    assert "3 times" in report.errors[0]
    assert "secret" not in report.errors[0]


def test_what_foreign_keys_say_holds_on_every_database(case: TestApp, engine: sa.Engine) -> None:
    # contract: N3: SQLite asks for them in each connection, and only if it is told to
    made = plain()
    for name, rule in (("keeping", None), ("going", "CASCADE")):
        sa.Table(name, made.metadata, sa.Column("id", sa.Integer, primary_key=True),
                 sa.Column("message", sa.ForeignKey("message.id", ondelete=rule)))  # fmt: skip
    made.metadata.create_all(engine)
    rows_of_ages(engine, made, *(20 * DAY - n * MS for n in range(10)))
    insert(engine, made.metadata.tables["keeping"], [{"id": 1, "message": 4}])
    insert(engine, made.metadata.tables["going"], [{"id": 1, "message": 4}, {"id": 2, "message": 5}])
    case.app.lifecycle(made, WEEK)
    report = case.sweep()
    assert (report.swept, report.skipped) == (9, 1)
    assert values(engine, made.c.id) == [4]
    assert values(engine, made.metadata.tables["going"].c.id) == [1]


def test_a_table_that_fails_does_not_stop_the_others(case: TestApp, engine: sa.Engine) -> None:
    # contract: N8
    # case: C22
    gone, odd, fine = plain("a_gone"), plain("b_odd", sa.Column("missing", sa.Integer)), plain("c_fine")
    fine.create(engine)
    plain("b_odd").create(engine)
    for each in (gone, odd, fine):
        case.app.lifecycle(each, WEEK)

    @case.app.retention_guard(odd)
    def ask(rows: Sequence[Any]) -> Sequence[Any]:
        return rows

    rows_of_ages(engine, fine, 8 * DAY)
    rows_of_ages(engine, plain("b_odd"), 8 * DAY)
    report = case.sweep()
    assert report.swept == 1
    assert {error.split("'")[1] for error in report.errors} == {"a_gone", "b_odd"}
    assert count(engine, fine) == 0
    assert [each.finished for each in report.tables if each.table == "c_fine"] == [True]


# --- declaring --------------------------------------------------------------------------------------------------------


def test_what_can_not_be_swept_is_refused_when_it_is_declared(app_factory: Callable[..., App]) -> None:
    # contract: N1, J5
    app = app_factory(migrate=False)
    no_key = sa.Table("no_key", sa.MetaData(), sa.Column("created_at", sa.DateTime))
    no_time = sa.Table("no_time", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True))
    a_text = sa.Table("a_text", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True),
                      sa.Column("created_at", sa.String(30)))  # fmt: skip
    own = sa.Table("rowlock_job", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True))
    fine = plain("fine", sa.Column("mood", sa.Enum(Mood)), sa.Column("flag", sa.Boolean))
    for made, lifecycle, words in (
        (no_key, WEEK, "no primary key"), (no_time, WEEK, "no column 'created_at'"), (a_text, WEEK, "DateTime"),
        (own, WEEK, "Rowlock's own"), (fine, Lifecycle("event", ttl=Ttl("nothing", "7d")), "no column 'nothing'"),
        (fine, Lifecycle("event", retention=Retention("7d", only_when={"x": 1})), "no column 'x'"),
        (fine, Lifecycle("event", retention=Retention("7d", only_when={"mood": "UGLY"})), "GOOD, BAD"),
        (fine, Lifecycle("event", retention=Retention("7d", only_when={"flag": "yes"})), "true or false"),
        (fine, Lifecycle("event", retention=Retention("7d", only_when={own.c.id: 1})), "no column"),
        (fine, Lifecycle("event", retention=Retention("7d", only_when={"id": {"a": 1}})), "single value"),
        (fine, Lifecycle("event", retention=Retention("7d", only_when={"id": [1, [2]]})), "single value"),
    ):  # fmt: skip
        with pytest.raises(DeclarationError, match=words):
            app.lifecycle(made, lifecycle)
    for wrong in ("fine", None, int, fine.select(), object()):
        with pytest.raises(DeclarationTypeError, match="no table"):
            app.lifecycle(wrong, WEEK)
    with pytest.raises(DeclarationTypeError, match="no Lifecycle"):
        app.lifecycle(fine, "7d")  # type: ignore[arg-type]
    with pytest.raises(DeclarationError, match="no database 'elsewhere'"):
        app.lifecycle(fine, WEEK, database="elsewhere")
    app.lifecycle(fine, WEEK)
    with pytest.raises(DeclarationError, match="declared already"):
        app.lifecycle(fine, WEEK)


def test_models_of_several_tables_or_of_one_shared_are_refused(app_factory: Callable[..., App]) -> None:
    # contract: N1
    class Base(DeclarativeBase): ...

    class Parent(Base):
        __tablename__ = "parent"
        id: Mapped[int] = mapped_column(primary_key=True)
        kind: Mapped[str]
        created_at: Mapped[datetime]
        __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "parent"}

    class Single(Parent):
        __mapper_args__ = {"polymorphic_identity": "single"}

    class Joined(Parent):
        __tablename__ = "joined"
        id: Mapped[int] = mapped_column(sa.ForeignKey("parent.id"), primary_key=True)
        __mapper_args__ = {"polymorphic_identity": "joined"}

    app = app_factory(migrate=False)
    with pytest.raises(DeclarationError, match="several tables"):
        app.lifecycle(Joined, WEEK)
    with pytest.raises(DeclarationError, match="shares the table 'parent' with Parent"):
        app.lifecycle(Single, WEEK)
    app.lifecycle(Parent, WEEK)


def test_a_floor_and_a_window_meet_in_either_order(app_factory: Callable[..., App]) -> None:
    # contract: N4
    texts = {"who": "mailer dedupe", "why": "it looks back a day", "remedy": "keep a day or more"}
    short = Lifecycle("transient", retention=Retention(DAY - MS))
    for lifecycle, fits in ((short, False), (Lifecycle("transient", retention=Retention("24h")), True), (WEEK, True)):
        for floor_first in (True, False):
            app, made = app_factory(migrate=False), plain()
            steps: list[Callable[[], None]] = [
                lambda app=app, made=made: app.retention_floor(made, at_least="24h", **texts),
                lambda app=app, made=made, lifecycle=lifecycle: app.lifecycle(made, lifecycle),
            ]
            first, second = steps if floor_first else reversed(steps)
            first()
            if fits:
                second()
                continue
            with pytest.raises(DeclarationError, match="mailer dedupe needs them for 1 d") as refused:
                second()
            assert "keep a day or more" in str(refused.value)
    with pytest.raises(DeclarationError, match="at_least"):
        app_factory(migrate=False).retention_floor(plain(), at_least="0d", **texts)
    with pytest.raises(DeclarationError, match="who"):
        app_factory(migrate=False).retention_floor(plain(), at_least="1d", **{**texts, "who": " "})


def test_finished_records_have_a_floor_as_well(app_factory: Callable[..., App], database: Any) -> None:
    # contract: N4, N5, E5
    texts = {"who": "reports", "why": "they count", "remedy": "keep longer"}
    app = app_factory(migrate=False)
    app.retention_floor("rowlock_job", at_least="7d", **texts)
    with pytest.raises(DeclarationError, match=r"7 d, and reports needs them for 604,800\.001 s"):
        app.retention_floor("rowlock_job", at_least=7 * DAY + MS, **texts)

    def with_override(text: str) -> App:
        settings = {"database": {"default": {"url": database.url}}, "retention": {"overrides": {"rowlock_job": text}}}
        return app_factory(migrate=False, settings=settings)

    with_override("14d").retention_floor("rowlock_job", at_least="14d", **texts)
    with pytest.raises(DeclarationError, match="reports needs them for 14 d"):
        with_override("13d").retention_floor("rowlock_job", at_least="14d", **texts)


def test_an_override_below_a_floor_is_rejected_and_without_the_floor_it_is_not(
    app_factory: Callable[..., App], database: Any
) -> None:
    # contract: N5
    for floored in (True, False):
        settings = {"database": {"default": {"url": database.url}}, "retention": {"overrides": {"message": "23h"}}}
        app = app_factory(settings=settings)
        made = plain()
        app.lifecycle(made, WEEK)
        if floored:
            app.retention_floor(made, at_least="24h", who="dedupe", why="it looks back", remedy="a day")
        [planned] = [each for each in app.retention.plan() if each.table == "message"]
        assert planned.window == (7 * DAY if floored else 23 * HOUR)
        assert len(app.retention.violations()) == floored
        assert (planned.at_least, planned.who) == ((DAY, "dedupe") if floored else (None, None))


def test_a_table_without_an_index_on_its_time_is_named(app_factory: Callable[..., App]) -> None:
    # contract: N3, J6
    def made(name: str, *more: Any, index: bool = False) -> sa.Table:
        columns = sa.Column("id", sa.Integer, primary_key=True), sa.Column("status", sa.String(9))
        return sa.Table(
            name, sa.MetaData(), *columns, sa.Column("created_at", sa.DateTime, index=index), *more
        )  # fmt: skip

    app = app_factory(migrate=False)
    app.lifecycle(made("a_bare"), WEEK)
    app.lifecycle(made("b_plain", index=True), WEEK)
    app.lifecycle(made("c_first", sa.Index("i", "created_at", "status")), WEEK)
    app.lifecycle(made("d_second", sa.Index("i", "status", "created_at")), WEEK)
    sent = Lifecycle("transient", retention=Retention("7d", only_when={"status": "sent"}))
    app.lifecycle(made("e_pinned", sa.Index("i", "status", "created_at")), sent)
    app.lifecycle(made("f_kept"), Lifecycle("record"))
    assert [text.split("'")[1] for text in app.lifecycles.without_index()] == ["a_bare", "d_second"]
