"""Bounds: of one of the runtime's own statements, and of a task that has to end."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rowlock.store.database import Database

T = TypeVar("T")
AGAIN_S = 0.5


async def bounded(db: Database, statement: Coroutine[Any, Any, T], seconds: float) -> T:
    """The statement's result, or TimeoutError after `seconds`: the connection is then closed, not reused (C8).

    A database that is a file has no network that swallows an answer, and bounds its own waits: there the statement is
    waited for, because its thread goes on with it anyway.
    """
    if db.dialect.one_writer:
        return await statement
    async with asyncio.timeout(seconds):
        return await statement


async def end_all(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancels the tasks until each has ended.

    Once is not always enough. Before Python 3.12 `asyncio.wait_for` forgets a cancellation that comes in the moment in
    which what it waits for is done, and drivers connect with it; the task would then go on as if nothing had been said.
    """
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        done, left = await asyncio.wait(left, timeout=AGAIN_S)
        for task in done:
            if not task.cancelled():
                task.exception()  # looked at: asyncio need not say that nobody did
