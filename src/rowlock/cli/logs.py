"""The log of `rowlock run`: one line an event, to stderr, without colours and without what may be secret (S6)."""

from __future__ import annotations

import logging
import sys
import time

from rowlock.runtime.describe import trace


class OneLine(logging.Formatter):
    """`2027-03-01T12:00:00.123Z INFO rowlock: message`, in UTC."""

    converter = time.gmtime
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """The line. Of an exception it has the class and the frames, never the text."""
        text = record.getMessage()
        if record.name == "asyncio":
            # Of a handler's stray task it goes on with the repr of the exception, in lines of their own.
            text = text.partition("\n")[0]
        if record.exc_info and record.exc_info[1] is not None:
            text = f"{text}: {trace(record.exc_info[1])}"
        line = logging.makeLogRecord({**record.__dict__, "msg": _flat(text), "args": None})
        line.exc_info = line.exc_text = line.stack_info = None
        return super().format(line)


def _flat(text: str) -> str:
    return text.replace("\r", "\\r").replace("\n", "\\n")


def set_up() -> None:
    """Log to stderr from INFO on, unless the application has set up logging by itself."""
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine())
    root.addHandler(handler)
    root.setLevel(logging.INFO)
