"""Keeps what a handler does to the event loop inside its attempt (R4).

asyncio lets SystemExit and KeyboardInterrupt of any task end the loop. For tasks that a handler starts, a task
factory puts a wrapper around the coroutine that turns them into a failure of the attempt. It does nothing for
tasks that no attempt started.
"""

from __future__ import annotations

import asyncio
import contextvars
import weakref
from collections.abc import Coroutine
from typing import Any, Protocol


class Blamed(Protocol):
    """An attempt, as far as its stray tasks are concerned."""

    def blame(self, error: BaseException) -> None:
        """One of its tasks raised what would have ended the loop."""


current: contextvars.ContextVar[Blamed | None] = contextvars.ContextVar("rowlock_attempt", default=None)


class StrayExit(Exception):  # noqa: N818 - it tells what happened, not what is wrong
    """A task that a handler started raised SystemExit or KeyboardInterrupt; the cause has it (R4)."""


async def _contained(coro: Coroutine[Any, Any, Any], attempt: Blamed) -> Any:
    try:
        return await coro
    except (SystemExit, KeyboardInterrupt) as error:
        attempt.blame(error)
        if (task := asyncio.current_task()) is not None:
            # The attempt reports it: asyncio need not say again that nobody looked at the task.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        raise StrayExit(f"a task of the handler raised {type(error).__name__} (R4)") from error
    except GeneratorExit as error:
        # Raised by the handler's code, or by the collector closing a task that was forgotten: only the first counts.
        if _being_stepped(coro):
            attempt.blame(error)
        raise


def _being_stepped(coro: object) -> bool:
    try:
        task: asyncio.Task[Any] | None = asyncio.current_task()
    except RuntimeError:
        return False
    outer: Any = task.get_coro() if task is not None else None
    frame = getattr(outer, "cr_frame", None)
    return frame is not None and frame.f_code is _contained.__code__ and frame.f_locals.get("coro") is coro


class _Factory:
    """Chained before the loop's own factory; counted, since several workers may share a loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.users = 0
        self._previous: Any = loop.get_task_factory()

    def __call__(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> Any:
        context: contextvars.Context | None = options.get("context")
        attempt = current.get() if context is None else context.get(current)
        if attempt is not None and asyncio.iscoroutine(coro):
            coro = _contained(coro, attempt)
        if self._previous is not None:
            return self._previous(loop, coro, **options)
        return asyncio.Task(coro, loop=loop, **options)

    def restore(self, loop: asyncio.AbstractEventLoop) -> None:
        # Somebody may have put a factory of theirs on top: then ours stays below it, and passes everything on.
        if loop.get_task_factory() is self:
            loop.set_task_factory(self._previous)


_factories: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Factory] = weakref.WeakKeyDictionary()


def install(loop: asyncio.AbstractEventLoop) -> None:
    """Puts the factory before the loop's; once a loop, however many workers ask."""
    factory = _factories.get(loop)
    if factory is None:
        factory = _factories[loop] = _Factory(loop)
        loop.set_task_factory(factory)
    factory.users += 1


def uninstall(loop: asyncio.AbstractEventLoop) -> None:
    """Gives the loop its own factory back when the last worker that asked has stopped."""
    factory = _factories.get(loop)
    if factory is None:
        return
    factory.users -= 1
    if factory.users <= 0:
        del _factories[loop]
        factory.restore(loop)
