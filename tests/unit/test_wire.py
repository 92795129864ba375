"""What travels, and comes back as it was: every kind of field and every kind of record."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Final, Generic, Literal, NewType, NotRequired, Required, TypedDict, TypeVar
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pydantic
import pytest
from typing_extensions import TypeAliasType

from rowlock.errors import CorruptPayload, DeclarationError, EncodeError, EncodeTypeError
from rowlock.model.wire import NO_INPUT, wire_type
from rowlock.model.wire_shapes import NESTING_LIMIT

T = TypeVar("T")
UserNo = NewType("UserNo", int)
Tags = TypeAliasType("Tags", list[str])
EAST = timezone(timedelta(hours=5, minutes=30))


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Word(enum.StrEnum):
    YES = "yes"


class Shout(str):
    """A str with extras that is equal to its text."""

    __slots__ = ()


def there_and_back(tp: Any, value: Any) -> Any:
    wire = wire_type(tp, where="job t")
    text = wire.encode(value)
    assert "\0" not in text
    assert wire.decode(text) == wire.decode(text.encode())
    return wire.decode(text)


def carried(annotation: Any, value: Any) -> Any:
    holder = dataclasses.make_dataclass("Holder", [("x", annotation)])
    return there_and_back(holder, holder(value)).x


# --- scalars and containers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (bool, True),
        (int, 2**63 - 1),
        (int, -(2**63)),
        (float, 1e-320),
        (float, 1.7976931348623157e308),
        (str, ""),
        (str, "a\0b"),
        (str, "\u2028 é e\u0301 \U0001f600 \x7f"),
        (bytes, bytes(range(256))),
        (bytes, b""),
        (Decimal, Decimal("-0.00")),
        (Decimal, Decimal("1E+400")),
        (Decimal, Decimal("1.23456789012345678901234567890123456789")),
        (uuid.UUID, uuid.UUID(int=2**128 - 1)),
        (datetime, datetime(2024, 2, 29, 23, 59, 59, 999999, UTC)),
        (datetime, datetime(2024, 2, 29, 1, 2, 3, 4, EAST)),
        (datetime, datetime.max.replace(tzinfo=UTC)),
        (datetime, datetime.min.replace(tzinfo=UTC)),
        (date, date(1, 1, 1)),
        (date, date.max),
        (time, time(23, 59, 59, 1)),
        (time, time(23, 59, 59, tzinfo=EAST)),
        (timedelta, timedelta.max),
        (timedelta, timedelta.min),
        (timedelta, timedelta(microseconds=-1)),
        (Colour, Colour.BLUE),
        (Level, Level.HIGH),
        (Word, Word.YES),
        (Literal["a", 1], "a"),
        (Literal["a", 1], 1),
        (UserNo, UserNo(3)),
        (Tags, ["a", "b"]),
        (Annotated[int, "anything"], 3),
        (Final[int], 3),
        (int | None, None),
        (int | None, 0),
        (list[int], []),
        (list[dict[str, Decimal]], [{"a": Decimal("1.10")}, {}]),
        (tuple[int, ...], (1, 2, 3)),
        (tuple[int, str, Colour], (1, "x", Colour.RED)),
        (dict[str, list[int | None]], {"a\0b": [1, None], "": []}),
    ],
)
def test_comes_back_equal_and_of_its_type(annotation: Any, value: Any) -> None:  # contract: W1, W3
    result = carried(annotation, value)
    assert result == value
    assert type(result) is type(value)
    assert repr(result) == repr(value)  # Decimal's exponent, -0.0


def test_minus_zero_keeps_its_sign() -> None:  # contract: W3
    assert math.copysign(1, carried(float, -0.0)) == -1


@pytest.mark.parametrize("value", [3, 2**53, -1])
def test_an_int_given_for_a_float_becomes_one(value: int) -> None:  # contract: W1
    assert type(carried(float, value)) is float
    assert carried(float, value) == value


@pytest.mark.parametrize(
    ("annotation", "value", "plain"),
    [(str, Shout("x"), str), (str, Word.YES, str), (int, Level.LOW, int), (dict[str, int], {Shout("k"): 1}, dict)],
)
def test_an_equal_subclass_is_carried_by_its_plain_value(annotation: Any, value: Any, plain: type) -> None:
    # contract: W3
    result = carried(annotation, value)
    assert result == value
    assert type(result) is plain


def test_the_subclass_of_a_driver_is_a_uuid() -> None:  # contract: W1
    class DriverUUID(uuid.UUID):
        pass

    assert type(carried(uuid.UUID, DriverUUID(int=5))) is uuid.UUID


@pytest.mark.parametrize(
    "zone",
    [timezone(timedelta(hours=1, seconds=7)), timezone(timedelta(microseconds=-1)), ZoneInfo("Europe/Amsterdam")],
)
def test_odd_offsets_keep_the_instant(zone: Any) -> None:  # contract: W1
    before = datetime(1890, 5, 1, 12, 0, 0, 1, zone)  # local mean time: Amsterdam was 19 min 32 s ahead
    assert carried(datetime, before).astimezone(UTC) == before.astimezone(UTC)


def test_both_sides_of_a_repeated_hour_are_told_apart() -> None:  # contract: W1
    for fold in (0, 1):
        moment = datetime(2024, 10, 27, 2, 30, fold=fold, tzinfo=ZoneInfo("Europe/Berlin"))
        assert carried(datetime, moment).astimezone(UTC) == moment.astimezone(UTC)


# --- kinds of records ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    day: date
    note: str = ""


class Struct(msgspec.Struct, rename="camel", omit_defaults=True, tag="s"):
    inner_value: Inner
    when: datetime | None = None


class Total(TypedDict):
    a: int
    b: NotRequired[str]


class Partial(TypedDict, total=False):
    a: Required[int]
    b: Annotated[NotRequired[str], "x"]


@attrs.define
class Attrs:
    _private: int
    shown: str = attrs.field(default="", alias="other")


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)
    number: int = pydantic.Field(default=1, alias="no", gt=0)
    inner: Inner | None = None
    child: Model | None = None


@dataclass
class Defaults:
    items: list[int] = field(default_factory=list)
    hidden: int = field(default=3, compare=False, repr=False)
    word: str = field(default="w", kw_only=True)


@pytest.mark.parametrize(
    "value",
    [
        Inner(day=date(2020, 1, 1)),
        Struct(Inner(day=date(2020, 1, 1), note="n"), datetime(2020, 1, 1, tzinfo=UTC)),
        Attrs(1, "x"),
        Model(no=2, inner=Inner(day=date.min), child=Model(child=Model())),
        Defaults([1], hidden=9, word="v"),
    ],
)
def test_every_kind_of_record(value: Any) -> None:  # contract: W1, W3
    result = there_and_back(type(value), value)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize("tp", [Total, Partial])
def test_a_typed_dict_may_lack_what_it_says(tp: Any) -> None:  # contract: W1
    assert there_and_back(tp, {"a": 1}) == {"a": 1}
    assert there_and_back(tp, {"b": "x", "a": 1}) == {"a": 1, "b": "x"}
    with pytest.raises(EncodeTypeError, match=r"\.a: is missing"):
        there_and_back(tp, {"b": "x"})
    with pytest.raises(EncodeTypeError, match="1 field that the schema does not know"):
        there_and_back(tp, {"a": 1, "secret": 2})


def test_all_fields_are_written_by_name_in_declared_order() -> None:  # contract: W3
    text = wire_type(Struct, where="job t").encode(Struct(Inner(day=date(2020, 1, 1))))
    assert text == '{"inner_value":{"day":"2020-01-01","note":""},"when":null}'
    assert json.loads(wire_type(Model, where="job t").encode(Model()))["number"] == 1


def test_a_validator_that_is_no_fixed_point_does_not_change_what_was_sent() -> None:  # contract: W3
    class Hashed(pydantic.BaseModel):
        word: str
        _length: int = pydantic.PrivateAttr(default=0)

        @pydantic.field_validator("word")
        @classmethod
        def digest(cls, word: str) -> str:
            return f"#{word}"

        def model_post_init(self, context: Any) -> None:
            self._length = 1

    sent = Hashed(word="x")
    assert there_and_back(Hashed, sent) == sent


@dataclass
class Counted:
    n: int

    def __post_init__(self) -> None:
        self.n += 1


@dataclass(frozen=True, slots=True)
class CountedFrozen:
    n: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", self.n + 1)


class CountedStruct(msgspec.Struct, frozen=True):
    n: int

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "n", self.n + 1)


@attrs.frozen
class CountedAttrs:
    n: int = attrs.field(converter=lambda n: n + 1)


@pydantic.dataclasses.dataclass
class CountedPydantic:
    n: int

    @pydantic.field_validator("n")
    @classmethod
    def count(cls, n: int) -> int:
        return n + 1


@dataclass
class CountedByHand:
    n: int

    def __init__(self, n: int) -> None:
        self.n = n + 1


@pytest.mark.parametrize(
    "tp",
    [Counted, CountedFrozen, CountedStruct, CountedAttrs, CountedPydantic, CountedByHand],
    ids=lambda tp: tp.__name__,
)
def test_a_constructor_that_changes_values_does_not_change_what_was_sent(tp: Any) -> None:  # contract: W3
    assert there_and_back(tp, tp(1)).n == 2


def test_what_could_not_be_decoded_is_refused_when_encoded() -> None:  # contract: W3, J5, S6
    class Parsed(pydantic.BaseModel):
        items: pydantic.Json[list[int]]  # takes a text, and holds a list

    changed = Model(no=77171)
    changed.__dict__["number"] = -77171
    outer = Model(child=changed)
    for value in (Parsed(items="[77171]"), outer):  # type: ignore[arg-type]
        with pytest.raises(EncodeError, match=r"the constructor of \S*(Parsed|Model) refused the values") as caught:
            wire_type(type(value), where="job t").encode(value)
        assert "77171" not in str(caught.value)
    assert "Model.child: " in str(caught.value)


def test_what_a_constructor_refuses_is_corrupt_and_its_text_stays_out() -> None:  # contract: W5, S6
    @dataclass
    class Even:
        n: int

        def __post_init__(self) -> None:
            if self.n % 2:
                raise ValueError(f"odd: {self.n}")

    for tp, payload in [(Even, '{"n":77171}'), (Model, '{"number":-77171,"inner":null,"child":null}')]:
        with pytest.raises(CorruptPayload) as caught:
            wire_type(tp, where="job t").decode(payload)
        assert "77171" not in str(caught.value)
        assert "constructor" in str(caught.value)


# --- generics and recursion ----------------------------------------------------------------------------------


@dataclass
class Box(Generic[T]):
    content: T
    more: list[T] = field(default_factory=list)


@dataclass
class Named(Box[int], Generic[T]):
    """T here is another one than Box's."""

    name: T | None = None


