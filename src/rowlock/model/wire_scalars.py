"""The scalars of the wire schema (contract W1, W2): one strict codec each, between a value and plain JSON.

A value of a subclass (an IntEnum member for an int, a driver's UUID class, a str with extras) is taken by its plain
value, and only if that is equal to it; it comes back as the declared type.
"""

from __future__ import annotations

import binascii
import math
import re
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

import msgspec

from rowlock.model.wire_base import Misfit, Shape, wrong_json, wrong_kind

INT_MIN, INT_MAX = -(2**63), 2**63 - 1

_DECIMAL = re.compile(r"-?[0-9]+(\.[0-9]+)?([Ee][+-]?[0-9]+)?")
_MINUTE = timedelta(minutes=1)
_NOTHING = timedelta(0)


def _scalar(name: str, encode: Callable[[Any], Any], decode: Callable[[Any], Any]) -> Shape:
    return Shape(name, encode, decode, lambda _outer: name)


def _plain(value: Any, base: type, needed: str, convert: Callable[[Any], Any]) -> Any:
    if not isinstance(value, base) or isinstance(value, bool):
        raise wrong_kind(needed, value)
    plain = convert(value)
    if not plain == value:  # not `!=`, which a subclass may leave as it was
        raise Misfit(f"needs {needed}, and this {type(value).__qualname__} is not equal to its plain value (W3)")
    return plain


# --- bool, int, float, str, bytes --------------------------------------------------------------------------


def _encode_bool(value: Any) -> bool:
    if value is True or value is False:
        return value
    raise wrong_kind("a bool", value)


def _decode_bool(raw: Any) -> bool:
    if raw is True or raw is False:
        return raw
    raise wrong_json("a boolean", raw)


def _encode_int(value: Any) -> int:
    if type(value) is not int:
        value = _plain(value, int, "an int", int.__index__)
    if INT_MIN <= value <= INT_MAX:
        return value
    raise Misfit("the int is out of range, signed 64-bit is the limit (W2); pass a larger one as str or Decimal")


def _decode_int(raw: Any) -> int:
    if type(raw) is not int:
        raise wrong_json("an integer", raw)
    if INT_MIN <= raw <= INT_MAX:
        return raw
    raise Misfit("the integer is beyond signed 64-bit")


def _encode_float(value: Any) -> float:
    if type(value) is not float:
        if type(value) is int:
            return _float_of_int(value)
        value = _plain(value, float, "a float", float.__float__)
    if math.isfinite(value):
        return value
    raise Misfit("NaN and infinities have no JSON form (W2); leave the field out with an optional, or pass a str")


def _float_of_int(value: int) -> float:
    try:
        result = float(value)
    except OverflowError:
        result = math.nan
    if result != value:
        raise Misfit("this int is given for a float that can not hold it exactly (W3); declare int, or round it")
    return result


def _decode_float(raw: Any) -> float:
    if type(raw) is float:
        return raw
    if type(raw) is int:
        return _float_of_int(raw)
    raise wrong_json("a number", raw)


def encode_str(value: Any) -> str:
    """The plain text of a str or an equal subclass; also for the keys of a dict."""
    if type(value) is not str:
        value = _plain(value, str, "a str", str.__str__)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            # `from None`: the codec's error carries the whole text
            raise Misfit("the str holds a lone surrogate, which UTF-8 can not carry (W2); clean it") from None
    return value


def decode_str(raw: Any) -> str:
    """A JSON string, nothing else."""
    if type(raw) is str:
        return raw
    raise wrong_json("a string", raw)


def _encode_bytes(value: Any) -> str:
    if type(value) is not bytes:
        value = _plain(value, bytes, "bytes", lambda v: bytes(memoryview(v)))
    return b64encode(value).decode("ascii")


def _decode_bytes(raw: Any) -> bytes:
    try:
        return binascii.a2b_base64(decode_str(raw), strict_mode=True)
    except ValueError:
        raise Misfit("the string is not base64") from None


# --- Decimal, UUID, dates and times ------------------------------------------------------------------------


def _encode_decimal(value: Any) -> str:
    if not isinstance(value, Decimal):
        raise wrong_kind("a Decimal", value)
    if not value.is_finite():
        raise Misfit("NaN and infinities are not carried (W2); pass a finite Decimal")
    return Decimal.__str__(value)


