"""What all parts of the wire schema share: the shape, and the failure that finds its own path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from rowlock.model.fingerprint import Schema

# The schema functions of the records around a shape, outermost first; by them a recursive record finds itself.
Outer: TypeAlias = "tuple[object, ...]"

_PATH_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Shape:
    """One compiled annotation: value -> plain JSON, plain JSON -> value, and what it adds to the fingerprint.

    `encode` and `decode` raise `Misfit`. `kind` names the sort of shape, for the few places that ask.
    """

    kind: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]
    schema: Callable[[Outer], Schema]


class Misfit(Exception):  # noqa: N818 - it never leaves the codec, where it is no error but a finding
    """A value, or a piece of a payload, that does not fit. It collects its path on the way up.

    `rule` never contains the value (S6). `kind` says that the type is wrong, not the value.
    """

    def __init__(self, rule: str, *, kind: bool = False) -> None:
        super().__init__(rule)
        self.rule = rule
        self.kind = kind
        self._parts: list[str] = []

    def under(self, part: str) -> Misfit:
        """Add the next outer part of the path."""
        self._parts.append(part)
        return self

    def path(self, root: str) -> str:
        """The whole path; a deep one without its middle."""
        parts = self._parts[::-1]
        if len(parts) > 2 * _PATH_SHOWN:
            parts = [*parts[:_PATH_SHOWN], "…", *parts[-_PATH_SHOWN:]]
        return root + "".join(parts)


def wrong_kind(needed: str, value: object) -> Misfit:
    """A value that is of another type than declared."""
    return Misfit(f"needs {needed}, not a value of type {type(value).__qualname__} (W1)", kind=True)


def wrong_json(needed: str, raw: object) -> Misfit:
    """A piece of a payload that is of another JSON type than the schema says."""
    return Misfit(f"needs {needed}, found {_JSON_NAMES.get(type(raw), 'something else')}")


_JSON_NAMES: dict[type, str] = {
    dict: "an object",
    list: "an array",
    str: "a string",
    int: "an integer",
    float: "a number",
    bool: "a boolean",
    type(None): "null",
}
