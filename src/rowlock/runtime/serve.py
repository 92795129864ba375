"""Runs a program: as the command, inside an application's own loop, or on a thread beside it (M3, M5, M6)."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TypeVar

from rowlock.runtime import http, start
from rowlock.runtime.bounds import end_all
from rowlock.runtime.gauges import gauges
from rowlock.runtime.health import HealthReport, LoopReport, Status
from rowlock.runtime.metrics import Metric
from rowlock.runtime.program import Program
from rowlock.runtime.signals import SIGNALS, leave_now
from rowlock.runtime.worker import CUT_OFF_S, FLUSH_S, Worker

T = TypeVar("T")

CLOSE_S = 5.0

_live: weakref.WeakKeyDictionary[Program, list[_Live]] = weakref.WeakKeyDictionary()


def main(
    app: Program, *, mode: str | None = None, queues: Collection[str] | None = None, wait: bool = True,
    uvloop: bool = False,
) -> int:  # fmt: skip
    """`run` in a new loop, of uvloop if asked for and installed; answers the exit code.

    Does not return when a handler could not be stopped: the process then ends here, with 1, because nothing may wait
    for such a handler (M6).
    """
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if uvloop:
        with suppress(ImportError):
            from uvloop import new_event_loop as factory
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(run(app, mode=mode, queues=queues, wait=wait))


async def run(
    app: Program, *, mode: str | None = None, queues: Collection[str] | None = None, wait: bool = True
) -> int:
    """Serves until a signal or `app.stop()`; answers the exit code: 0 when drained, else 1 (M6).

    Arguments: `mode` narrows the settings' (M3); `queues` are served (None: all); `wait` waits for a database that
    is not there, else `DatabaseUnavailable` within 5 s. Raises what `start.prepare` raises. From the main thread.
    """
    SIGNALS.install()
    live = _Live(asyncio.get_running_loop())
    SIGNALS.attach(live.loop, live.close_gate, live.stop)
    drained = True
    try:
        with live.known(app):
            asked = start.mode_of(app, mode)
            if asked != "worker":
                settings = app.settings.http
                live.http = http.Http(http.application(settings, app.settings.origin), settings, on_end=live.stop)
            worker = await live.unless_stopped(start.prepare(app, queues=queues, wait=wait))
            if worker is not None:
                drained = await _serve(app, live, None if asked == "api" else worker)
    finally:
        await _close(app)
        SIGNALS.finish()
        _flush_logs()
    if not drained and live.worker is not None and live.worker.running:
        # The runner would wait for the handlers that did not end.
        leave_now("ended with handlers that could not be stopped; their records come back when their leases end")
    return 0 if drained else 1


async def _serve(app: Program, live: _Live, worker: Worker | None) -> bool:
    """Listens and claims until it is told to stop; answers whether all of it came to its end (M5, M6)."""
    ready: list[str] = []
    try:
        if live.http is not None:
            await live.unless_stopped(live.http.listen())
            ready.append(f"http={live.http.address}")
        if worker is not None and not live.stopped.is_set():
            live.serve(worker)
            await worker.start()
            ready.insert(0, f"queues={','.join(worker.queues)}")
        if not live.stopped.is_set():
            sys.stderr.write(f"ready: {' '.join(ready)}\n")
            sys.stderr.flush()
        await live.stopped.wait()
    finally:
        stopping = [part.stop(_grace_s(app)) for part in (live.http, worker) if part is not None]
        ended = await asyncio.gather(*stopping)
    return all(ended) and (worker is None or worker.failed_by is None)


@asynccontextmanager
async def embedded(app: Program, *, queues: Collection[str] | None = None) -> AsyncGenerator[Worker]:
    """A worker on the running loop, for as long as the block lasts; no signal handlers.

    Entering fails at once for a database that is not there; leaving drains for at most `shutdown_ms` and a little. In
    mode api nothing is claimed, nor within the command, which works by itself: the worker is then one that never starts
    (M3).
    """
    live = _Live(asyncio.get_running_loop())
    idle = app.settings.runtime.mode == "api" or any(other.http for other in _live.get(app, ()))
    with live.known(app):
        worker = await start.prepare(app, queues=queues)
        if idle:
            yield worker
            return
        live.serve(worker)
        await worker.start()
        live.on_stop = lambda: worker.stop(_grace_s(app))
        if live.stopped.is_set():
            live.stop()
        try:
            yield worker
        finally:
            await worker.stop(_grace_s(app))


@contextmanager
def in_thread(app: Program, *, queues: Collection[str] | None = None) -> Generator[None]:
    """A worker on a thread with a loop of its own, for as long as the block lasts; no signal handlers.

    Entering waits until it may claim, and raises what prevents that; leaving drains like `embedded`.
    """
    begun = threading.Event()
    failure: list[BaseException] = []
    ending: list[Callable[[], object]] = []

    async def serve() -> None:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        try:
            async with embedded(app, queues=queues):
                ending.append(lambda: loop.call_soon_threadsafe(over.set))
                begun.set()
                await over.wait()
        finally:
            await _close(app)

    def body() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:  # noqa: BLE001 - it is raised where the thread was asked for
            failure.append(error)
        finally:
            begun.set()

    thread = threading.Thread(target=body, name="rowlock-worker", daemon=True)
    thread.start()
    begun.wait()
    if failure:
        raise failure[0]
    try:
        yield
    finally:
        with suppress(RuntimeError):  # its loop is closed when it has ended by itself
            ending[0]()
        thread.join(_grace_s(app) + CUT_OFF_S + 2 * FLUSH_S + CLOSE_S)


def stop(app: Program) -> None:
    """Asks every worker of the application in this process to drain, from any thread or handler; never waits."""
    for live in tuple(_live.get(app, ())):
        live.stop_threadsafe()


def health(app: Program) -> HealthReport:
    """Of the application's workers in this process: the worst status, and each loop (H1). From any thread."""
    status: Status = "stopped"
    loops: dict[str, LoopReport] = {}
    for number, worker in enumerate(workers(app)):
        own, reports = worker.health.loops()
        status = own if number == 0 or status == "ok" else status
        for name, report in reports.items():
            loops[name if name not in loops else f"{name}#{number + 1}"] = report
    claimed, lost, settled = app.meter.totals()
    return {
        "status": status,
        "loops": loops,
        "counters": {"claimed": claimed, "lost": lost, "settled": settled},
    }


