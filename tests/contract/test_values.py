"""Values on their way through each database and back, as handlers get them; what is refused, on every path (W1, W2)."""

from __future__ import annotations

import enum
import os
import sys
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from rowlock import App, DeclarationError, EncodeError, EnqueueValueError, Jobs, Retry, SafeError, State
from rowlock.store import records, schema
from rowlock.testing import TestApp
from support.databases import Database
from support.own import OwnServer

AppFactory = Callable[..., App]
NEPAL = timezone(timedelta(hours=5, minutes=45))
INSTANT = datetime(2031, 2, 3, 4, 5, 6, 789_012, tzinfo=NEPAL)


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 2


class Word(enum.StrEnum):
    YES = "yes"


class Place(TypedDict):
    city: str
    zip: int | None


@dataclass(frozen=True)
class Inner:
    amounts: list[dict[str, Decimal]]
    note: str = "as it was"


@dataclass(frozen=True)
class Everything:
    instant: datetime
    day: date
    clock: time
    span: timedelta
    uuid: UUID
    price: Decimal
    raw: bytes
    colour: Colour
    level: Level
    word: Word
    inner: Inner
    place: Place
    pair: tuple[int, str]
    row: tuple[float, ...]
    literal: Literal["a", 1]
    flag: bool
    least: int
    most: int
    tiny: float
    texts: list[str]
    nothing: int | None = None
    plain: Inner = field(default_factory=lambda: Inner([]))


EVERYTHING = Everything(
    instant=INSTANT, day=date(2031, 2, 3), clock=time(23, 59, 59, 999_999), span=timedelta(days=-3, microseconds=1),
    uuid=UUID(int=2**127 + 5), price=Decimal("1.10"), raw=bytes(range(256)) + b"\xff\xfe", colour=Colour.RED,
    level=Level.HIGH, word=Word.YES, inner=Inner([{"a": Decimal("0.30")}, {}]), place={"city": "São", "zip": None},
    pair=(1, "x"), row=(0.1, -0.0), literal=1, flag=True, least=-(2**63), most=2**63 - 1, tiny=1e-320,
    texts=["", "a\0b", unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é"), "\u2028\x7f\\\"'%s:x",
           "\U0001f600", "\x01\x1f\ufffe\U0010ffff"],
)  # fmt: skip


class Bench:
    """A job that takes one kind of input, a case on the test's engine, and what the handler got."""

    def __init__(self, engine: sa.Engine, kind: Any) -> None:
        self.engine = engine
        self.jobs = Jobs()
        self.got: list[Any] = []

        def take(input: Any) -> None:
            self.got.append(input)

        take.__annotations__ |= {"input": kind, "return": None}
        self.job: Any = self.jobs.job(name="take", max_attempts=3, timeout=5)(take)
        self.case = TestApp(App("sqlite:////nowhere/at/all.db", include=[self.jobs]), engine=engine)

    async def by_every_path(self, input: Any, **options: Any) -> list[int]:
        """Enqueues it by each door and in each mode; answers the ids."""
        job, many = self.job, [(input, options), (input, options)]
        made = [job.enqueue(input, **options), *job.enqueue_many(many), await job.aenqueue(input, **options)]
        made += await job.aenqueue_many(many)
        with self.engine.begin() as conn:
            made += [job.enqueue(input, connection=conn, **options), *job.enqueue_many(many, connection=conn)]
        return [each.id for each in made]

    async def refused_by_every_path(self, input: Any, error: type[Exception], words: str, **options: Any) -> None:
        """Refuses it by each door, writes nothing, and leaves a caller's transaction as good as it was."""
        job = self.job
        good = self.good
        for call in (
            lambda: job.enqueue(input, **options),
            lambda: job.enqueue_many([(input, options)]),
            lambda: job.enqueue_many([good, (input, options)]),
        ):
            with pytest.raises(error, match=words):
                call()
        with pytest.raises(error, match=words):
            await job.aenqueue(input, **options)
        with pytest.raises(error, match=words):
            await job.aenqueue_many([good, (input, options)])
        with self.engine.begin() as conn:
            before = job.enqueue(good, connection=conn)
            with pytest.raises(error, match=words):
                job.enqueue(input, connection=conn, **options)
            with pytest.raises(error, match=words):
                job.enqueue_many([good, (input, options)], connection=conn)
            after = job.enqueue(good, connection=conn)
            ids = list(conn.execute(sa.select(schema.job.c.id).order_by(schema.job.c.id)).scalars())
            assert ids == [before.id, after.id]
            conn.rollback()

    good: Any = None


@pytest.fixture
def bench(engine: sa.Engine) -> Iterator[Callable[..., Bench]]:
    opened: list[Bench] = []

    def make(kind: Any) -> Bench:
        opened.append(Bench(engine, kind))
        opened[-1].case.__enter__()
        return opened[-1]

    yield make
    for each in opened:
        each.case.__exit__()


