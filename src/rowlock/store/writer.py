"""The one thread that does a SQLite file's async work.

A thread hop costs a fraction of what an async driver costs there, and commits are the limit: what waits
at the same time (a claim, a settlement, enqueues) goes into one write transaction, each in a savepoint
of its own.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from sqlalchemy.engine import Connection

if TYPE_CHECKING:
    from rowlock.store.database import Database

T = TypeVar("T")
MOST_TOGETHER = 64


class _Task(NamedTuple):
    function: Callable[[Connection], Any]
    write: bool
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]


class WriterStopped(Exception):  # noqa: N818 - it tells what happened; the caller asks the next thread
    """The thread takes no more work: its database was closed."""


class WriterThread:
    """Runs functions on one connection, in the order in which they came; starts with the first, ends with `stop`."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._queue: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._stopped = False
        self._thread = threading.Thread(target=self._serve, name=f"rowlock-sqlite-{db.name}", daemon=True)
        self._thread.start()

    async def submit(self, function: Callable[[Connection], T], *, write: bool) -> T:
        """The function's result. A caller that is cancelled leaves its function to run: it can not be stopped.

        Raises `WriterStopped`, without having run it, after `stop`.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        with self._lock:
            if self._stopped:
                raise WriterStopped
            self._queue.put(_Task(function, write, loop, future))
        return await future

    def stop(self) -> None:
        """Finishes what was submitted, and ends the thread."""
        with self._lock:  # nothing is put behind the end, where nobody would answer it
            self._stopped = True
            self._queue.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout=10)

    # --- on the thread ------------------------------------------------------------------------------------

    def _serve(self) -> None:
        conn: Connection | None = None
        going = True
        while going:
            tasks, going = self._next()
            if not tasks:
                continue
            try:
                if conn is None or conn.closed or conn.invalidated:
                    conn = self._db.engine().connect()
                self._perform(conn, tasks)
            except BaseException as error:  # noqa: BLE001 - whatever it is belongs to those who wait, never to this thread
                for task in tasks:
                    _answer(task, error=error)
                if conn is not None:
                    _discard(conn)
                conn = None
        if conn is not None:
            conn.close()

    def _next(self) -> tuple[list[_Task], bool]:
        """The next task, with all the writes that stand right behind a write."""
        first = self._queue.get()
        if first is None:
            return [], False
        tasks = [first]
        while first.write and len(tasks) < MOST_TOGETHER:
            try:
                following = self._queue.get_nowait()
            except queue.Empty:
                break
            if following is None:
                return tasks, False
            tasks.append(following)
        return tasks, True

    def _perform(self, conn: Connection, tasks: list[_Task]) -> None:
        if len(tasks) == 1:
            task = tasks[0]
            try:
                result = task.function(conn)
            except Exception as error:  # noqa: BLE001 - it belongs to who waits
                _answer(task, error=error)
            else:
                _answer(task, result=result)
            return
        done: list[tuple[_Task, Any, BaseException | None]] = []
        with self._db.transaction(conn):
            for task in tasks:
                conn.exec_driver_sql("SAVEPOINT rowlock_task")
                try:
                    done.append((task, task.function(conn), None))
                except Exception as error:  # noqa: BLE001 - it belongs to who waits
                    conn.exec_driver_sql("ROLLBACK TO rowlock_task")
                    done.append((task, None, error))
                conn.exec_driver_sql("RELEASE rowlock_task")
        for task, result, error in done:  # only after the commit is anything said to have happened
            _answer(task, result=result, error=error)


def _answer(task: _Task, *, result: Any = None, error: BaseException | None = None) -> None:
    def deliver() -> None:
        if task.future.done():
            return
        if error is not None:
            task.future.set_exception(error)
        else:
            task.future.set_result(result)

    try:
        task.loop.call_soon_threadsafe(deliver)
    except RuntimeError:
        return  # the loop of the one who asked is closed: nobody waits any more


def _discard(conn: Connection) -> None:
    try:
        conn.invalidate()
        conn.close()
    except Exception:  # noqa: BLE001 - it is thrown away in any case
        return
