"""Threads for sync handlers: Rowlock's own, never the loop's default executor (L4).

They are daemons, since a handler that hangs must not keep the process from ending (C69 in the field).
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol


class Work(Protocol):
    """What a thread runs, and what the loop does with it afterwards."""

    def in_thread(self) -> None:
        """Runs on the thread. Must not raise."""

    def on_loop(self) -> None:
        """Runs on the loop when `in_thread` has ended. Must not raise."""


class Threads:
    """Grows to as many threads as were ever needed at once, at most `most`; ends them with `close`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int) -> None:
        self._loop = loop
        self._most = most
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads: list[threading.Thread] = []
        self._done: deque[Work] = deque()
        self._told = False

    def submit(self, work: Work) -> None:
        """Hands `work` to an idle thread, or to a new one. From the loop's thread only."""
        self._queue.put(work)
        # A thread says that it is idle after it handed its result over: with all threads made, one is about to.
        if not self._idle.acquire(blocking=False) and len(self._threads) < self._most:
            thread = threading.Thread(target=self._serve, name=f"rowlock-job-{len(self._threads) + 1}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def call(self, callback: Callable[[], object]) -> None:
        """Runs `callback` on the loop, from any thread; nothing happens when the loop is closed."""
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:
            return

    def close(self, timeout: float) -> bool:
        """Lets idle threads end; waits up to `timeout` seconds for them. False if one is still in a handler."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout)
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        return not self._threads

    def _serve(self) -> None:
        while (work := self._queue.get()) is not None:
            # A context of its own: what a handler sets in a context variable is gone with it.
            contextvars.copy_context().run(work.in_thread)
            self._done.append(work)
            del work  # an idle thread must not keep a record's input alive
            # One wake-up of the loop takes all results that came meanwhile.
            if not self._told:
                self._told = True
                self.call(self._deliver)
            self._idle.release()

    def _deliver(self) -> None:
        self._told = False  # before emptying: what comes after this line asks for the next wake-up
        while self._done:
            self._done.popleft().on_loop()