def exactly(value: Any) -> Any:
    """The value with the types of all its parts, and with what `==` does not see (-0.0, Decimal's exponent)."""
    if isinstance(value, Everything | Inner):
        return type(value), [exactly(getattr(value, name)) for name in value.__dataclass_fields__]
    if isinstance(value, dict):
        return dict, {key: exactly(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [exactly(part) for part in value]
    return type(value), value.astimezone(UTC) if isinstance(value, datetime) else repr(value)


# --- C60, C62: what travels -------------------------------------------------------------------------------------------


async def test_every_value_comes_back_equal_and_of_its_type(bench: Callable[..., Bench]) -> None:
    # contract: W1, W3
    # case: C60, C62
    made = bench(Everything)
    ids = await made.by_every_path(EVERYTHING)
    assert await made.case.adrain() == len(ids) == 9
    assert [exactly(got) for got in made.got] == [exactly(EVERYTHING)] * 9
    assert {got.instant for got in made.got} == {INSTANT}  # the instant, though it came with another offset


class Base(DeclarativeBase): ...


class Article(Base):
    __tablename__ = "article"
    id: Mapped[int] = mapped_column(primary_key=True)


class Point(NamedTuple):
    x: int


@pytest.mark.parametrize(
    "kind", [set[int], frozenset[int], int | str, object, Any, Article, Callable[[], None], Point], ids=str
)
def test_kinds_that_do_not_travel_are_refused_where_the_job_is_declared(kind: Any) -> None:
    # contract: W2, J5
    # case: C60 (sets and unions would travel there; W2 refuses them, before the first record)
    holder = dataclass(type("Holder", (), {"__annotations__": {"x": list[kind]}}))
    with pytest.raises(DeclarationError, match=r"\.x"):
        Jobs().declare("j", input=holder, max_attempts=1, timeout=1)


BAD = {
    "2**63": (int, 2**63),
    "10**40": (int, 10**40),
    "nan": (float, float("nan")),
    "inf": (float, float("inf")),
    "naive": (datetime, datetime(2031, 1, 1)),  # noqa: DTZ001 - that is the point
    "an object": (str, object()),
    "a lambda": (str, lambda: None),
    "an open file": (str, sys.stderr),
    "a text for an int": (int, "5"),
    "a surrogate": (str, "a\ud800b"),
    "a file name that is no text": (str, os.fsdecode(b"\xff.txt")),
    "a surrogate in a list": (list[list[str]], [["a", "\udfff"]]),
    "a surrogate as a key": (dict[str, int], {"\ud800": 1}),
}


@pytest.mark.parametrize("which", BAD)
async def test_values_that_do_not_travel_are_refused_by_every_path(bench: Callable[..., Bench], which: str) -> None:
    # contract: W2, E1, E2
    # case: C57, C60, C62
    kind, value = BAD[which]
    holder = dataclass(type("Holder", (), {"__annotations__": {"x": kind}}))
    made = bench(holder)
    examples: dict[Any, Any] = {int: 1, float: 1.5, str: "", datetime: INSTANT}
    made.good = holder(x=examples.get(kind, kind.__origin__() if hasattr(kind, "__origin__") else None))
    await made.refused_by_every_path(holder(x=value), EncodeError, r"\.x")
    assert made.case.records.list().items == []


# --- C57: NUL and lone surrogates, wherever a text can stand ----------------------------------------------------------


@dataclass(frozen=True)
class Texts:
    text: str = ""
    deep: list[dict[str, list[str]]] = field(default_factory=list[dict[str, list[str]]])


async def test_a_nul_in_a_payload_is_kept_by_every_path(bench: Callable[..., Bench]) -> None:
    # contract: W3
    # case: C57 (encoded and restored: the column is text, and JSON's escape of it has no NUL)
    made = bench(Texts)
    input = Texts("a\u0000b", [{"\u0000key\u0000": ["\u0000", "x\u0000"]}])
    await made.by_every_path(input)
    assert await made.case.adrain() == 9
    assert made.got == [input] * 9


@pytest.mark.parametrize("text", ["a\u0000b", "\u0000", "a\ud800", "\udfffb"], ids=ascii)
@pytest.mark.parametrize("option", ["key", "queue", "header", "header's name"])
async def test_texts_beside_the_payload_are_refused_by_every_path(
    bench: Callable[..., Bench], option: str, text: str
) -> None:
    # contract: E4, J1, S2
    # case: C57
    made = bench(Texts)
    made.good = Texts("good")
    options: dict[str, Any] = {"header": {"headers": {"a": text}}, "header's name": {"headers": {text: "a"}}}
    says = "headers" if "header" in option else option
    await made.refused_by_every_path(
        Texts(), EnqueueValueError, f"{says} .*(NUL|surrogate)", **options.get(option, {option: text})
    )


@pytest.mark.parametrize("text", ["a\u0000b", "a\ud800"], ids=ascii)
def test_names_are_refused_where_they_are_declared(text: str) -> None:
    # contract: J4, J5
    # case: C57
    for options in ({"name": text}, {"name": "j", "aliases": (text,)}, {"name": "j", "queue": text}):
        with pytest.raises(DeclarationError, match=r"NUL|surrogate"):
            Jobs().declare(**options, max_attempts=1, timeout=1)
    with pytest.raises(DeclarationError, match=r"NUL|surrogate"):
        App("sqlite://").queue(text)


# --- C61: sizes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strict", [True, False], ids=["strict", "sql_mode=''"])
@pytest.mark.parametrize("letter", ["x", "\U0001f600"], ids=["ascii", "emoji"])
def test_payloads_of_every_size_up_to_the_bound_come_back_whole(
    bench: Callable[..., Bench], engine: sa.Engine, dialect: str, letter: str, strict: bool
) -> None:
    # contract: W3, S5
    # case: C61
    if not strict and dialect != "mariadb":
        pytest.skip("only mariadb: C61: the others have no mode in which texts are cut off")
    made = bench(Texts)
    frame = len(made.job.wire.encode(Texts()).encode())

    def of(size: int) -> Texts:
        width = len(letter.encode())
        text = letter * ((size - frame) // width)
        return Texts(text + "y" * ((size - frame) % width))

    sizes = [65_535, 65_536, 70_000, 2**20]
    with engine.begin() as conn:
        if not strict:
            conn.exec_driver_sql("SET sql_mode = ''")
        ids = [made.job.enqueue(of(size), connection=conn).id for size in sizes]
        for path in (
            lambda: made.job.enqueue(of(2**20 + 1), connection=conn),
            lambda: made.job.enqueue_many([of(9), of(2**20 + 1)], connection=conn),
        ):
            with pytest.raises(EncodeError, match=r"1,048,577 bytes.*1,048,576"):
                path()
    ids += [made.job.enqueue(of(size)).id for size in sizes]
    ids += [each.id for each in made.job.enqueue_many([of(size) for size in sizes])]
    with engine.connect() as conn:
        stored = list(conn.execute(sa.select(schema.job.c.payload).order_by(schema.job.c.id)).scalars())
    assert [len(text.encode()) for text in stored] == sizes * 3  # and none of what was refused
    assert made.case.drain() == len(ids)
    assert made.got == [of(size) for size in sizes] * 3


@pytest.mark.databases("mariadb", reason="C61: only its servers bound the length of a statement")
def test_a_server_that_takes_only_small_statements(
    own_server: OwnServer, own_database: Database, app_factory: AppFactory
) -> None:
    # contract: W3, Z1
    # case: C61
    jobs = Jobs()

    @jobs.job(name="take", max_attempts=1, timeout=5)
    def take(input: Texts) -> None: ...

    admin = sa.create_engine(own_database.sync_url)
    with admin.connect() as conn:  # for sessions to come
        conn.exec_driver_sql("SET GLOBAL max_allowed_packet = 262144")
    app = app_factory(jobs, url=own_database.url)
    engine = sa.create_engine(own_database.sync_url)
    small, large = Texts("x" * 100_000), Texts("x" * 300_000)
    with engine.begin() as conn:
        made = [take.enqueue(small, connection=conn)]
        for call in (
            lambda: take.enqueue(large),
            lambda: take.enqueue(large, connection=conn),
            lambda: take.enqueue_many([small, large], connection=conn),
        ):
            with pytest.raises(EnqueueValueError, match=r"262,144.*max_allowed_packet"):
                call()
        # The connection is as good as before; and the same value in each row is written for each row.
        made += take.enqueue_many([small] * 5, connection=conn)
        made += take.enqueue_many([Texts(f"{n}" + "'" * 50_000) for n in range(5)], connection=conn)
    engine.dispose()
    with admin.connect() as conn:
        conn.exec_driver_sql("SET GLOBAL max_allowed_packet = DEFAULT")
    admin.dispose()
    store = app.databases["default"]
    stored = [take.wire.decode(store.run(records.payload, each.id)) for each in made]
    assert stored == [small] * 6 + [Texts(f"{n}" + "'" * 50_000) for n in range(5)]
    assert sum(count.count for count in app.records.counts()) == 11


# --- C62: errors whose text is no text --------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["raised", "safe", "dead"])
def test_an_error_about_a_name_that_is_no_text_settles(engine: sa.Engine, ending: str) -> None:
    # contract: S6, R1, R6
    # case: C62 (of an error's own text nothing is stored; what a handler vouched for is, with escapes)
    name = os.fsdecode(b"caf\xff.txt") + "\0"
    jobs = Jobs()

    @jobs.job(name="read", max_attempts=3, timeout=5)
    def read() -> Retry | None:
        if ending == "safe":
            raise SafeError(f"no {name}")
        if ending == "dead":
            from rowlock import Dead

            raise Dead(f"no {name}")
        raise OSError(2, "no such file", name)

    with TestApp(App("sqlite:////nowhere/at/all.db", include=[jobs]), engine=engine) as case:
        made = read.enqueue()
        assert case.drain() == 1
        found = case.records.get(made.id)
        summary = "no caf\\udcff.txt\\x00"
        assert (found.state, found.error_category, found.error_summary) == {
            "raised": (State.PENDING, "failed", None),
            "safe": (State.PENDING, "failed", summary),
            "dead": (State.DEAD, "rejected", summary),
        }[ending]
        if ending == "raised":
            assert found.error_class == "FileNotFoundError"
        if ending != "dead":
            case.advance(seconds=1)
            assert case.drain() == 1  # it was put off, and runs again
