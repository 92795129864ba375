"""The wire schema: what may travel in a payload, and the codec that carries it (contract W1 to W5, J9).

An annotation is compiled once into a tree of shapes (`wire_compile`). Encoding goes value -> plain JSON -> text;
decoding goes text -> plain JSON -> value, strictly: every field is written, every field is needed, nothing else may
be there, and no type stands for another. Errors name a path and a rule, never a value (S6).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Generic, TypeVar, get_origin, overload
from weakref import WeakValueDictionary

import msgspec

from rowlock.errors import CorruptPayload, DeclarationError, EncodeError, EncodeTypeError
from rowlock.model.fingerprint import fingerprint
from rowlock.model.identity import Id, Secret
from rowlock.model.wire_base import Misfit, Shape, wrong_json, wrong_kind
from rowlock.model.wire_compile import Compiler
from rowlock.model.wire_hints import Place
from rowlock.model.wire_shapes import refuse_depth

__all__ = ["NO_INPUT", "Id", "Secret", "WireType", "wire_type"]

T = TypeVar("T")

_to_json = msgspec.json.Encoder().encode
_from_json = msgspec.json.Decoder().decode


class WireType(Generic[T]):
    """The compiled codec of one input type. Made by `wire_type`; stateless, so any thread may use it.

    `python_type` is the record's class, None for no input; `name` is what messages call it; `fingerprint` is the
    SHA-256 of its schema in hexadecimal (W4).
    """

    def __init__(
        self, python_type: type | None, name: str, shape: Shape, *, recursive: bool = False, runs_code: bool = False
    ) -> None:
        self.python_type = python_type
        self.name = name
        self.fingerprint = fingerprint(shape.schema(()))
        self._encode = shape.encode
        self._decode = shape.decode
        self._recursive = recursive
        self._runs_code = runs_code

    def __repr__(self) -> str:
        return f"WireType({self.name}, {self.fingerprint[:12]}…)"

    def encode(self, value: T) -> str:
        """The value as JSON text, fields in declared order.

        Its size is not bounded here; what the bound counts is the length in UTF-8 (W3). Raises EncodeError, for
        a wrong type EncodeTypeError, with the path to the field and without the value (W2).
        """
        try:
            plain = self._encode(value)
            if self._recursive:
                refuse_depth(plain)
            if self._runs_code:
                # Decoding makes the records anew. What their constructors would refuse then, because it was changed
                # meanwhile or is not what they take, is refused now, while its maker looks (J5).
                self._decode(plain)
            return _to_json(plain).decode()
        except Misfit as misfit:
            error = EncodeTypeError if misfit.kind else EncodeError
            raise error(f"{misfit.path(self.name)}: {misfit.rule}") from None
        except RecursionError:
            raise EncodeError(
                f"{self.name}: the value is nested too deeply for this place in the program (W2); flatten it"
            ) from None

    def decode(self, payload: bytes | str | None) -> T:
        """The value of a stored payload. Raises CorruptPayload, and nothing else, if it does not fit (W5)."""
        try:
            text = payload if type(payload) is bytes else _bytes_of(payload)
            raw = _from_json(text)
            if self._recursive:
                refuse_depth(raw)
            value = self._decode(raw)
            # A repeated name shows in the length of the text. Only a text that is not as Rowlock writes it,
            # say edited by hand, is looked at more closely.
            if _to_json(raw) != text:
                json.loads(text.decode(), object_pairs_hook=_refuse_repeated_names)
        except Misfit as misfit:
            raise self._corrupt(misfit.path(self.name), misfit.rule) from None
        except UnicodeError:
            raise self._corrupt(self.name, "the text is not valid UTF-8") from None
        except msgspec.MsgspecError as exc:
            # These messages are msgspec's own, about the syntax, with at most a byte position.
            raise self._corrupt(self.name, f"the text is not JSON ({exc})") from None
        except RecursionError:
            raise self._corrupt(self.name, "the text is nested absurdly deep") from None
        return value

    def _corrupt(self, path: str, rule: str) -> CorruptPayload:
        return CorruptPayload(
            f"the stored payload does not fit {self.name}: {path}: {rule} (W5); find out what wrote it, then purge it "
            f"or enqueue its work again"
        )


def _bytes_of(payload: Any) -> bytes:
    """A payload as it came from a driver. SQLite keeps a number that somebody wrote into the column as a number."""
    if isinstance(payload, str):
        return payload.encode()
    if isinstance(payload, (bytes, bytearray)):
        return bytes(payload)
    if isinstance(payload, memoryview):
        return payload.tobytes()
    raise Misfit("no text is stored")


def _refuse_repeated_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = dict(pairs)
    if len(names) != len(pairs):
        raise Misfit("an object of it has a name twice")
    return names


def _no_input() -> Shape:
    def encode(value: Any) -> None:
        if value is not None:
            raise wrong_kind("nothing, as the job takes no input", value)

    def decode(raw: Any) -> None:
        if raw is not None:
            raise wrong_json("null, as the job takes no input", raw)

    return Shape("none", encode, decode, lambda _outer: "none")


NO_INPUT: WireType[None] = WireType(None, "input", _no_input())

# Weak, so that a class made in a function can go when its job goes.
_compiled: WeakValueDictionary[Any, WireType[Any]] = WeakValueDictionary()


@overload
def wire_type(tp: type[T], *, where: str, localns: Mapping[str, Any] | None = None) -> WireType[T]: ...
@overload
def wire_type(tp: Any, *, where: str, localns: Mapping[str, Any] | None = None) -> WireType[Any]: ...
def wire_type(tp: Any, *, where: str, localns: Mapping[str, Any] | None = None) -> WireType[Any]:
    """The codec of a job's input type; compiled once per type.

    `tp` is a record class or a closed generic of one (W1), or None for no input. `where` opens every refusal, as in
    "job news.publish". `localns` holds names of an enclosing function that annotations use.
    Raises DeclarationError, for a refused kind of type DeclarationTypeError, naming the path to the field (W2).
    """
    if tp is None or tp is type(None):
        return NO_INPUT
    try:
        known = _compiled.get(tp)
    except TypeError:  # unhashable extras of an Annotated
        return _compile(tp, where, localns)
    if known is None:
        known = _compiled[tp] = _compile(tp, where, localns)
    return known


def _compile(tp: Any, where: str, localns: Mapping[str, Any] | None) -> WireType[Any]:
    name = getattr(tp, "__name__", None) or str(tp)
    place = Place(where, name)
    try:
        compiler = Compiler(localns)
        shape = compiler.shape(tp, place)
    except RecursionError:
        raise DeclarationError(f"{where}: {name}: the type never ends (W5); flatten it") from None
    if shape.kind != "record":
        raise place.kind(
            "a job takes one record (J3): a dataclass, msgspec.Struct, TypedDict, attrs class or pydantic model; "
            "wrap the value in one"
        )
    return WireType(get_origin(tp) or tp, name, shape, recursive=compiler.recursive, runs_code=compiler.runs_code)
