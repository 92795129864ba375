"""What does not travel: refused when it is declared or encoded, with the path to the field and never the value."""

from __future__ import annotations

import collections
import dataclasses
import enum
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, Literal, NamedTuple, TypedDict, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pydantic
import pytest
from sqlalchemy.orm import DeclarativeBase, Mapped, MappedAsDataclass, mapped_column

import rowlock.errors as err
from rowlock.model.identity import Id, Secret
from rowlock.model.wire import wire_type

T = TypeVar("T")
WHERE = "job news.publish"


class Base(DeclarativeBase):
    pass


class Article(Base):
    __tablename__ = "refused_article"
    id: Mapped[int] = mapped_column(primary_key=True)


class Both(MappedAsDataclass, Base):
    __tablename__ = "refused_both"
    left: Mapped[int] = mapped_column(primary_key=True)
    right: Mapped[int] = mapped_column(primary_key=True)


class Point(NamedTuple):
    x: int


class Bits(enum.Flag):
    A = 1


class Mixed(enum.Enum):
    A = 1.5


class Truth(enum.Enum):
    A = True


class Empty(enum.Enum):
    pass


class Huge(enum.Enum):
    A = 2**63


class Broken(enum.Enum):
    A = "\ud800"


class Custom:
    pass


class MyStr(str):
    __slots__ = ()


def declare(annotation: Any) -> str:
    """The refusal of `Publish.author.x: annotation`."""
    author = dataclasses.make_dataclass("Author", [("x", annotation)])
    publish = dataclasses.make_dataclass("Publish", [("n", int), ("author", author | None)])
    with pytest.raises(err.DeclarationError) as caught:
        wire_type(publish, where=WHERE)
    return str(caught.value)


@pytest.mark.parametrize(
    ("annotation", "part", "rule"),
    [
        (
            Secret,
            "",
            "rowlock.Secret is a secret, and payloads are stored readable (W2); pass a reference to it instead",
        ),
        (pydantic.SecretStr, "", "pydantic.SecretStr is a secret"),
        (pydantic.SecretBytes, "", "pydantic.SecretBytes is a secret"),
        (list[dict[str, Secret | None]], "[]{}", "is a secret"),
        (Article, "", "pass Id[Article]"),
        (Both, "", "ORM-mapped"),
        (Id[Both], "", "a primary key of 2 columns"),
        (Id[Article, UUID], "", "make them agree"),
        (Id["Nobody"], "", "names no class"),
        (int | str, "", "a union other than X | None"),
        (int | str | None, "", "a union other than X | None"),
        (Callable[[], int], "", "a callable"),
        (typing.Callable, "", "a callable"),
        (Any, "", "Any says nothing"),
        (object, "", "object says nothing"),
        (None, "", "None alone"),
        (T, "", "open"),
        (list[T], "[]", "open"),
        (set[int], "", "use list"),
        (frozenset[int], "", "use tuple"),
        (set, "", "use list"),
        (list, "", "list[int]"),
        (typing.List, "", "list[int]"),  # noqa: UP006 - the old spelling is the point
        (tuple, "", "tuple[int, ...]"),
        (tuple[()], "", "tuple[int, ...]"),
        (dict, "", "dict[str, int]"),
        (dict[int, str], "", "the keys of a dict are str"),
        (dict[MyStr, str], "", "the keys of a dict are str"),
        (tuple[int, set[int]], "[1]", "use list"),
        (Mapping[str, int], "", "no wire form"),
        (Sequence[int], "", "no wire form"),
        (collections.OrderedDict[str, int], "", "no wire form"),
        (complex, "", "no wire form"),
        (bytearray, "", "no wire form"),
        (type[int], "", "no wire form"),
        (Custom, "", "Custom has no wire form"),
        (MyStr, "", "MyStr has no wire form"),
        (typing.Never, "", "no wire form"),
        (Point, "", "use a frozen dataclass"),
        (Bits, "", "is a Flag"),
        (Mixed, "", "Mixed.A has a value of type float"),
        (Truth, "", "Truth.A has a value of type bool"),
        (Empty, "", "has no members"),
        (Huge, "", "beyond signed 64-bit"),
        (Broken, "", "lone surrogate"),
        (Literal[True], "", "a literal of type bool"),
        (Literal["a", None], "", "a literal of type NoneType"),  # noqa: PYI061 - the spelling is the point
        (Literal[9223372036854775808], "", "beyond signed 64-bit"),
    ],
    ids=str,
)
def test_refused_when_declared(annotation: Any, part: str, rule: str) -> None:  # contract: W1, W2, J5
    message = declare(annotation)
    assert message.startswith(f"{WHERE}: Publish.author.x{part}: ")
    assert rule in message


