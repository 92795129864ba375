"""Connections for the transactions that handlers work in: a pool of their own, made by a worker and closed with it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from rowlock.store import engines
from rowlock.store.failures import translated
from rowlock.store.transactional import HandlerTransaction

if TYPE_CHECKING:
    from rowlock.store.database import Database


class Handlers:
    """At most `size` transactions of handlers at once are expected; more get connections that are not kept."""

    def __init__(self, db: Database, size: int) -> None:
        self._db = db
        self._size = max(1, size)
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._async_engine: AsyncEngine | None = None

    @contextmanager
    def open(self) -> Generator[HandlerTransaction]:
        """A sync handler's transaction, begun; undone unless it was committed. On the handler's own thread."""
        with translated(self._db):
            transaction = self._made()
        try:
            with translated(self._db):
                transaction.begin()
            yield transaction
        finally:
            transaction.abandon()
            transaction.close()

    def _made(self) -> HandlerTransaction:
        return HandlerTransaction(self._db, self._sync().connect())

    @asynccontextmanager
    async def aopen(self, patience_s: float) -> AsyncGenerator[HandlerTransaction]:
        """The same for an async handler. One that was cancelled may have left a reply on its way: `drop` it.

        Raises TimeoutError if it takes longer than `patience_s` to begin (K2); so may what is done inside.
        """
        with translated(self._db):
            async with self.within(patience_s):
                conn = await self._async().connect()
        assert conn.sync_connection is not None
        transaction = HandlerTransaction(self._db, conn.sync_connection, conn)
        try:
            with translated(self._db):
                async with self.within(patience_s):
                    await conn.run_sync(lambda _: transaction.begin())
            yield transaction
        except (asyncio.CancelledError, TimeoutError):
            transaction.dropped = True
            raise
        finally:
            await self._end(transaction, conn, patience_s)

    def within(self, seconds: float) -> asyncio.Timeout:
        """A bound for what an answer may never come to. A file has no network, and bounds its own waits."""
        return asyncio.timeout(None if self._db.dialect.one_writer else seconds)

    async def _end(self, transaction: HandlerTransaction, conn: AsyncConnection, patience_s: float) -> None:
        def end(_: object) -> None:
            transaction.abandon()
            transaction.close()

        if not transaction.dropped:
            try:
                async with self.within(patience_s):
                    await conn.run_sync(end)
            except TimeoutError:
                transaction.dropped = True
        if transaction.dropped:
            transaction.forget()
            await engines.drop(conn)
            await conn.close()

    def close(self) -> None:
        """Closes what no handler holds at this moment."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.dispose()

    async def aclose(self) -> None:
        """`close`, and the connections of the running loop."""
        engine, self._async_engine = self._async_engine, None
        if engine is not None:
            await engine.dispose()
        self.close()

    def _sync(self) -> Engine:
        with self._lock:  # the first handlers come on several threads
            if self._engine is None:
                self._engine = engines.handler_engine(self._db, self._size)
            return self._engine

    def _async(self) -> AsyncEngine:
        if self._async_engine is None:
            self._async_engine = engines.async_handler_engine(self._db, self._size)
        return self._async_engine
