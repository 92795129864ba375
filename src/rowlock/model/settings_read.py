"""Strict reading of the settings' JSON: every refusal names the path, the value and the rule (M1, M2).

A `Read` takes one value of the file and answers it checked. The tables of them are in `settings.py`, beside the fields.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar, cast

from rowlock.errors import SettingsError
from rowlock.model.limits import Refusals, check_text
from rowlock.model.settings_url import Url

T = TypeVar("T")

_REFUSALS = Refusals(SettingsError, SettingsError)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Node(NamedTuple):
    """One value of the settings, and where it stands."""

    value: object
    path: str
    origin: str
    """The file, or "settings" for an object."""
    given: set[str]
    """All paths that were given, filled while reading."""

    def refuse(self, rule: str) -> NoReturn:
        """Refuse the value. It is shown only if it can not be a secret: no texts below `database`, no URLs."""
        raise SettingsError(f"{self.origin}: {self.path or 'the whole'} is {self._shown()}; it must be {rule}")

    def child(self, key: str, value: object) -> Node:
        """The value of `key` in this object."""
        path = f"{self.path}.{key}" if self.path else key
        self.given.add(path)
        return Node(value, path, self.origin, self.given)

    def _shown(self) -> str:
        match self.value:
            case None:
                return "null"
            case bool():
                return "true" if self.value else "false"
            # Python prints no integer of more than 4,300 digits.
            case int() if self.value.bit_length() > 64:
                return "an integer beyond all bounds"
            case int() | float():
                return repr(self.value)
            case str() if not self.path.startswith("database") and "://" not in self.value:
                return json.dumps(self.value if len(self.value) <= 60 else self.value[:59] + "…", ensure_ascii=False)
            case str():
                return "a text (not shown, it may have a secret in it)"
            case Mapping():
                return "an object"
            case list() | tuple():
                return "a list"
            case _:
                return f"of type {type(self.value).__name__}"


Read = Callable[[Node], Any]


class Whole(NamedTuple):
    """A whole number in `low..high`. A bool is none, and neither is 4.0."""

    low: int
    high: int
    clause: str = "M2"

    def __call__(self, node: Node) -> int:
        """Read it."""
        value = node.value
        if isinstance(value, bool) or not isinstance(value, int) or not self.low <= value <= self.high:
            node.refuse(f"a whole number, {self.low:,} to {self.high:,} ({self.clause})")
        return int(value)


def flag(node: Node) -> bool:
    """`true` or `false`."""
    if not isinstance(node.value, bool):
        node.refuse("true or false (M1)")
    return node.value


class Choice(NamedTuple):
    """One of these words."""

    words: tuple[str, ...]

    def __call__(self, node: Node) -> str:
        """Read it."""
        if not isinstance(node.value, str) or node.value not in self.words:
            node.refuse(" or ".join(json.dumps(word) for word in self.words) + " (M1)")
        return str(node.value)


def text(high: int) -> Read:
    """A text of 1 to `high` bytes, not blank."""

    def read(node: Node) -> str:
        if not isinstance(node.value, str):
            node.refuse(f"a text of 1 to {high:,} bytes (M1)")
        return check_text(node.value, what=f"{node.origin}: {node.path}", high=high, rule="M1", refuse=_REFUSALS)

    return read


def database_name(node: Node) -> str:
    """A text as `text` has it, which is no URL: names are shown."""
    if isinstance(node.value, str) and "://" in node.value:
        node.refuse('a name such as "default", not a URL (M1)')
    return text(128)(node)


def words(node: Node) -> str:
    """Any text: what it means is judged elsewhere."""
    if not isinstance(node.value, str):
        node.refuse("a text (M1)")
    return str(node.value)


def url(node: Node) -> Url:
    """A URL as a text, `{"env": "NAME"}` or `{"file": "/run/…"}`."""
    where = f"{node.origin}: {node.path}"
    if isinstance(node.value, str):
        if not node.value.strip() or not node.value.isprintable():
            node.refuse('a database URL, {"env": "NAME"} or {"file": "/run/…"} (M1)')
        return Url(where, text=str(node.value))
    if not isinstance(node.value, Mapping):
        node.refuse('a database URL, {"env": "NAME"} or {"file": "/run/…"} (M1)')
    found = section(node, dict[str, str], {"env": _variable, "file": _file})
    if len(found) != 1:
        node.refuse('{"env": "NAME"} or {"file": "/run/…"}, one of the two (M1)')
    return Url(where, **found)


def _variable(node: Node) -> str:
    # Somebody may have put the URL itself here, so it is not shown.
    if not isinstance(node.value, str) or not _VARIABLE.fullmatch(node.value):
        node.refuse("the name of an environment variable (M1)")
    return str(node.value)


def _file(node: Node) -> str:
    if not isinstance(node.value, str) or not node.value.strip() or not node.value.isprintable():
        node.refuse("the path of a file (M1)")
    if "://" in node.value:
        node.refuse("the path of a file, not a URL (M1)")
    return str(node.value)


class Table(NamedTuple):
    """An object with keys of the user's own, as a dict."""

    key: Read
    value: Read

    def __call__(self, node: Node) -> dict[str, Any]:
        """Read it."""
        found: dict[str, Any] = {}
        for name, item in _items(node):
            key = self.key(Node(name, f"a name in {node.path}", node.origin, node.given))
            found[key] = self.value(node.child(name, item))
        return found


