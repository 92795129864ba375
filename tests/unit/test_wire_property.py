"""Schemas nobody thought of: whatever they hold comes back, and whatever is broken in them is corrupt and no more."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import random
import typing
import uuid
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, Literal, NamedTuple

import attrs
import msgspec
import pydantic
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rowlock.errors import CorruptPayload
from rowlock.model.identity import Id
from rowlock.model.wire import WireType, wire_type

SECRET = "s3cr3t"
QUICK = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


class Colour(enum.Enum):
    RED = "red"
    ONE = 1


class Model:
    id: uuid.UUID


class Kind(NamedTuple):
    """An annotation, and what it may hold."""

    annotation: Any
    values: st.SearchStrategy[Any]


def _zones(resolution: timedelta) -> st.SearchStrategy[Any]:
    most = timedelta(hours=23, minutes=59) // resolution
    return st.integers(-most, most).map(lambda n: timezone(n * resolution))


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).map(lambda text: SECRET + text)
INT = st.integers(-(2**63), 2**63 - 1)
ZONES = _zones(timedelta(minutes=1)) | _zones(timedelta(seconds=1))
# A year from the ends, so that every offset can be taken off.
MOMENTS = st.datetimes(datetime(2, 1, 1), datetime(9998, 12, 31), timezones=ZONES)  # noqa: DTZ001 - zones are drawn
SCALARS = [
    Kind(bool, st.booleans()),
    Kind(int, INT),
    Kind(float, st.floats(allow_nan=False, allow_infinity=False)),
    Kind(str, TEXT),
    Kind(bytes, st.binary(max_size=8)),
    Kind(Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    Kind(Decimal, st.builds(lambda n, e: Decimal(n).scaleb(e), st.integers(-9, 9), st.integers(-9999, 9999))),
    Kind(uuid.UUID, st.uuids()),
    Kind(datetime, MOMENTS),
    Kind(date, st.dates()),
    Kind(time, st.times() | st.times(timezones=_zones(timedelta(minutes=1)))),
    Kind(timedelta, st.timedeltas() | st.sampled_from([timedelta.min, timedelta.max, timedelta.resolution])),
    Kind(Colour, st.sampled_from(Colour)),
    Kind(Literal["a", 1], st.sampled_from(["a", 1])),
    Kind(Id[Model], st.uuids()),
]


def _as_dataclass(fields: dict[str, Any]) -> Any:
    return dataclasses.make_dataclass("Made", list(fields.items()))


def _as_struct(fields: dict[str, Any]) -> Any:
    return msgspec.defstruct("Made", list(fields.items()))


def _as_typed_dict(fields: dict[str, Any]) -> Any:
    return typing.TypedDict("Made", fields)  # type: ignore[operator]


def _as_attrs(fields: dict[str, Any]) -> Any:
    return attrs.make_class("Made", {name: attrs.field(type=hint) for name, hint in fields.items()})


def _as_model(fields: dict[str, Any]) -> Any:
    config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    return pydantic.create_model("Made", __config__=config, **{name: (hint, ...) for name, hint in fields.items()})


MAKERS: list[Callable[[dict[str, Any]], Any]] = [_as_dataclass, _as_struct, _as_typed_dict, _as_attrs, _as_model]


def _instance(cls: Any, values: dict[str, Any]) -> Any:
    if hasattr(cls, "model_construct"):  # what pydantic makes of values is not the point
        return cls.model_construct(**values)
    return cls(**values)


def _record(maker: Callable[[dict[str, Any]], Any], parts: list[Kind]) -> Kind:
    fields = {f"f{n}": part for n, part in enumerate(parts)}
    cls = maker({name: part.annotation for name, part in fields.items()})
    held = st.fixed_dictionaries({name: part.values for name, part in fields.items()})
    return Kind(cls, held.map(lambda values: _instance(cls, values)))


def _around(inner: st.SearchStrategy[Kind]) -> st.SearchStrategy[Kind]:
    def few(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.lists(values, max_size=3)

    return st.one_of(
        inner.map(lambda one: Kind(one.annotation | None, st.none() | one.values)),
        inner.map(lambda one: Kind(list[one.annotation], few(one.values))),
        inner.map(lambda one: Kind(tuple[one.annotation, ...], few(one.values).map(tuple))),
        inner.map(lambda one: Kind(dict[str, one.annotation], st.dictionaries(TEXT, one.values, max_size=3))),
        st.tuples(inner, inner).map(
            lambda two: Kind(tuple[two[0].annotation, two[1].annotation], st.tuples(two[0].values, two[1].values))
        ),
        st.builds(_record, st.sampled_from(MAKERS[:-1]), st.lists(inner, max_size=3)),
    )


KINDS = st.recursive(st.sampled_from(SCALARS), _around, max_leaves=5)
RECORDS = st.builds(_record, st.sampled_from(MAKERS[:-1]), st.lists(KINDS, min_size=1, max_size=4))


def same(one: Any, other: Any) -> bool:
    """Equal, of one type, all the way down."""
    if type(one) is not type(other):
        return False
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, float):
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    if isinstance(one, Decimal):
        return one.as_tuple() == other.as_tuple()
    if dataclasses.is_dataclass(one):
        return same(vars(one), vars(other))
    return bool(one == other)


@QUICK
@given(st.data())
def test_any_value_of_any_schema_comes_back(data: st.DataObject) -> None:  # contract: W1, W3
    kind = data.draw(RECORDS)
    wire: WireType[Any] = wire_type(kind.annotation, where="job t")
    for _ in range(3):
        value = data.draw(kind.values)
        text = wire.encode(value)
        assert same(wire.decode(text), value)
        assert wire.encode(wire.decode(text.encode())) == text
        spaced = json.dumps(json.loads(text), indent=1, ensure_ascii=True)  # written in another way, the same
        assert same(wire.decode(spaced), value)


@QUICK
@given(st.lists(KINDS, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_no_kind_of_record_and_no_order_shows(parts: list[Kind], order: random.Random) -> None:  # contract: W4
    fields = [(f"f{n}", part.annotation) for n, part in enumerate(parts)]
    prints: set[str] = set()
    for maker in MAKERS[: -1 if any("Made" in str(hint) for _, hint in fields) else None]:
        order.shuffle(fields)
        prints.add(wire_type(maker(dict(fields)), where="job t").fingerprint)
    assert len(prints) == 1


def _leaves(piece: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    parts = piece.items() if isinstance(piece, dict) else enumerate(piece) if isinstance(piece, list) else ()
    return [path, *(found for name, part in parts for found in _leaves(part, (*path, name)))]


def _replaced(piece: Any, path: tuple[Any, ...], by: Any) -> Any:
    if not path:
        return by
    copy = piece.copy()
    copy[path[0]] = _replaced(piece[path[0]], path[1:], by)
    return copy


PIECES = st.sampled_from(
    [None, True, 0, -1, 2**63, 10**30, 0.5, 1e300, "", SECRET, SECRET + "\0", [], [SECRET], {}, {SECRET: SECRET}]
)


@QUICK
@given(st.data())
def test_a_piece_of_another_kind_is_corrupt_and_does_not_show(data: st.DataObject) -> None:  # contract: W5, S6
    kind = data.draw(RECORDS)
    wire: WireType[Any] = wire_type(kind.annotation, where="job t")
    whole = json.loads(wire.encode(data.draw(kind.values)))
    path = data.draw(st.sampled_from(_leaves(whole)))
    try:
        value = wire.decode(json.dumps(_replaced(whole, path, data.draw(PIECES))))
    except CorruptPayload as exc:
        message = str(exc)
    else:
        message = ""
        assert same(wire.decode(wire.encode(value)), value)
    assert SECRET not in message


@QUICK
@given(st.data())
def test_damaged_bytes_of_any_schema(data: st.DataObject) -> None:  # contract: W5, S6
    kind = data.draw(RECORDS)
    wire: WireType[Any] = wire_type(kind.annotation, where="job t")
    damaged = bytearray(wire.encode(data.draw(kind.values)).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(damaged)))
        piece = data.draw(
            st.binary(max_size=2) | st.sampled_from([b'"', b"{", b"]", b",", b"1e999", b"null", b"\\ud8"])
        )
        damaged[at : at + data.draw(st.integers(0, 4))] = piece
    try:
        value = wire.decode(bytes(damaged))
    except CorruptPayload as exc:
        message = str(exc)
    else:
        message = ""
        assert same(wire.decode(wire.encode(value)), value)
    assert SECRET not in message
