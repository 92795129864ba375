"""What a stored payload may look like after somebody else had it, and what becomes of it then."""

from __future__ import annotations

import enum
import json
import uuid
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Literal, NotRequired, TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rowlock.errors import CorruptPayload
from rowlock.model.wire import WireType, wire_type


class Colour(enum.Enum):
    RED = "red"
    ONE = 1


class Extra(TypedDict):
    word: NotRequired[str]


@dataclass
class Leaf:
    n: int


@dataclass
class Everything:
    flag: bool
    n: int
    ratio: float
    text: str
    raw: bytes
    money: Decimal
    key: uuid.UUID
    at: datetime
    day: date
    clock: time
    span: timedelta
    colour: Colour
    pick: Literal["a", 1]
    leaf: Leaf
    maybe: Leaf | None
    many: list[Leaf]
    pair: tuple[int, str]
    some: tuple[int, ...]
    table: dict[str, int]
    extra: Extra


WIRE: WireType[Everything] = wire_type(Everything, where="job t")
VALUE = Everything(
    True, 1, 1.5, "téxt", b"raw", Decimal("1.10"), uuid.UUID(int=7), datetime(2024, 1, 2, 3, 4, 5, 6, UTC),
    date(2024, 1, 2), time(1, 2, 3), timedelta(seconds=1), Colour.RED, 1, Leaf(1), None, [Leaf(2)], (1, "x"),
    (1, 2), {"a": 1}, {"word": "w"},
)  # fmt: skip
TEXT = WIRE.encode(VALUE)
FIELDS: dict[str, Any] = json.loads(TEXT)


def refusal(payload: Any) -> str:
    with pytest.raises(CorruptPayload) as caught:
        WIRE.decode(payload)
    message = str(caught.value)
    assert "(W5)" in message
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    return message


def test_the_whole_is_sound() -> None:  # contract: W3
    assert WIRE.decode(TEXT) == VALUE
    assert WIRE.decode(json.dumps(FIELDS, indent=1)) == VALUE  # as a person would leave it


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("flag", [0, 1, "true", None]),
        ("n", [True, "1", 1.0, None, 2**63, -(2**63) - 1, 2**64, 10**40, [], {}]),
        ("ratio", [True, "1.5", None, 2**53 + 1, 10**30 + 1]),
        ("text", [1, None, ["x"]]),
        ("raw", ["!", "YQ", "YQ==\n", "é", 1, "=", "Y Q=="]),
        ("money", ["", "x", "NaN", "Infinity", "1_0", " 1", "1\n", "\u0661", "1E9999999999999999999", 1.5, 1]),
        ("key", ["x", "{00000000-0000-0000-0000-000000000007}", 7]),
        ("at", ["2024-01-02T03:04:05", "2024-13-02T03:04:05Z", "x", 0, "2024-01-02", None]),
        ("day", ["2024-02-30", "x", 1, "2024-01-02T00:00:00"]),
        ("clock", ["24:00:00", "x", 1]),
        ("span", ["P1Y", "x", 1, "P9999999999D", ""]),
        ("colour", ["RED", "blue", True, 1.0, None, [], {}]),
        ("pick", ["b", True, 1.0, 2, None, []]),
        ("leaf", [None, [], {}, {"n": 1, "m": 2}, {"m": 1}]),
        ("maybe", [0, [], {"n": None}]),
        ("many", [None, {}, [None], [{"n": 1}, {"n": "x"}]]),
        ("pair", [[1], [1, "x", 2], ["x", 1], {}, None]),
        ("some", [None, {}, "12", [1, "2"]]),
        ("table", [None, [], {"a": "x"}, {"a": None}]),
        ("extra", [None, {"word": None}, {"other": 1}]),
    ],
)
def test_a_wrong_piece_is_named_by_its_path(name: str, values: list[Any]) -> None:  # contract: W5
    for value in values:
        assert f"Everything.{name}" in refusal(json.dumps(FIELDS | {name: value})), value


