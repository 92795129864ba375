"""Annotation -> shape, once per declared type (contract W1, W2). What has no shape is refused here, with its path."""

from __future__ import annotations

import collections.abc
import enum
import sys
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal, NewType, TypeVar, Union, get_args, get_origin

from rowlock.model.identity import ModelId, Secret, identity, is_mapped, resolve_key
from rowlock.model.wire_base import Shape
from rowlock.model.wire_hints import Place
from rowlock.model.wire_layouts import layout_of
from rowlock.model.wire_record import Record
from rowlock.model.wire_scalars import INT_MAX, INT_MIN, SCALARS
from rowlock.model.wire_shapes import (
    dict_shape,
    enum_shape,
    fixed_tuple_shape,
    id_shape,
    list_shape,
    literal_shape,
    many_tuple_shape,
    optional_shape,
    recursive_shape,
)

_DEPTH_LIMIT = 100
_ACCEPTED = (
    "use bool, int, float, str, bytes, Decimal, UUID, datetime, date, time, timedelta, Literal, Enum, Id[Model], "
    "optionals, list, tuple, dict[str, …] or records of these"
)
_CALLABLE: Any = get_origin(Callable[..., Any])
_REFUSED: dict[Any, str] = {
    Any: "Any says nothing about the value (W2); name its type",
    object: "object says nothing about the value (W2); name its type",
    set: "a set has no order on the wire and is refused (W2); use list[…] or tuple[…, ...]",
    frozenset: "a frozenset has no order on the wire and is refused (W2); use tuple[…, ...]",
    _CALLABLE: "a callable can not be carried (W2); pass a name that the handler knows",
    type(None): "None alone carries nothing (W1); leave the field out, or make it optional",
    None: "None alone carries nothing (W1); leave the field out, or make it optional",
    list: "a bare list is open (W2); say what it holds, as in list[int]",
    tuple: "a bare or empty tuple is open (W2); say what it holds, as in tuple[int, ...]",
    dict: "a bare dict is open (W2); say what it holds, as in dict[str, int]",
}


class Compiler:
    """Compiles one declaration. `localns`: names that annotations may use besides their module's."""

    def __init__(self, localns: Mapping[str, Any] | None) -> None:
        self._localns = localns
        self._records: dict[Any, Record] = {}
        self._unfinished: set[Any] = set()
        self.recursive = False  # whether a record was met inside itself
        self.runs_code = False  # whether decoding runs code of the user's
        self._containers: dict[Any, Callable[[tuple[Any, ...], Place, str], Shape]] = {
            Union: self._union,
            types.UnionType: self._union,
            list: self._list,
            tuple: self._tuple,
            dict: self._dict,
        }

    def shape(self, tp: Any, place: Place, module: str = "") -> Shape:
        """The shape of an annotation in a class of `module`. Raises DeclarationError with the path."""
        if place.depth > _DEPTH_LIMIT:
            raise place.error(f"the type is nested more than {_DEPTH_LIMIT} deep, or never ends (W5); flatten it")
        origin = get_origin(tp)
        if origin is Annotated:
            for marker in tp.__metadata__:
                if isinstance(marker, ModelId):
                    return self._id(marker, place, module)
        inner = _unwrapped(tp, origin)
        if inner is not tp:
            return self.shape(inner, Place(place.where, place.path, place.depth + 1), module)
        if isinstance(tp, TypeVar):
            raise place.kind(f"{tp} is open (W2); close the generic, as in Box[int]")
        if origin is Literal:
            return _literal(get_args(tp), place)
        compile_parts = self._containers.get(origin)
        if compile_parts is not None and get_args(tp):
            return compile_parts(get_args(tp), place, module)
        cls: Any = tp if origin is None else origin
        rule = _REFUSED.get(cls) if isinstance(cls, collections.abc.Hashable) else None
        if rule is not None:
            raise place.kind(rule)
        if isinstance(cls, type):
            return self._class(tp, cls, place)
        raise place.kind(f"{_shown(tp)} has no wire form (W1); {_ACCEPTED}")

    # --- generic containers ---------------------------------------------------------------------------------

    def _union(self, args: tuple[Any, ...], place: Place, module: str) -> Shape:
        others = [arg for arg in args if arg is not type(None)]
        if len(others) != 1 or len(others) == len(args):
            raise place.kind("a union other than X | None is refused (W2); use one record with optional fields")
        return optional_shape(self.shape(others[0], place, module))

    def _list(self, args: tuple[Any, ...], place: Place, module: str) -> Shape:
        return list_shape(self.shape(args[0], place.under("[]"), module))

    def _tuple(self, args: tuple[Any, ...], place: Place, module: str) -> Shape:
        if len(args) == 2 and args[1] is ...:
            return many_tuple_shape(self.shape(args[0], place.under("[]"), module))
        return fixed_tuple_shape([self.shape(arg, place.under(f"[{n}]"), module) for n, arg in enumerate(args)])

    def _dict(self, args: tuple[Any, ...], place: Place, module: str) -> Shape:
        if args[0] is not str:
            raise place.kind("the keys of a dict are str on the wire (W1); use dict[str, …], or a list of records")
        return dict_shape(self.shape(args[1], place.under("{}"), module))

    # --- classes --------------------------------------------------------------------------------------------

    def _class(self, tp: Any, cls: Any, place: Place) -> Shape:
        _refuse_secret(cls, place)
        if is_mapped(cls):
            raise place.kind(
                f"{cls.__name__} is an ORM-mapped class, and its row may have changed by the time the handler runs "
                f"(W2); pass Id[{cls.__name__}] and load it in the handler"
            )
        scalar = SCALARS.get(cls)
        if scalar is not None:
            return scalar
        if issubclass(cls, enum.Enum):
            return _enum(cls, place)
        if tuple in cls.__mro__:
            raise place.kind(f"{cls.__name__} is a NamedTuple (W1); use a frozen dataclass")
        return self._record(tp, cls, place)

    def _record(self, tp: Any, cls: type, place: Place) -> Shape:
        key = tp if isinstance(tp, collections.abc.Hashable) else repr(tp)
        known = self._records.get(key)
        if known is not None:
            if key not in self._unfinished:
                return known.shape
            self.recursive = True
            return recursive_shape(lambda: known.shape)
        layout = layout_of(tp, cls, place, self._localns)
        if layout is None:
            raise place.kind(f"{cls.__name__} has no wire form (W1); {_ACCEPTED}")
        self.runs_code = self.runs_code or layout.runs_code
        for name in layout.hints:
            _check_constant(name, place)
        record = self._records[key] = Record(layout)
        self._unfinished.add(key)
        fields = layout.hints.items()
        record.fill({name: self.shape(hint, place.under(f".{name}"), cls.__module__) for name, hint in fields})
        self._unfinished.discard(key)
        return record.shape

    def _id(self, marker: ModelId, place: Place, module: str) -> Shape:
        model: Any = marker.model
        if isinstance(model, str):
            known = {**vars(sys.modules.get(module, types)), **(self._localns or {})}
            model = known.get(model)
        if not isinstance(model, type):
            raise place.error(
                f"{marker!r} names no class that can be found (J9); import the model, or write Id[Model] with the class"
            )
        try:
            key = resolve_key(model, marker.key)
        except ValueError as exc:
            raise place.error(str(exc)) from exc
        return id_shape(identity(model), SCALARS[key])


