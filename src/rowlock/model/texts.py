"""Texts of failures that may be stored (S6).

Nothing here runs code of the user's where it can be avoided: a hostile `__str__`, `__class__`, `args` or metaclass can
not end a settlement.
"""

from __future__ import annotations

from typing import cast

from rowlock.errors import SafeError

SUMMARY_LIMIT = 500
ERROR_CLASS_LIMIT = 200


def clean_summary(text: str) -> str:
    """Text that every database can store: at most 500 characters, NUL and surrogates as backslash escapes (S6)."""
    return clean(text, SUMMARY_LIMIT)


def clean(text: str, limit: int) -> str:
    """The first `limit` characters of `text`, NUL and surrogates as backslash escapes."""
    plain = str.__str__(text)[:limit]  # an exact str, whatever a subclass does
    return plain.replace("\0", "\\x00").encode("utf-8", "backslashreplace").decode("utf-8")[:limit]


def error_class(error: BaseException) -> str:
    """The dotted path of the exception's class, for the record: `module.Class`, or `ValueError` for a builtin (S6)."""
    return class_path(type(error))


def class_path(cls: type) -> str:
    """The dotted path of a class, at most 200 characters; of a builtin the plain name."""
    # Read past the metaclass, which can override both names; a class body can set `__module__` to anything.
    module = cast("object", type.__dict__["__module__"].__get__(cls))
    name = cast("str", type.__dict__["__qualname__"].__get__(cls))
    if isinstance(module, str) and module != "builtins":
        name = f"{str.__str__(module)}.{name}"
    return clean(name, ERROR_CLASS_LIMIT)


def safe_summary(error: BaseException) -> str | None:
    """What may be stored of the exception's text: the first argument of a `SafeError`, of others nothing (S6)."""
    if not issubclass(type(error), SafeError):
        return None
    args = cast("tuple[object, ...]", BaseException.__dict__["args"].__get__(error))
    # An exception as the argument says nothing about who vouched for that one's text.
    if not args or isinstance(args[0], BaseException):
        return None
    try:
        return clean_summary(args[0] if isinstance(args[0], str) else str(args[0]))
    except BaseException:  # noqa: BLE001  # the argument's own __str__, which may raise anything (R4)
        return None
