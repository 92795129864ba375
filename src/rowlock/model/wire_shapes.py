"""The shapes with parts: optional, list, tuple, dict, Enum, Literal, Id and recursion (contract W1 to W5).

Paths are only built when something does not fit: each level adds its part to the `Misfit` that passes through it.
"""

# Values are what this module checks; that a list holds "Unknown" is no finding here.
# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Sequence
from typing import Any

from rowlock.model.fingerprint import Schema
from rowlock.model.wire_base import Misfit, Shape, wrong_json, wrong_kind
from rowlock.model.wire_scalars import decode_str, encode_str

# How many objects and arrays may lie within each other in the payload of a recursive type. Both directions count,
# so that what is accepted when it is encoded can be decoded again, whatever room the caller's stack leaves: a level
# costs at most six frames.
NESTING_LIMIT = 100
_TOO_DEEP = f"is nested more than {NESTING_LIMIT} levels deep, or contains itself (W2, W5)"

_Convert = Callable[[Any], Any]


def optional_shape(inner: Shape) -> Shape:
    """`X | None`. An optional optional is one optional."""
    if inner.kind == "optional":
        return inner
    encode_inner, decode_inner = inner.encode, inner.decode

    def encode(value: Any) -> Any:
        return None if value is None else encode_inner(value)

    def decode(raw: Any) -> Any:
        return None if raw is None else decode_inner(raw)

    return Shape("optional", encode, decode, lambda outer: ["optional", inner.schema(outer)])


def list_shape(item: Shape) -> Shape:
    """`list[X]`."""
    encode_item, decode_item = item.encode, item.decode

    def encode(value: Any) -> Any:
        if type(value) is not list:
            raise wrong_kind("a list", value)
        return _each(encode_item, value)

    def decode(raw: Any) -> Any:
        if type(raw) is not list:
            raise wrong_json("an array", raw)
        return _each(decode_item, raw)

    return Shape("list", encode, decode, lambda outer: ["list", item.schema(outer)])


def many_tuple_shape(item: Shape) -> Shape:
    """`tuple[X, ...]`."""
    encode_item, decode_item = item.encode, item.decode

    def encode(value: Any) -> Any:
        if type(value) is not tuple:
            raise wrong_kind("a tuple", value)
        return _each(encode_item, value)

    def decode(raw: Any) -> Any:
        if type(raw) is not list:
            raise wrong_json("an array", raw)
        return tuple(_each(decode_item, raw))

    return Shape("tuple", encode, decode, lambda outer: ["tuple of", item.schema(outer)])


def _each(convert: _Convert, values: Sequence[Any]) -> list[Any]:
    done: list[Any] = []
    try:
        for value in values:
            done.append(convert(value))  # noqa: PERF401 - `done` says where it stopped
    except Misfit as misfit:
        misfit.under(f"[{len(done)}]")
        raise
    return done


def fixed_tuple_shape(items: Sequence[Shape]) -> Shape:
    """`tuple[X, Y]`."""
    size = len(items)

    def encode(value: Any) -> Any:
        if type(value) is not tuple:
            raise wrong_kind("a tuple", value)
        if len(value) != size:
            raise Misfit(f"needs a tuple of {size} items, not of {len(value)} (W1)", kind=True)
        return _each_its_own([item.encode for item in items], value)

    def decode(raw: Any) -> Any:
        if type(raw) is not list:
            raise wrong_json("an array", raw)
        if len(raw) != size:
            raise Misfit(f"needs an array of {size} items, found {len(raw)}")
        return tuple(_each_its_own([item.decode for item in items], raw))

    return Shape("tuple", encode, decode, lambda outer: ["tuple", [item.schema(outer) for item in items]])


def _each_its_own(converts: Sequence[_Convert], values: Sequence[Any]) -> list[Any]:
    return _each(lambda pair: pair[0](pair[1]), list(zip(converts, values, strict=True)))