class Part(NamedTuple):
    """An object with exactly these keys, each optional, made into `make(**values)`."""

    make: Callable[..., Any]
    fields: Mapping[str, Read]

    def __call__(self, node: Node) -> Any:
        """Read it."""
        return section(node, self.make, self.fields)


def bounds_of(read: object, path: str = "") -> dict[str, Whole | Choice]:
    """What bounds the settings below `path`; `*` stands for names of the user's own."""
    match read:
        case Whole() | Choice():
            return {path: read}
        case Part():
            return {
                name: bound
                for key, inner in read.fields.items()
                for name, bound in bounds_of(inner, f"{path}.{key}" if path else key).items()
            }
        case Table():
            return bounds_of(read.value, f"{path}.*")
        case _:
            return {}


def section(node: Node, make: Callable[..., T], fields: Mapping[str, Read]) -> T:
    """An object with exactly these keys, each optional, made into `make(**values)`."""
    values: dict[str, Any] = {}
    for name, item in _items(node):
        if name not in fields:
            near = difflib.get_close_matches(name, fields, 1)
            path = f"{node.path}.{name[:60]}" if node.path else name[:60]
            raise SettingsError(
                f"{node.origin}: there is no setting {path} (M1)"
                + (f"; did you mean {near[0]}?" if near else "")
                + f"; {node.path or 'at the top'} has {', '.join(fields)}"
            )
        values[name] = fields[name](node.child(name, item))
    return make(**values)


def _items(node: Node) -> list[tuple[str, object]]:
    value = node.value
    if isinstance(value, _Object) and value.twice is not None:
        where = f"{node.path}.{value.twice[:60]}" if node.path else value.twice[:60]
        raise SettingsError(f"{node.origin}: {where} stands there twice (M1); keep one of them")
    if not isinstance(value, Mapping):
        node.refuse("an object (M1)")
    items = list(cast("Mapping[object, object]", value).items())
    for name, _ in items:
        if not isinstance(name, str):
            node.refuse(f"an object with texts as keys (M1), and one is of type {type(name).__name__}")
    return cast("list[tuple[str, object]]", items)


class _Object(dict[str, object]):
    """A JSON object that remembers a key which stands in it twice: `json` keeps the last one without a word."""

    __slots__ = ("twice",)

    def __init__(self, pairs: list[tuple[str, object]]) -> None:
        super().__init__(pairs)
        self.twice: str | None = None
        if len(self) < len(pairs):
            seen: set[str] = set()
            self.twice = next(name for name, _ in pairs if name in seen or seen.add(name))


def read_file(path: str | Path) -> object:
    """The JSON of a settings file. Raises `SettingsError` if it can not be read or is no JSON."""
    try:
        content = Path(path).read_bytes().decode("utf-8")
    except (OSError, ValueError) as error:
        why = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else getattr(error, "strerror", None) or error
        raise SettingsError(f"the settings file {path} can not be read: {why} (M1)") from None
    try:
        return json.loads(content, object_pairs_hook=_Object, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        why = f"{error.msg} in line {error.lineno}, column {error.colno}"
    except RecursionError:
        why = "it is nested too deeply"
    except ValueError as error:  # a constant, or an integer of more digits than Python reads
        why = str(error).partition(";")[0]
    raise SettingsError(f"the settings file {path} is not JSON: {why} (M1)")


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