class StructBox(msgspec.Struct, Generic[T]):
    content: T | None


class DictBox(TypedDict, Generic[T]):
    content: T


@attrs.define
class AttrsBox(Generic[T]):
    content: T


class ModelBox(pydantic.BaseModel, Generic[T]):
    content: T


@pytest.mark.parametrize(
    ("tp", "value"),
    [
        (Box[int], Box(1, [2])),
        (Box[Box[str]], Box(Box("a"))),
        (Named[str], Named(1, [2], "x")),
        (StructBox[date], StructBox(date(2020, 1, 1))),
        (DictBox[int], {"content": 1}),
        (AttrsBox[Decimal], AttrsBox(Decimal("1.0"))),
        (ModelBox[int], ModelBox[int](content=3)),
    ],
)
def test_closed_generics(tp: Any, value: Any) -> None:  # contract: W1
    assert there_and_back(tp, value) == value


@dataclass
class Node:
    value: int
    next: Node | None = None
    branches: dict[str, list[Node]] = field(default_factory=dict)


def chain(length: int) -> Node:
    node = Node(0)
    for n in range(length):
        node = Node(n, node)
    return node


def test_a_record_may_hold_its_own_kind() -> None:  # contract: W1
    tree = Node(1, Node(2), {"a": [Node(3), Node(4, Node(5))]})
    assert there_and_back(Node, tree) == tree