def _decode_decimal(raw: Any) -> Decimal:
    if _DECIMAL.fullmatch(decode_str(raw)):
        try:
            value = Decimal(raw)
        except InvalidOperation:
            value = Decimal("NaN")
        if value.is_finite():  # an exponent out of bounds is NaN where the context does not trap it
            return value
    raise Misfit("the string is not a decimal number")


def _encode_uuid(value: Any) -> str:
    if type(value) is not UUID:  # asyncpg hands out a subclass of its own
        value = _plain(value, UUID, "a UUID", lambda v: UUID(int=v.int))
    return str(value)


def _encode_datetime(value: Any) -> str:
    if not isinstance(value, datetime):
        raise wrong_kind("a datetime", value)
    offset = value.utcoffset()
    if offset is None:
        raise Misfit("the datetime is naive (W2); give it a time zone, as in datetime.now(UTC)")
    plain = datetime(
        value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond, timezone(offset)
    )
    if type(value) is not datetime and plain - value.replace(tzinfo=plain.tzinfo) != _NOTHING:
        raise Misfit(f"this {type(value).__qualname__} is finer than a microsecond (W3); round it")
    if offset % _MINUTE:  # RFC 3339 has whole minutes only
        try:
            plain = plain.astimezone(UTC)
        except OverflowError:
            raise Misfit("the datetime's offset has seconds, and in UTC it is out of range (W2)") from None
    return plain.isoformat()


def _encode_date(value: Any) -> str:
    if isinstance(value, date) and not isinstance(value, datetime):
        return date(value.year, value.month, value.day).isoformat()
    raise wrong_kind("a date", value)


def _encode_time(value: Any) -> str:
    if not isinstance(value, time):
        raise wrong_kind("a time", value)
    offset = value.utcoffset()
    if (offset is None and value.tzinfo is not None) or (offset is not None and offset % _MINUTE):
        raise Misfit("a time is naive or has a fixed offset of whole minutes (W1); pass a datetime, or drop the zone")
    zone = None if offset is None else timezone(offset)
    return time(value.hour, value.minute, value.second, value.microsecond, zone).isoformat()


def _encode_timedelta(value: Any) -> str:
    if not isinstance(value, timedelta):
        raise wrong_kind("a timedelta", value)
    plain = timedelta(days=value.days, seconds=value.seconds, microseconds=value.microseconds)
    if plain != value:
        raise Misfit(f"this {type(value).__qualname__} is finer than a microsecond (W3); round it")
    return str(msgspec.to_builtins(plain))  # ISO 8601, exact over the whole range


def _by_msgspec(tp: Any, needed: str) -> Callable[[Any], Any]:
    convert, error = msgspec.convert, msgspec.ValidationError

    def decode(raw: Any) -> Any:
        if type(raw) is not str:
            raise wrong_json("a string", raw)
        try:
            value: Any = convert(raw, tp)
        except error:
            raise Misfit(f"the string is not {needed}") from None
        return value

    return decode


_decode_any_datetime = _by_msgspec(datetime, "an RFC 3339 date and time")


def _decode_datetime(raw: Any) -> datetime:
    value = _decode_any_datetime(raw)
    if value.tzinfo is None:
        raise Misfit("the date and time has no offset")
    return value


SCALARS: dict[type, Shape] = {
    bool: _scalar("bool", _encode_bool, _decode_bool),
    int: _scalar("int", _encode_int, _decode_int),
    float: _scalar("float", _encode_float, _decode_float),
    str: _scalar("str", encode_str, decode_str),
    bytes: _scalar("bytes", _encode_bytes, _decode_bytes),
    Decimal: _scalar("decimal", _encode_decimal, _decode_decimal),
    UUID: _scalar("uuid", _encode_uuid, _by_msgspec(UUID, "a UUID")),
    datetime: _scalar("datetime", _encode_datetime, _decode_datetime),
    date: _scalar("date", _encode_date, _by_msgspec(date, "a date")),
    time: _scalar("time", _encode_time, _by_msgspec(time, "a time")),
    timedelta: _scalar("timedelta", _encode_timedelta, _by_msgspec(timedelta, "an ISO 8601 duration")),
}
