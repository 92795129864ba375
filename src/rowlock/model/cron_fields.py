"""The five fields of a cron text, read strictly: whatever is none of the forms is refused, with what to write (T1)."""

from __future__ import annotations

import re
from typing import NamedTuple, NoReturn

from rowlock.errors import CronError

TEXT_BYTES = 512


class Field(NamedTuple):
    """One of the five: its name, its bounds, and the words that other crons take in it."""

    name: str
    low: int
    high: int
    words: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """How many values it has."""
        return self.high - self.low + 1


FIELDS = (
    Field("minute", 0, 59),
    Field("hour", 0, 23),
    Field("day of month", 1, 31),
    Field(
        "month", 1, 12, ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
    ),
    Field("day of week", 0, 6, ("sun", "mon", "tue", "wed", "thu", "fri", "sat")),
)  # fmt: skip

_MACROS = {
    "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *", "@monthly": "0 0 1 * *", "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@hourly": "0 * * * *",
}  # fmt: skip
_SYNTAX = "a field is *, a number, a range as 1-5, a step as */15 or 1-5/2, or a list of these as 1,3,5"
# ASCII digits only: int() and str.isdigit() also take those of other scripts.
_ITEM = re.compile(r"(?:(?P<any>\*)|(?P<first>[0-9]+)(?:-(?P<last>[0-9]+))?)(?:/(?P<step>[0-9]+))?")


def read_fields(text: str) -> tuple[frozenset[int], ...]:
    """The values that each field admits, in the order of `FIELDS`. Raises CronError (T1)."""
    quoted = _quoted(text)
    # Every legal character is ASCII, so a text that is too long in characters is too long in bytes.
    if len(text) > TEXT_BYTES or len(text.encode("utf-8", "surrogatepass")) > TEXT_BYTES:
        raise CronError(f"cron {quoted} has more than {TEXT_BYTES} bytes (T1); write ranges and steps, not long lists")
    parts = [part for part in re.split(r"[ \t]+", text) if part]
    if parts and parts[0].startswith("@"):
        _refuse_macro(quoted, parts[0])
    if parts and "=" in parts[0]:
        raise CronError(f"cron {quoted} names a time zone (T1); schedules are in UTC: write the five fields alone")
    if len(parts) != len(FIELDS):
        _refuse_count(quoted, len(parts))
    return tuple(_values(quoted, field, part) for field, part in zip(FIELDS, parts, strict=True))


def _values(quoted: str, field: Field, part: str) -> frozenset[int]:
    return frozenset(value for item in part.split(",") for value in _item(quoted, field, item))


def _item(quoted: str, field: Field, item: str) -> range:
    match = _ITEM.fullmatch(item)
    if match is None:
        _refuse_syntax(quoted, field, item)
    if match["any"]:
        first, last = field.low, field.high
    else:
        first = _number(quoted, field, item, match["first"])
        last = first if match["last"] is None else _number(quoted, field, item, match["last"])
    if match["step"] is None:
        step = 1
    else:
        if not match["any"] and match["last"] is None:
            raise _refusal(
                quoted, field, item, "a step follows * or a range only", f"write {first}-{field.high}/{match['step']}"
            )
        step = int(match["step"])
    if last < first:
        rest = f"{field.low}-{last}" if last > field.low else f"{last}"
        raise _refusal(quoted, field, item, "a range goes upwards", f"write {first}-{field.high},{rest}")
    if step < 1:
        raise _refusal(quoted, field, item, "a step is at least 1", "leave the step out to admit every value")
    return range(first, last + 1, step)


def _number(quoted: str, field: Field, item: str, digits: str) -> int:
    value = int(digits)
    if field.low <= value <= field.high:
        return value
    remedy = f"write a number in {field.low}..{field.high}"
    if field.name == "day of week" and value == 7:
        remedy = f"Sunday is 0: write {_without_seven(item)}"
    raise _refusal(quoted, field, item, f"{digits} is outside {field.low}..{field.high}", remedy)


def _without_seven(item: str) -> str:
    first = item.partition("-")[0]
    if "/" in item or not first.isdecimal() or int(first) > 6:
        return "0"
    return f"{first}-6,0" if int(first) < 6 else "6,0"


def _refuse_syntax(quoted: str, field: Field, item: str) -> NoReturn:
    if not item:
        raise _refusal(
            quoted, field, item, "a list has a value between its commas", "remove the comma that is too many"
        )
    if "?" in item:
        raise _refusal(quoted, field, item, "? is not part of it", "write *")
    for word in re.findall(r"[A-Za-z]+", item):
        if (number := _of_word(field, word)) is not None:
            raise _refusal(quoted, field, item, "names are not part of it", f"write {number} for {word}")
    if re.fullmatch(r"[0-9]*[LlWw#][0-9]*|[Ll][Ww]", item):
        raise _refusal(
            quoted, field, item, "L, W and # are not part of it",
            "write the days that may be meant, as 28-31, and let the handler look at ctx.run_at",
        )  # fmt: skip
    if "/" in item and item.count("/") > 1:
        raise _refusal(quoted, field, item, "a range has one step", _SYNTAX)
    raise _refusal(quoted, field, item, "it is none of the forms that a field has", _SYNTAX)


def _of_word(field: Field, word: str) -> int | None:
    short = word.lower()[:3]
    return field.low + field.words.index(short) if len(word) >= 3 and short in field.words else None


def _refuse_macro(quoted: str, macro: str) -> NoReturn:
    meant = _MACROS.get(macro.lower())
    remedy = f'write "{meant}"' if meant else "write five fields"
    raise CronError(f"cron {quoted} is a macro, and macros are not part of it (T1); {remedy}")


def _refuse_count(quoted: str, count: int) -> NoReturn:
    names = ", ".join(field.name for field in FIELDS)
    also = "; seconds and years have no field here" if count > len(FIELDS) else ""
    raise CronError(f"cron {quoted} has {count} fields, not five (T1){also}; write {names}, as 0 9 * * 1-5")


def _refusal(quoted: str, field: Field, item: str, rule: str, remedy: str) -> CronError:
    return CronError(f"cron {quoted}: the {field.name} is {_quoted(item)}, and {rule} (T1); {remedy}")


def _quoted(text: str) -> str:
    return ascii(text) if len(text) <= 80 else f"{text[:76]!a}… ({len(text)} characters)"