def metrics(app: Program) -> dict[str, Metric]:
    """The application's metrics in this process, by name (H2). From any thread."""
    return app.meter.read() | gauges(workers(app))


def workers(app: Program) -> list[Worker]:
    """The application's workers in this process."""
    return [live.worker for live in tuple(_live.get(app, ())) if live.worker is not None]


class _Live:
    """A worker that is being started or runs, and the ways to stop it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.stopped = asyncio.Event()
        self.worker: Worker | None = None
        self.http: http.Http | None = None
        self.on_stop: Callable[[], Awaitable[object]] | None = None
        self._task: asyncio.Future[object] | None = None

    @contextmanager
    def known(self, app: Program) -> Generator[None]:
        """`stop(app)` and `health(app)` find it within the block."""
        _live.setdefault(app, []).append(self)
        try:
            yield
        finally:
            _live[app].remove(self)

    def serve(self, worker: Worker) -> None:
        self.worker = worker
        worker.on_stuck = self.stop

    def close_gate(self) -> None:
        if self.worker is not None:
            self.worker.close_gate()

    def stop(self) -> None:
        self.stopped.set()
        if self.http is not None:
            self.http.close()
        if self.on_stop is not None and self._task is None:
            self._task = asyncio.ensure_future(self.on_stop())

    def stop_threadsafe(self) -> None:
        self.close_gate()
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.stop)

    async def unless_stopped(self, what: Awaitable[T]) -> T | None:
        """Its result, or None if the stop came first: then it is cancelled."""
        doing = asyncio.ensure_future(what)
        stopping = asyncio.ensure_future(self.stopped.wait())
        try:
            await asyncio.wait({doing, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if doing.done() and not self.stopped.is_set():
                return doing.result()
            return None
        finally:
            await end_all([doing, stopping])


def _grace_s(app: Program) -> float:
    return app.settings.runtime.shutdown_ms / 1000


async def _close(app: Program) -> None:
    """Gives all connections back; a server that does not answer is not waited for."""
    for db in app.databases.values():
        with suppress(Exception):
            async with asyncio.timeout(CLOSE_S):
                await db.aclose()


def _flush_logs() -> None:
    for handler in logging.getLogger().handlers:
        with suppress(Exception):
            handler.flush()