def test_a_refusal_of_a_kind_is_a_type_error() -> None:  # contract: Z1
    with pytest.raises(err.DeclarationTypeError):
        wire_type(dataclasses.make_dataclass("P", [("x", set[int])]), where=WHERE)


# --- records -------------------------------------------------------------------------------------------------


@dataclass
class NoInit:
    n: int
    x: int = field(init=False, default=1)


@dataclass
class Once:
    n: int
    x: InitVar[int] = 3


@dataclass
class Custom2:
    n: int

    def __init__(self, number: int) -> None:
        self.n = number


class Undecorated(NoInit):
    x: str


@attrs.define
class NoInitAttrs:
    x: int = attrs.field(init=False, default=1)


@attrs.define
class Untyped:
    x = attrs.field()


class Allows(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    n: int


class Root(pydantic.RootModel[list[int]]):
    pass


class OpenModel(pydantic.BaseModel, typing.Generic[T]):
    n: T


class OpenStruct(msgspec.Struct, typing.Generic[T]):
    n: T


class OpenDict(TypedDict, typing.Generic[T]):
    n: T


@dataclass
class Lost:
    n: Missing  # type: ignore[name-defined]  # noqa: F821 - the point


class LostModel(pydantic.BaseModel):
    n: Missing  # type: ignore[name-defined]  # noqa: F821 - the point


BadName = TypedDict("BadName", {"n\ud800": int})


@dataclass
class BadId:
    n: Id[3]  # type: ignore[valid-type]


@pytest.mark.parametrize(
    ("tp", "path", "rule"),
    [
        (NoInit, "NoInit.x", "init=False"),
        (NoInitAttrs, "NoInitAttrs.x", "init=False"),
        (Once, "Once.x", "InitVar"),
        (Custom2, "Custom2", "does not take its fields by name"),
        (Undecorated, "Undecorated", "decorate it with @dataclass"),
        (Untyped, "Untyped.x", "has no type"),
        (Allows, "Allows", 'extra="allow"'),
        (Root, "Root", "RootModel"),
        (OpenModel, "OpenModel", "open generic"),
        (OpenStruct, "OpenStruct", "open generic"),
        (OpenDict, "OpenDict", "open generic"),
        (Lost, "Lost", "the annotation 'Missing' can not be resolved"),
        (LostModel, "LostModel", "model_rebuild"),
        (BadName, "BadName", "lone surrogate"),
        (BadId, "BadId", "Id takes a class"),
        (int, "int", "a job takes one record"),
        (list[NoInit | None], "list[].x", "init=False"),
        (Point, "Point", "NamedTuple"),
        (dict[str, int], "dict", "a job takes one record"),
    ],
)
def test_refused_records(tp: Any, path: str, rule: str) -> None:  # contract: J3, J5, W1
    with pytest.raises(err.DeclarationError) as caught:
        wire_type(tp, where=WHERE)
    message = str(caught.value)
    assert message.startswith(f"{WHERE}: {path}: ")
    assert rule in message


# --- values --------------------------------------------------------------------------------------------------


class Odd(int):
    """Not equal to its own number."""

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


class OddStr(str):
    """Equal to its text, and hashed apart from it."""

    __slots__ = ()
    __eq__ = str.__eq__

    def __hash__(self) -> int:
        return 7


class Word(enum.StrEnum):
    YES = "yes"


@dataclass
class Parent:
    n: int


@dataclass
class Child(Parent):
    more: int = 0


class Doc(TypedDict):
    n: int


@pytest.mark.parametrize(
    ("annotation", "value", "part", "rule", "kind"),
    [
        (bool, 1, "", "needs a bool, not a value of type int", True),
        (int, True, "", "needs an int", True),
        (int, 1.0, "", "needs an int", True),
        (int, "1", "", "needs an int", True),
        (int, 2**63, "", "out of range", False),
        (int, -(2**63) - 1, "", "out of range", False),
        (int, Odd(3), "", "not equal to its plain value", False),
        (float, float("nan"), "", "NaN", False),
        (float, float("-inf"), "", "NaN", False),
        (float, True, "", "needs a float", True),
        (float, Decimal(1), "", "needs a float", True),
        (float, 2**53 + 1, "", "can not hold it exactly", False),
        (float, 10**400, "", "can not hold it exactly", False),
        (str, 1, "", "needs a str", True),
        (str, b"x", "", "needs a str", True),
        (str, Secret("x"), "", "needs a str", True),
        (str, None, "", "needs a str", True),
        (str, "a\ud800", "", "lone surrogate", False),
        (bytes, "x", "", "needs bytes", True),
        (bytes, bytearray(b"x"), "", "needs bytes", True),
        (Decimal, 1, "", "needs a Decimal", True),
        (Decimal, Decimal("sNaN"), "", "NaN", False),
        (Decimal, Decimal("Infinity"), "", "NaN", False),
        (UUID, "x", "", "needs a UUID", True),
        (datetime, datetime(2024, 1, 1), "", "naive", False),  # noqa: DTZ001 - the point
        (datetime, date(2024, 1, 1), "", "needs a datetime", True),
        (datetime, datetime.min.replace(tzinfo=timezone(timedelta(hours=1, seconds=1))), "", "out of range", False),
        (date, datetime(2024, 1, 1, tzinfo=UTC), "", "needs a date", True),
        (time, time(1, tzinfo=ZoneInfo("Europe/Berlin")), "", "whole minutes", False),
        (time, time(1, tzinfo=timezone(timedelta(seconds=1))), "", "whole minutes", False),
        (timedelta, 3, "", "needs a timedelta", True),
        (Word, "yes", "", "needs a member of Word", True),
        (Literal["a", 1], "b", "", "none of the declared literals", False),
        (Literal["a", 1], True, "", "plain str or int", True),
        (list[int], (1,), "", "needs a list", True),
        (list[int], [1, 2, "x"], "[2]", "needs an int", True),
        (tuple[int, ...], [1], "", "needs a tuple", True),
        (tuple[int, ...], Point(1), "", "needs a tuple", True),
        (tuple[int, int], (1,), "", "a tuple of 2 items, not of 1", True),
        (tuple[int, str], (1, 2), "[1]", "needs a str", True),
        (dict[str, int], {1: 1}, "{key of entry 0}", "needs a str", True),
        (dict[str, int], {"a": 1, "b\ud800": 1}, "{key of entry 1}", "lone surrogate", False),
        (dict[str, int], {"a": 1, OddStr("a"): 2}, "", "two keys of one text", False),
        (dict[str, list[int]], {"a": [], "b": [1, None]}, "{entry 1}[1]", "needs an int", True),
        (dict[str, int], collections.defaultdict(int), "", "needs a dict", True),
        (Parent, Child(1), "", "is a Child, a subclass of the declared Parent", True),
        (Parent, {"n": 1}, "", "needs a Parent, not a value of type dict", True),
        (Parent, Parent("x"), ".n", "needs an int", True),  # type: ignore[arg-type]
        (Parent, Parent, "", "needs a Parent", True),
        (Doc, {"n": "x"}, ".n", "needs an int", True),
        (Doc, Parent(1), "", "needs a Doc, a plain dict", True),
        (Id[Article], "1", "", "needs an int", True),
        (Id[Article], Article(id=1), "", "needs an int, not a value of type Article", True),
        (int, lambda: 1, "", "needs an int", True),
    ],
    ids=lambda value: ascii(value).split(" at 0x")[0][:30],
)
def test_refused_when_encoded(annotation: Any, value: Any, part: str, rule: str, kind: bool) -> None:
    # contract: W1, W2, W3
    holder = dataclasses.make_dataclass("Holder", [("x", annotation)])
    with pytest.raises(err.EncodeError) as caught:
        wire_type(holder, where=WHERE).encode(holder(value))
    assert str(caught.value).startswith(f"Holder.x{part}: ")
    assert rule in str(caught.value)
    assert isinstance(caught.value, TypeError) == kind


def test_a_field_without_a_value_is_named() -> None:  # contract: W1
    value = Parent(1)
    del value.n
    with pytest.raises(err.EncodeError, match=r"^Parent\.n: has no value"):
        wire_type(Parent, where=WHERE).encode(value)


def test_no_refusal_shows_the_value() -> None:  # contract: S6
    holder = dataclasses.make_dataclass("Holder", [("x", dict[str, Literal["a"]]), ("y", str)])
    for x, y in [({"s3cr3t": "s3cr3t"}, ""), ({}, "s3cr3t\ud800"), ({"s3cr3t\ud800": "a"}, ""), ("s3cr3t", "")]:
        with pytest.raises(err.EncodeError) as caught:
            wire_type(holder, where=WHERE).encode(holder(x, y))
        assert "s3cr3t" not in str(caught.value)
        assert caught.value.__suppress_context__
