"""One configured database: its engines, its clock, and how a function of the store is run on it.

Every connection that Rowlock opens is in autocommit mode. A function that needs several statements to
be one takes `db.transaction(conn)`, which says BEGIN and COMMIT itself: most hot statements stand alone,
and a transaction around one statement triples its price.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections.abc import Callable, Generator, Hashable
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Engine
from sqlalchemy.engine import URL, Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from rowlock.store import engines
from rowlock.store.clock import SYSTEM, Clock
from rowlock.store.dialects import dialect_for
from rowlock.store.dialects.base import Dialect
from rowlock.store.failures import translated
from rowlock.store.handlers import Handlers
from rowlock.store.writer import WriterStopped, WriterThread

P = ParamSpec("P")
T = TypeVar("T")
StoreFunction = Callable[Concatenate[Connection, "Database", P], T]
_INHERITED: list[object] = []
"""Engines of a parent process. Kept for ever: a driver may warn of a connection that is collected while it is open, or
say good-bye on it, in the name of the parent."""
Target = str | URL | Engine | AsyncEngine


class Database:
    """A database by name. Engines are made on first use, one sync and one async a loop, and again after a fork (E8).

    Arguments: `target` a URL as users write it, an `Engine` or an `AsyncEngine`; `pool` the most
    connections of each engine (None: 5, and 10 more under load); `wait_ms` how long one of Rowlock's own
    statements waits for a lock; `pooler` whether a transaction pooler stands in between, so that the next
    transaction may be in another session. Raises `UnsupportedDatabase`.
    """

    def __init__(
        self, name: str, target: Target, *, clock: Clock = SYSTEM, pool: int | None = None, wait_ms: int = 2_000,
        pooler: bool = False,
    ) -> None:  # fmt: skip
        self.name = name
        self.target = target
        self.clock = clock
        self.pool = pool
        self.wait_ms = wait_ms
        self.pooler = pooler
        self.url = engines.url_of(target, name)
        self.dialect: Dialect = dialect_for(self.url)
        self.telemetry: Database | None = None
        """The database that holds what is telemetry, event or audit of this one, if it is another (N9)."""
        self.installation: str | None = None
        """The random id of this database's schema, once it was read (E3)."""
        self.for_handlers = 0
        """How many transactions of handlers a worker of this process has at once (L8): so many of `pool` are theirs."""
        self.hints: dict[Hashable, tuple[int, ...]] = {}
        """What the last look of each source found: a guess for the next one, never trusted."""
        self._lock = threading.Lock()
        self._forget()

    def __repr__(self) -> str:
        return f"Database({self.name!r}, {self.url.render_as_string(hide_password=True)!r})"

    def twin(self) -> Database:
        """The same database with a pool of its own, for a thread whose work must not wait for another's (L4)."""
        return Database(
            self.name, self.target, clock=self.clock, pool=self.pool, wait_ms=self.wait_ms, pooler=self.pooler
        )

    # --- running functions of the store -------------------------------------------------------------------

    def run(self, function: StoreFunction[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs `function(conn, db, …)` on a connection of Rowlock's own, in this thread."""
        with translated(self), self.engine().connect() as conn:
            return self._guarded(conn, lambda conn: function(conn, self, *args, **kwargs))

    async def arun(self, function: StoreFunction[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same from a coroutine. Where one transaction writes at a time, what waits together shares one."""
        return await self._arun(lambda conn: function(conn, self, *args, **kwargs), write=True)

    async def aread(self, function: StoreFunction[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same for a function that only reads: on SQLite it never takes the write lock (C7)."""
        return await self._arun(lambda conn: function(conn, self, *args, **kwargs), write=False)

    async def _arun(self, function: Callable[[Connection], T], *, write: bool) -> T:
        with translated(self):
            if self.dialect.one_writer:
                while True:
                    try:
                        return await self._writer_thread().submit(function, write=write)
                    except WriterStopped:
                        continue  # closed in between by another part of this process: the next use opens it again
            async with self.async_engine().connect() as conn:
                try:
                    return await conn.run_sync(lambda sync: self._guarded(sync, function))
                except asyncio.CancelledError:
                    await self._drop(conn)
                    raise

    def _guarded(self, conn: Connection, function: Callable[[Connection], T]) -> T:
        return engines.guarded(conn, self, lambda: self._in_session(conn, function))

    def _in_session(self, conn: Connection, function: Callable[[Connection], T]) -> T:
        """Where a session lasts as long as a transaction, all statements of a function are one, settings included."""
        if not self.pooler:
            return function(conn)
        with self.transaction(conn):
            return function(conn)

    async def _drop(self, conn: AsyncConnection) -> None:
        """A reply may still be on its way: the connection is closed, not returned (C8).

        If it fell silent, so did the others of its time: they are not used again. Whoever waited for each of them in
        turn would still be waiting long after the network is back (K2).
        """
        self.silent_at = time.monotonic()
        await engines.drop(conn)

    @contextmanager
    def transaction(self, conn: Connection) -> Generator[None]:
        """Several statements as one, on a connection of Rowlock's own. Within another one it adds nothing."""
        if self.in_transaction(conn):
            yield
            return
        conn.exec_driver_sql(self.dialect.begin_pooled(self.wait_ms) if self.pooler else self.dialect.begin)
        conn.info["rowlock_transaction"] = True
        try:
            yield
            conn.exec_driver_sql("COMMIT")
        except asyncio.CancelledError:
            raise  # the connection is closed; to roll back might wait for the answer that was not waited for
        except BaseException:
            if not conn.invalidated and not conn.closed:
                engines.rollback(conn)
            raise
        finally:
            if not conn.invalidated and not conn.closed:
                conn.info.pop("rowlock_transaction", None)

    def in_transaction(self, conn: Connection) -> bool:
        """Whether `transaction` is open on this connection."""
        return bool(conn.info.get("rowlock_transaction"))

    def now_params(self) -> dict[str, Any]:
        """The parameter `rl_now` that a bound clock's statements need; empty for the database's own clock."""
        if self.clock.bound is None and not self.dialect.one_writer:
            return {}
        return {"rl_now": self.dialect.to_db(self.clock.host_now())}

    def handlers(self, size: int) -> Handlers:
        """Connections for `size` transactions of handlers (L8), for a worker, which closes them."""
        return Handlers(self, size)

    # --- engines ------------------------------------------------------------------------------------------

    def engine(self) -> Engine:
        """The sync engine of this process."""
        with self._lock:
            self._after_fork()
            if self._engine is None:
                self._engine = engines.sync_engine(self)
            return self._engine

    def async_engine(self) -> AsyncEngine:
        """The async engine of the running loop: a connection never crosses loops."""
        loop = asyncio.get_running_loop()
        with self._lock:
            self._after_fork()
            engine = self._async_engines.get(loop)
            if engine is None:
                for old in [old for old in self._async_engines if old.is_closed()]:
                    self._async_engines.pop(old).sync_engine.dispose(close=False)
                engine = self._async_engines[loop] = engines.async_engine(self)
            return engine

    def close(self) -> None:
        """Gives back every connection of this process that needs no event loop; the next use opens new ones."""
        with self._lock:
            self._after_fork()
            engine, self._engine = self._engine, None
            writer, self._writer = self._writer, None
        if writer is not None:
            writer.stop()
        if engine is not None:
            engine.dispose()

    async def aclose(self) -> None:
        """`close`, and the connections of the running loop."""
        with self._lock:
            engine = self._async_engines.pop(asyncio.get_running_loop(), None)
        if engine is not None:
            await engine.dispose()
        self.close()

    def _writer_thread(self) -> WriterThread:
        with self._lock:
            self._after_fork()
            if self._writer is None:
                self._writer = WriterThread(self)
            return self._writer

    def _after_fork(self) -> None:
        if self._pid != os.getpid():
            _INHERITED.extend([self._engine, *self._async_engines.values()])
            self._forget()

    def _forget(self) -> None:
        self._pid = os.getpid()
        self._engine: Engine | None = None
        self._async_engines: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncEngine] = (
            weakref.WeakKeyDictionary()
        )
        self._writer: WriterThread | None = None
        self.silent_at = 0.0
        """When a statement was last given up (monotonic): connections made before that are closed, not used."""
