"""The shape of a record, whatever kind of class declares it (contract W1, W4, W5)."""

# Values are what this module checks; that a dict holds "Unknown" is no finding here.
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rowlock.model.fingerprint import Schema
from rowlock.model.wire_base import Misfit, Outer, Shape, wrong_json, wrong_kind

_Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Layout:
    """What a class says about itself: its fields' annotations in order, and how an instance is made."""

    cls: type
    hints: dict[str, Any]
    build: Callable[[dict[str, Any]], Any]
    runs_code: bool = False  # whether making one runs code of the user's, which may refuse the values
    optional: frozenset[str] = frozenset()  # the keys that a TypedDict may lack
    is_dict: bool = False


class Record:
    """The codec of one layout. All fields are written; all are needed when reading, but those a TypedDict may lack."""

    __slots__ = ("_build", "_decoders", "_encoders", "_fields", "_layout", "_names", "shape")

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._build = layout.build
        self._names = frozenset(layout.hints)
        self._fields: dict[str, Shape] = {}
        self._encoders: list[tuple[str, _Convert]] = []
        self._decoders: list[tuple[str, _Convert]] = []
        encode = self._encode_dict if layout.is_dict else self._encode_object
        decode = self._decode_dict if layout.is_dict else self._decode_object
        self.shape = Shape("record", encode, decode, self._schema)

    def fill(self, fields: dict[str, Shape]) -> None:
        """Set the fields' shapes. Apart from the constructor, because they may refer back to this record."""
        self._fields = fields
        self._encoders = [(name, shape.encode) for name, shape in fields.items()]
        self._decoders = [(name, shape.decode) for name, shape in fields.items()]

    def _encode_object(self, value: Any) -> Any:
        if type(value) is not self._layout.cls:
            raise self._not_this_class(value)
        plain: dict[str, Any] = {}
        name = ""
        try:
            for name, encode in self._encoders:
                plain[name] = encode(getattr(value, name))
        except Misfit as misfit:
            misfit.under(f".{name}")
            raise
        except AttributeError:
            if hasattr(value, name):  # not the missing value, but something that went wrong below it
                raise
            raise Misfit("has no value (W1); set it").under(f".{name}") from None
        return plain

    def _encode_dict(self, value: Any) -> Any:
        if type(value) is not dict:
            raise wrong_kind(f"a {self._layout.cls.__qualname__}, a plain dict", value)
        self._check_names(value, lambda rule: Misfit(f"{rule} (W1)", kind=True))
        return self._each(self._encoders, value)

    def _not_this_class(self, value: object) -> Misfit:
        cls = self._layout.cls
        if isinstance(value, cls):
            return Misfit(
                f"is a {type(value).__qualname__}, a subclass of the declared {cls.__qualname__}: what it adds "
                f"would be lost (W3); pass a {cls.__qualname__}, or declare the subclass",
                kind=True,
            )
        return wrong_kind(f"a {cls.__qualname__}", value)

    def _decode_dict(self, raw: Any) -> dict[str, Any]:
        if type(raw) is not dict:
            raise wrong_json("an object", raw)
        self._check_names(raw, Misfit)
        return self._each(self._decoders, raw)

    def _decode_object(self, raw: Any) -> Any:
        if type(raw) is not dict:
            raise wrong_json("an object", raw)
        if raw.keys() != self._names:
            self._check_names(raw, Misfit)
        # As `_each` does it, spelled out: this runs once for every record that a worker takes.
        values: dict[str, Any] = {}
        name = ""
        try:
            for name, decode in self._decoders:
                values[name] = decode(raw[name])
        except Misfit as misfit:
            misfit.under(f".{name}")
            raise
        try:
            return self._build(values)
        except MemoryError:
            raise  # says something about this process, nothing about the payload
        except Exception as exc:  # noqa: BLE001 - a constructor of the user's may raise anything
            # The class alone: the text of an error of the user's own may hold the value (S6).
            raise Misfit(
                f"the constructor of {self._layout.cls.__qualname__} refused the values with {type(exc).__qualname__}"
            ) from None

    @staticmethod
    def _each(converts: list[tuple[str, _Convert]], values: dict[str, Any]) -> dict[str, Any]:
        done: dict[str, Any] = {}
        name = ""
        try:
            for name, convert in converts:
                if name in values:
                    done[name] = convert(values[name])
        except Misfit as misfit:
            misfit.under(f".{name}")
            raise
        return done

    def _check_names(self, values: dict[Any, Any], refuse: Callable[[str], Misfit]) -> None:
        if values.keys() == self._names:
            return
        for name in self._fields:
            if name not in values and name not in self._layout.optional:
                raise refuse("is missing").under(f".{name}")
        unknown = len(values.keys() - self._names)  # their names are data, so only their number is said
        if unknown:
            raise refuse(f"has {unknown} {'field' if unknown == 1 else 'fields'} that the schema does not know")

    def _schema(self, outer: Outer) -> Schema:
        if self in outer:
            # Inside itself: how many records up, never its name, on which the fingerprint does not depend.
            return ["record above", len(outer) - outer.index(self)]
        inside = (*outer, self)
        fields: dict[str, Schema] = {name: shape.schema(inside) for name, shape in self._fields.items()}
        for name in self._layout.optional:
            fields[name] = ["may be absent", fields[name]]
        return ["record", fields]