def test_nesting_has_a_limit_that_both_directions_share() -> None:  # contract: W2, W5
    wire = wire_type(Node, where="job t")
    deepest = chain(NESTING_LIMIT - 2)  # records, and within the last one an empty dict
    text = wire.encode(deepest)
    assert wire.encode(wire.decode(text)) == text
    with pytest.raises(EncodeError, match="levels deep"):
        wire.encode(Node(1, deepest))
    with pytest.raises(CorruptPayload, match="levels deep"):
        wire.decode('{"value":1,"branches":{},"next":' + text + "}")


def test_what_is_encoded_near_the_limit_is_decoded_deep_in_a_stack() -> None:  # contract: W3, W5
    """The containers between two records count as well: 100 records with two each would take 900 frames."""
    wire = wire_type(Node, where="job t")
    node = Node(0)
    for n in range((NESTING_LIMIT - 2) // 3):
        node = Node(n, None, {"a": [node]})
    text = wire.encode(node)

    def at(depth: int) -> Node:
        return at(depth - 1) if depth else wire.decode(text)

    assert at(200) == node
    with pytest.raises(EncodeError, match="levels deep"):
        wire.encode(Node(1, None, {"a": [node]}))


def test_a_cycle_is_refused() -> None:  # contract: W2
    node = Node(1)
    node.branches["a"] = [node]
    with pytest.raises(EncodeError, match="contains itself"):
        wire_type(Node, where="job t").encode(node)


def test_a_type_that_never_ends_is_refused() -> None:  # contract: W2
    @dataclass
    class Grow(Generic[T]):
        inner: Grow[list[T]] | None

    with pytest.raises(DeclarationError, match="never ends"):
        wire_type(Grow[int], where="job t")


# --- names, cache, no input ----------------------------------------------------------------------------------


def test_names_of_an_enclosing_function_are_resolved() -> None:  # contract: J5
    @dataclass
    class Local:
        n: int

    @dataclass
    class Outer:
        local: Local
        again: Outer | None

    value = Outer(Local(1), Outer(Local(2), None))
    wire = wire_type(Outer, where="job t", localns={"Local": Local})
    assert wire.decode(wire.encode(value)) == value


def test_one_type_is_compiled_once() -> None:
    first = wire_type(Node, where="job a")
    assert wire_type(Node, where="job b") is first
    assert first.python_type is Node
    assert wire_type(Box[int], where="job b").python_type is Box
    unhashable: Callable[..., Any] = wire_type
    assert unhashable(Annotated[Node, []], where="job b").fingerprint == first.fingerprint


def test_no_input() -> None:  # contract: J3
    assert wire_type(None, where="job t") is NO_INPUT
    assert NO_INPUT.python_type is None
    assert NO_INPUT.encode(None) == "null"
    assert NO_INPUT.decode(b"null") is None
    with pytest.raises(EncodeTypeError, match="takes no input"):
        NO_INPUT.encode(Node(1))  # type: ignore[arg-type]
    with pytest.raises(CorruptPayload, match="takes no input"):
        NO_INPUT.decode("{}")
