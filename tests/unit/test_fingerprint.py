"""The fingerprint of a schema: what it depends on, and what it does not."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, make_dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NewType, NotRequired, Optional, TypedDict, TypeVar
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest

from rowlock.model.fingerprint import fingerprint
from rowlock.model.identity import Id
from rowlock.model.wire import NO_INPUT, wire_type

T = TypeVar("T")
Number = NewType("Number", int)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Shade(enum.StrEnum):
    """The same members, in another order and of another class."""

    BLUE = "blue"
    RED = "red"
    AZURE = "blue"  # an alias is no member


class MoreColour(enum.Enum):
    RED = "red"
    BLUE = "blue"
    GREEN = "green"


class OtherValue(enum.Enum):
    RED = "red"
    BLUE = "b"


class OtherName(enum.Enum):
    RED = "red"
    BLEU = "blue"


class Article:
    id: int


class Photo:
    id: int


@dataclass
class Leaf:
    n: int


@dataclass
class Renamed:
    """With a text, a default and a method."""

    n: int = 5


@dataclass
class Two:
    n: int
    m: int


@dataclass
class Node:
    value: int
    next: Node | None


@dataclass
class Link:
    next: Link | None = None
    value: int = 0


@dataclass
class Box(Generic[T]):
    n: T


def of(*annotations: Any) -> str:
    """The fingerprint of a record with these fields."""
    fields = [(f"f{n}", annotation) for n, annotation in enumerate(annotations)]
    return wire_type(make_dataclass("Holder", fields), where="job t").fingerprint


def of_type(tp: Any) -> str:
    return wire_type(tp, where="job t").fingerprint


@dataclass
class AsDataclass:
    a: int
    b: list[str] | None = None


@dataclass
class Reordered:
    b: list[str] | None = None
    a: int = field(default=3, kw_only=True)


class AsStruct(msgspec.Struct, rename="upper", tag=True):
    b: list[str] | None
    a: int = 1


class AsTypedDict(TypedDict):
    """Text."""

    b: Optional[list[str]]  # noqa: UP045 - the spelling is the point
    a: int


@attrs.define
class AsAttrs:
    a: int = attrs.field(alias="x")
    b: list[str] | None = None


class AsModel(pydantic.BaseModel):
    b: list[str] | None = None
    a: int = pydantic.Field(gt=3, alias="x")


class Half(TypedDict):
    a: NotRequired[int]
    b: list[str] | None


@pytest.mark.parametrize("tp", [Reordered, AsStruct, AsTypedDict, AsAttrs, AsModel])
def test_the_spelling_of_a_schema_does_not_show(tp: Any) -> None:  # contract: W4
    assert of_type(tp) == of_type(AsDataclass)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Leaf, Renamed),
        (Leaf, Box[int]),
        (Node, Link),
        (Colour, Shade),
        (int, Number),
        (int, Annotated[int, "gt=3"]),
        (int | None, Optional[int]),  # noqa: UP045
        (Literal["a", "b", 1], Literal[1, "b", "a"]),
        (Id[Article], Id[Article, int]),
    ],
)
def test_what_does_not_matter(one: Any, other: Any) -> None:  # contract: W4
    assert of(one) == of(other)


ALL_DIFFERENT: list[Any] = [
    bool, int, float, str, bytes, Decimal, UUID, date, datetime,
    int | None, list[int], list[int | None], list[int] | None, tuple[int, ...], tuple[int], tuple[int, int],
    tuple[int, str], tuple[str, int], dict[str, int], dict[str, list[int]],
    Literal["1"], Literal[1], Literal["1", "2"], Colour, MoreColour, OtherValue, OtherName, Literal["red", "blue"],
    Id[Article], Id[Photo], Id[Article, str], Id[Article, UUID], Leaf, Two, Box[str], Node, Half, AsDataclass,
]  # fmt: skip


def test_each_material_difference_shows() -> None:  # contract: W4, J9
    prints = {str(annotation): of(annotation) for annotation in ALL_DIFFERENT}
    assert len(set(prints.values())) == len(ALL_DIFFERENT)
    assert of(int) != of(int, int)
    assert of_type(make_dataclass("H", [("f1", int)])) != of(int)


@dataclass
class Even:
    odd: Odd | None


@dataclass
class Odd:
    even: Even | None
    n: int


@dataclass
class Pair:
    first: Even
    second: Even


def test_recursion_is_told_by_depth() -> None:  # contract: W4
    assert of_type(Even) != of_type(Odd)
    assert len(of_type(Pair)) == 64
    again = make_dataclass("Again", [("second", Even), ("first", Even)])
    assert of_type(Pair) == of_type(again)


def test_canonical_text() -> None:  # contract: W4
    assert fingerprint({"b": 1, "a": ["é"]}) == fingerprint({"a": ["é"], "b": 1})
    assert fingerprint(["a", "b"]) != fingerprint(["b", "a"])


@dataclass
class Frozen:
    """Every kind at once."""

    flag: bool
    money: Decimal | None
    when: list[datetime]
    where: dict[str, tuple[int, ...]]
    colour: Colour
    pick: Literal["a", 2]
    both: tuple[str, bytes]
    node: Node


def test_known_fingerprints_stay() -> None:  # contract: W4
    """A change here makes every stored record of these schemas unknown: it needs a reason, and a release note."""
    assert NO_INPUT.fingerprint == "459b691e1fe0979024358682c945b5cd3a4ffdcb184f521bafbb17fbf0066f4e"
    assert of_type(Leaf) == "0f1d3891426a1e34c4c86497ecfc32e71a88cb8f2f5b082361a2bb3dff8ae2f2"
    assert of_type(AsDataclass) == "56692d85079a371e71a0e5cc2becb1286e2c046a9186b75c1414f501c9a67228"
    assert of_type(Node) == "9c0a532f2a954beccdbfd3b4704b6d973fcc62a197b58ffd8e7f38deae478051"
    assert of_type(Half) == "7cd1fc8e4e3af584026e54cb0cf12841caab7445435d48a90f4398c870d191d5"
    assert of_type(Frozen) == "1301a48783f9d472ac9645480a2f08cef72106863c7fc0b4bb03d407424a1aee"