def _unwrapped(tp: Any, origin: Any) -> Any:
    """One layer less of what only names or decorates a type: Annotated, NewType, Final, type aliases."""
    if origin is Annotated:
        return tp.__origin__
    if origin is Final:
        return get_args(tp)[0]
    if isinstance(tp, NewType):
        return tp.__supertype__
    if type(tp).__name__ == "TypeAliasType":
        return tp.__value__
    if type(origin).__name__ == "TypeAliasType":
        return origin.__value__[get_args(tp)]
    return tp


def _refuse_secret(cls: type, place: Place) -> None:
    pydantic: Any = sys.modules.get("pydantic")
    secrets: tuple[type, ...] = (Secret,)
    if pydantic is not None:
        known = (getattr(pydantic, name, None) for name in ("SecretStr", "SecretBytes", "Secret"))
        secrets += tuple(secret for secret in known if secret is not None)
    if issubclass(cls, secrets):
        root = cls.__module__.partition(".")[0]
        raise place.kind(
            f"{root}.{cls.__name__} is a secret, and payloads are stored readable (W2); pass a reference to it instead"
        )


def _literal(values: tuple[Any, ...], place: Place) -> Shape:
    for value in values:
        if type(value) is str or type(value) is int:
            _check_constant(value, place)
        else:
            raise place.kind(
                f"a literal of type {type(value).__name__} is refused, literals are str or int (W1); "
                f"use bool, an Enum, or Literal[…] | None"
            )
    return literal_shape(values)


def _enum(cls: type[enum.Enum], place: Place) -> Shape:
    if issubclass(cls, enum.Flag):
        raise place.kind(f"{cls.__name__} is a Flag, whose values combine (W1); use a list of a plain Enum, or an int")
    members = list(cls)
    if not members:
        raise place.kind(f"{cls.__name__} has no members (W1); give it some")
    for member in members:
        if type(member.value) is not str and type(member.value) is not int:
            raise place.kind(
                f"{cls.__name__}.{member.name} has a value of type {type(member.value).__name__}, and the members of "
                f"an Enum are str or int (W1); give it a str"
            )
        _check_constant(member.value, place)
    return enum_shape(cls)


def _check_constant(value: str | int, place: Place) -> None:
    if isinstance(value, int):
        if not INT_MIN <= value <= INT_MAX:
            raise place.error("an int of the declaration is beyond signed 64-bit (W1); use a str")
        return
    try:
        value.encode()
    except UnicodeEncodeError as exc:
        raise place.error("a str of the declaration holds a lone surrogate (W2); clean it") from exc


def _shown(tp: Any) -> str:
    return tp.__name__ if isinstance(tp, type) else str(tp)