@pytest.mark.parametrize(
    ("change", "path", "rule"),
    [
        ({"many": [{"n": 1}, {"n": True}]}, "Everything.many[1].n", "needs an integer, found a boolean"),
        ({"pair": [1, 2]}, "Everything.pair[1]", "needs a string, found an integer"),
        ({"table": {"a": 1, "b": "x"}}, "Everything.table{entry 1}", "needs an integer, found a string"),
        ({"leaf": {}}, "Everything.leaf.n", "is missing"),
        ({"maybe": {"n": 1, "x": 1, "y": 2}}, "Everything.maybe", "2 fields that the schema does not know"),
        ({"zzz": 1}, "Everything", "1 field that the schema does not know"),
    ],
)
def test_path_and_rule(change: dict[str, Any], path: str, rule: str) -> None:  # contract: W5
    assert f": {path}: " in (message := refusal(json.dumps(FIELDS | change)))
    assert rule in message


def test_each_missing_field_is_corrupt() -> None:  # contract: W5
    for name in FIELDS:
        rest = {other: value for other, value in FIELDS.items() if other != name}
        assert f"Everything.{name}: is missing" in refusal(json.dumps(rest))


@pytest.mark.parametrize(
    ("payload", "rule"),
    [
        (None, "no text is stored"),
        (5, "no text is stored"),
        (2**62, "no text is stored"),
        (1.5, "no text is stored"),
        (b"", "not JSON"),
        ("", "not JSON"),
        (b"\0", "not JSON"),
        (b"{", "not JSON"),
        (TEXT[:-1], "not JSON"),
        (TEXT + "x", "not JSON"),
        (b"\xef\xbb\xbf" + TEXT.encode(), "not JSON"),
        (TEXT.encode("utf-16"), "not JSON"),
        (TEXT.encode().replace(b"t\xc3\xa9xt", b"t\xc3xt"), "UTF-8"),
        (TEXT.encode().replace(b"t\xc3\xa9xt", b"\xed\xa0\x80"), "UTF-8"),
        (TEXT.replace("téxt", "\ud800"), "UTF-8"),
        (TEXT.replace("téxt", r"\ud800"), "not JSON"),
        (TEXT.replace("téxt", "a\0b"), "not JSON"),
        (TEXT.replace("1.5", "NaN"), "not JSON"),
        (TEXT.replace("1.5", "1e400"), "not JSON"),
        (TEXT.replace('"n":1', '"n":' + "9" * 5000), "not JSON"),
        ("[" * 100_000, "nested absurdly deep"),
        ('{"flag":' * 100_000, "nested absurdly deep"),
        ("null", "needs an object, found null"),
        ("[]", "needs an object, found an array"),
        ('"x"', "needs an object, found a string"),
        ("1.5", "needs an object, found a number"),
        (TEXT.replace('"n":1', '"n":1,"n":1', 1), "a name twice"),
        (TEXT.replace('{"a":1}', '{"a":1,"a":2}'), "a name twice"),
        (TEXT.replace('{"a":1}', r'{"a":1,"\u0061":2}'), "a name twice"),
    ],
    ids=range(29),
)
def test_a_text_that_is_no_payload(payload: Any, rule: str) -> None:  # contract: W5
    assert rule in refusal(payload)


def test_no_message_shows_a_value() -> None:  # contract: S6
    secret = "s3cr3t"
    wrongs: dict[str, Any] = {name: secret for name in FIELDS if name != "text"}
    wrongs |= {secret: 1, "text": [secret], "many": [{"n": secret}], "table": {secret: secret}, "leaf": {secret: 1}}
    for name, value in wrongs.items():
        assert secret not in refusal(json.dumps(FIELDS | {name: value}))
    assert secret not in refusal(TEXT[:-1] + secret)
    assert secret not in refusal(f'{{"{secret}')


@settings(max_examples=400)
@given(st.data())
def test_damaged_bytes_are_corrupt_or_a_value_and_nothing_else(data: st.DataObject) -> None:  # contract: W5
    damaged = bytearray(TEXT.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        piece = data.draw(st.binary(max_size=3) | st.sampled_from([b'"', b"{", b"[", b",", b"9" * 20, b"null", b"\\u"]))
        damaged[at : at + data.draw(st.integers(0, 3))] = piece
    try:
        value = WIRE.decode(bytes(damaged))
    except CorruptPayload:
        return
    assert WIRE.decode(WIRE.encode(value)) == value


@settings(max_examples=200)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=5,
    ),
    st.sampled_from(sorted(FIELDS)),
)
def test_any_json_in_any_field(piece: Any, name: str) -> None:  # contract: W5
    try:
        value = WIRE.decode(json.dumps(FIELDS | {name: piece}))
    except CorruptPayload:
        return
    assert WIRE.decode(WIRE.encode(value)) == value
