"""Waiting for facts, with a bound. The only place of the suite that polls; a test never sleeps for time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
POLL = 0.005
BOUND = 20.0  # seconds; generous, as a wait that succeeds costs only what it takes


class TookTooLong(AssertionError):
    """What a test waited for did not become true within the bound."""


def wait_until(predicate: Callable[[], T], timeout: float = BOUND, what: str | Callable[[], str] = "") -> T:
    """Call `predicate` until it is truthy and return what it answered; `what` says what was waited for."""
    end = time.monotonic() + timeout
    while not (answer := predicate()):
        if time.monotonic() > end:
            raise TookTooLong(_sentence(predicate, answer, timeout, what))
        time.sleep(POLL)
    return answer


async def wait_until_async(
    predicate: Callable[[], T | Awaitable[T]], timeout: float = BOUND, what: str | Callable[[], str] = ""
) -> T:
    """`wait_until` on an event loop; the predicate may be a plain function or a coroutine function."""
    end = time.monotonic() + timeout
    while True:
        answer = predicate()
        if isinstance(answer, Awaitable):
            answer = await answer
        if answer:
            return answer
        if time.monotonic() > end:
            raise TookTooLong(_sentence(predicate, answer, timeout, what))
        await asyncio.sleep(POLL)


def _sentence(predicate: object, answer: object, timeout: float, what: str | Callable[[], str]) -> str:
    text = what() if callable(what) else what
    return (
        f"not within {timeout:g} s: {text or getattr(predicate, '__qualname__', predicate)} (last answer: {answer!r})"
    )


class Signal:
    """A fact that one side states and the other waits for, across threads and loops. It can carry a value."""

    def __init__(self, name: str = "signal") -> None:
        self.name = name
        self.value: object = None
        self._event = threading.Event()

    def set(self, value: object = None) -> None:
        self.value = value
        self._event.set()

    def clear(self) -> None:
        self._event.clear()

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, timeout: float = BOUND) -> object:
        if not self._event.wait(timeout):
            raise TookTooLong(f"not within {timeout:g} s: {self.name}")
        return self.value

    async def wait_async(self, timeout: float = BOUND) -> object:
        await wait_until_async(self._event.is_set, timeout, self.name)
        return self.value


class Signals:
    """Named signals, made when first asked for: `signals["started"].set()`."""

    def __init__(self) -> None:
        self._signals: dict[str, Signal] = {}
        self._lock = threading.Lock()

    def __getitem__(self, name: str) -> Signal:
        with self._lock:
            return self._signals.setdefault(name, Signal(name))


def barrier(parties: int, timeout: float = BOUND) -> threading.Barrier:
    """A barrier whose `wait()` is bounded: a party that never comes breaks it for all."""
    return threading.Barrier(parties, timeout=timeout)


def in_threads(*functions: Callable[[], T], timeout: float = BOUND) -> list[T]:
    """Run the functions at the same moment, one thread each; return their answers, or raise the first failure."""
    start, answers, failures = barrier(len(functions), timeout), {}, []

    def run(number: int, function: Callable[[], T]) -> None:
        try:
            start.wait()
            answers[number] = function()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout)
        if thread.is_alive():
            raise TookTooLong(f"not within {timeout:g} s: a thread of in_threads ended")
    if failures:
        raise failures[0]
    return [answers[number] for number in range(len(functions))]


async def work_for(seconds: float) -> None:
    """What a handler does that takes its time, where the time is the point."""
    await asyncio.sleep(seconds)
