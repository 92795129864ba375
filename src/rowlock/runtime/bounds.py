"""How long one of the runtime's own statements may take before its connection is given up."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rowlock.store.database import Database

T = TypeVar("T")


async def bounded(db: Database, statement: Coroutine[Any, Any, T], seconds: float) -> T:
    """The statement's result, or TimeoutError after `seconds`: the connection is then closed, not reused (C8).

    A database that is a file has no network that swallows an answer, and bounds its own waits: there the statement is
    waited for, because its thread goes on with it anyway.
    """
    if db.dialect.one_writer:
        return await statement
    async with asyncio.timeout(seconds):
        return await statement