def dict_shape(item: Shape) -> Shape:
    """`dict[str, X]`. Its keys are data, so a path names an entry by its place and never by its key."""
    encode_item, decode_item = item.encode, item.decode

    def encode(value: Any) -> Any:
        if type(value) is not dict:
            raise wrong_kind("a dict", value)
        return _each_entry(encode_str, encode_item, value)

    def decode(raw: Any) -> Any:
        if type(raw) is not dict:
            raise wrong_json("an object", raw)
        return _each_entry(decode_str, decode_item, raw)

    return Shape("dict", encode, decode, lambda outer: ["dict", item.schema(outer)])


def _each_entry(key: _Convert, item: _Convert, values: dict[Any, Any]) -> dict[str, Any]:
    done: dict[str, Any] = {}
    part = ""
    try:
        for name, value in values.items():
            part = "{key of entry %d}"
            plain = key(name)
            part = "{entry %d}"
            done[plain] = item(value)
    except Misfit as misfit:
        misfit.under(part % len(done))
        raise
    if len(done) != len(values):  # keys of a str subclass that hashes in its own way
        raise Misfit("has two keys of one text (W3); make them differ")
    return done


def enum_shape(cls: type[enum.Enum]) -> Shape:
    """An `Enum` whose members are all str or int, carried by value."""
    # Keyed with the type: 1 == True == 1.0, and a bool is no legal spelling of a member.
    members = {(value.__class__, value): member for member in cls for value in (member.value,)}

    def encode(value: Any) -> Any:
        if isinstance(value, cls):
            return value.value
        raise wrong_kind(f"a member of {cls.__qualname__}", value)

    def decode(raw: Any) -> Any:
        if type(raw) is not str and type(raw) is not int:
            raise wrong_json(f"the value of a member of {cls.__qualname__}", raw)
        member = members.get((type(raw), raw))
        if member is None:
            raise Misfit(f"{cls.__qualname__} has no member of this value")
        return member

    names: dict[str, Schema] = {member.name: member.value for member in cls}
    return Shape("enum", encode, decode, lambda _outer: ["enum", names])


def literal_shape(values: Sequence[str | int]) -> Shape:
    """`Literal[…]` of str and int."""
    known = {(type(value), value) for value in values}

    def encode(value: Any) -> Any:
        if type(value) is not str and type(value) is not int:
            raise wrong_kind("one of the literals' plain str or int values", value)
        if (type(value), value) not in known:
            raise Misfit("the value is none of the declared literals (W1)")
        return value

    def decode(raw: Any) -> Any:
        if type(raw) is not str and type(raw) is not int:
            raise wrong_json("one of the declared literals", raw)
        if (type(raw), raw) not in known:
            raise Misfit("the value is none of the declared literals")
        return raw

    def order(pair: tuple[type, str | int]) -> tuple[str, Any]:
        return pair[0].__name__, pair[1]

    constants: list[Schema] = [value for _, value in sorted(known, key=order)]
    return Shape("literal", encode, decode, lambda _outer: ["literal", constants])


def id_shape(identity: str, key: Shape) -> Shape:
    """`Id[Model]`: the plain key on the wire, the model in the schema (J9)."""
    return Shape("id", key.encode, key.decode, lambda _outer: ["id", identity, key.kind])


def refuse_depth(plain: Any) -> None:
    """Raise Misfit if plain JSON is nested too deep. Needed where a type is recursive; it goes level by level."""
    level = [plain]
    for _ in range(NESTING_LIMIT):
        level = [part for whole in level for part in _parts(whole) if type(part) is dict or type(part) is list]
        if not level:
            return
    raise Misfit(_TOO_DEEP)


def _parts(whole: Any) -> Any:
    return whole.values() if type(whole) is dict else whole


class _Nesting(threading.local):
    # Counts records, which stops a cycle early; how deep the JSON is, `refuse_depth` tells.
    depth = 0


_nesting = _Nesting()


def recursive_shape(target: Callable[[], Shape]) -> Shape:
    """A record type met inside itself; `target` is asked when all of it is compiled."""

    def counted(convert: _Convert, value: Any) -> Any:
        if _nesting.depth >= NESTING_LIMIT:
            raise Misfit(_TOO_DEEP)
        _nesting.depth += 1
        try:
            return convert(value)
        finally:
            _nesting.depth -= 1

    return Shape(
        "recursive",
        lambda value: counted(target().encode, value),
        lambda raw: counted(target().decode, raw),
        lambda outer: target().schema(outer),
    )
