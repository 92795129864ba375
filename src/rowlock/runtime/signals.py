"""SIGTERM and SIGINT of the command, from its first instruction on (M6)."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    import asyncio  # the command listens before it imports what takes long

HANDLED = (signal.SIGTERM, signal.SIGINT)
# A wrapper that passes a signal on which the whole process group got (GNU timeout, some shells) sends it twice. Nobody
# means it twice within so short a time.
ECHO_S = 0.2


class Signals:
    """The first signal drains, a second ends the process at once. One for a process.

    The same signal again within 0.2 s of the first is its echo, and changes nothing.
    """

    def __init__(self) -> None:
        self.installed = False
        self._count = 0
        self._first: tuple[int, float] = (0, 0.0)
        self._finished = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._at_once: Callable[[], None] = lambda: None
        self._soon: Callable[[], None] = lambda: None

    def install(self) -> None:
        """Takes both signals. From the main thread only; a second call changes nothing."""
        if self.installed:
            return
        self.installed = True
        for number in HANDLED:
            signal.signal(number, self._handle)

    @property
    def received(self) -> bool:
        """Whether the first signal came."""
        return self._count > 0

    def attach(self, loop: asyncio.AbstractEventLoop, at_once: Callable[[], None], soon: Callable[[], None]) -> None:
        """From now on the first signal calls `at_once` right in the signal handler, and `soon` on the loop."""
        self._loop, self._at_once, self._soon = loop, at_once, soon
        if self.received:  # it came during the imports, and something swallowed the SystemExit
            at_once()
            loop.call_soon(soon)

    def finish(self) -> None:
        """The work is over and the exit code is known: a first signal changes nothing any more."""
        self._finished = True

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._count == 0:
            self._first = (number, now)
        elif self._first[0] == number and now - self._first[1] < ECHO_S:
            return
        self._count += 1
        if self._count > 1:
            leave_now("a second signal: ends at once; records in work come back when their leases end")
        if self._finished:
            return
        if self._loop is None:
            # Nothing is claimed yet, so nothing has to be drained: imports are simply broken off.
            raise SystemExit(0)
        # A flag, set here since a handler may block the loop; then a wake-up of the loop.
        self._at_once()
        try:
            self._loop.call_soon_threadsafe(self._soon)
        except RuntimeError:
            return


def leave_now(why: str) -> NoReturn:
    """Ends the process with exit code 1, whatever threads and tasks still do; logs are flushed first."""
    try:
        os.write(2, f"rowlock: {why}\n".encode())
        for reference in logging.getLogger().handlers:
            reference.flush()
        sys.stdout.flush()
    finally:
        os._exit(1)


SIGNALS = Signals()
