"""What a log line may say of an exception: its class and where it came from, never its text (S6)."""

from __future__ import annotations

import logging
from types import CodeType, TracebackType
from typing import cast

from rowlock.errors import DatabaseError, RowlockError, SafeError
from rowlock.model.texts import error_class

log = logging.getLogger("rowlock")

_MOST_FRAMES = 30


def frames(error: BaseException) -> list[str]:
    """The traceback as `file:line:function`, outermost first, the middle of a very long one left out.

    Reads no source and runs no code of the exception's own.
    """
    found: list[str] = []
    # Past the class, which may have an attribute of that name.
    step = cast("TracebackType | None", BaseException.__dict__["__traceback__"].__get__(error))
    while step is not None:
        code: CodeType = step.tb_frame.f_code
        found.append(f"{code.co_filename}:{step.tb_lineno}:{code.co_name}")
        step = step.tb_next
    if len(found) > _MOST_FRAMES:
        half = _MOST_FRAMES // 2
        found[half:-half] = [f"… {len(found) - 2 * half} frames …"]
    return found


def trace(error: BaseException) -> str:
    """The class and all frames, for the log line of a failed attempt."""
    return " <- ".join([error_class(error), *reversed(frames(error))])


def brief(error: BaseException) -> str:
    """One sentence for a failure of Rowlock's own work.

    Errors of Rowlock's tree are written without secrets, so their text is shown. Of others, which may quote a
    statement with its parameters, only the class and the last frame are.
    """
    if isinstance(error, DatabaseError) or (isinstance(error, RowlockError) and not isinstance(error, SafeError)):
        return str(error)
    cause = getattr(error, "orig", None)
    name = error_class(error) if not isinstance(cause, BaseException) else f"{error_class(error)}: {error_class(cause)}"
    where = frames(error)
    return f"{name} at {where[-1]}" if where else name
