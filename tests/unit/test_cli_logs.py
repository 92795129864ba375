"""The log of `rowlock run`: one line an event, and no text of an exception (S6)."""

from __future__ import annotations

import asyncio
import logging
import re
import sys

from rowlock.cli.logs import OneLine


def line(message: str, *args: object, name: str = "rowlock", error: BaseException | None = None) -> str:
    info = None if error is None else (type(error), error, error.__traceback__)
    return OneLine().format(logging.LogRecord(name, logging.WARNING, __file__, 1, message, args, info))


def test_a_line_has_its_time_in_utc() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z WARNING rowlock: 3 records", line("%d records", 3))


def test_an_event_is_one_line() -> None:
    assert line("a\nb\r\nc").endswith("rowlock: a\\nb\\r\\nc")


def test_of_an_exception_it_has_the_class_and_the_frames() -> None:
    # contract: S6
    try:
        raise ValueError("S3CR3T")
    except ValueError:
        said = line("it failed", error=sys.exc_info()[1])
    assert "S3CR3T" not in said
    assert "it failed: ValueError <- " in said
    assert f"{__file__}:" in said
    assert "\n" not in said


def test_of_a_stray_task_it_has_no_exception_text() -> None:
    # contract: S6; asyncio puts the exception's repr into its message
    said: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(OneLine().format(record))

    async def stray() -> None:
        raise ValueError("S3CR3T")

    async def main() -> None:
        task = asyncio.ensure_future(stray())
        await asyncio.wait({task})
        del task

    listener = Listener()
    logging.getLogger("asyncio").addHandler(listener)
    try:
        asyncio.run(main())
    finally:
        logging.getLogger("asyncio").removeHandler(listener)
    assert len(said) == 1
    assert "Task exception was never retrieved: ValueError" in said[0]
    assert "S3CR3T" not in said[0]
