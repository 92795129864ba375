"""An ASGI application, served by uvicorn in the worker's own loop (M4): started last, stopped first (M5, M6)."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

from rowlock.errors import StartRefused
from rowlock.runtime.bounds import end_all
from rowlock.runtime.describe import brief, log

if TYPE_CHECKING:
    from rowlock.model.settings import HttpSettings

# The application's own shutdown, once its last request has ended.
LIFESPAN_S = 5.0


def application(http: HttpSettings, origin: str) -> Any:
    """The ASGI application that `http.app` names. Raises `StartRefused` before anything is listened on (M3)."""
    where = f"{origin}: http.app is {http.app!r}"
    if importlib.util.find_spec("uvicorn") is None:
        raise StartRefused(f"{where}, and uvicorn, which serves it, is not installed (M4); pip install 'rowlock[http]'")
    module, _, path = (http.app or "").partition(":")
    try:
        found: Any = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except Exception as error:
        why = str(error) if isinstance(error, ImportError | AttributeError) else brief(error)
        raise StartRefused(
            f"{where}, which can not be had ({why}); write module:name of an ASGI application (M4)"
        ) from error
    if not callable(found):
        raise StartRefused(f"{where}, which is a {type(found).__name__} and no ASGI application (M4); name one")
    return found


class Http:
    """One listening socket and what is served on it. All of it on the loop."""

    def __init__(self, app: Any, http: HttpSettings, on_end: Callable[[], object]) -> None:
        import uvicorn

        class Server(uvicorn.Server):
            @contextmanager
            def capture_signals(self) -> Generator[None]:
                yield  # signals are the command's (M6)

            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets=sockets)
                up.set()

        up = self._up = asyncio.Event()

        # Its logging is left as the program has set it up; requests are the application's to log.
        config = uvicorn.Config(app, lifespan="auto", log_config=None, access_log=False, loop="none")
        self._server = Server(config)
        self._http = http
        self._on_end = on_end
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self.failed = False
        """It ended by itself."""
        self.address = ""

    async def listen(self) -> None:
        """The application's own start, then requests. Raises `StartRefused`."""
        listening = self._bound()
        host, port = listening.getsockname()[:2]
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._task = asyncio.create_task(self._serve(listening), name="rowlock http")
        up = asyncio.create_task(self._up.wait())
        try:
            await asyncio.wait({up, self._task}, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            self._stopping = True
            await end_all([self._task])
            raise
        finally:
            await end_all([up])
        if not self._server.started:
            raise StartRefused(f"http.app {self._http.app!r} refused to start (M4); what it says stands in the log")

    def _bound(self) -> socket.socket:
        host, port = self._http.host, self._http.port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            return socket.create_server((host, port), family=family, backlog=2048)
        except OSError as error:
            raise StartRefused(
                f"http.host {host!r}, http.port {port}: can not listen there ({error.strerror or error}) (M4); "
                f"free the port, or give another one"
            ) from error

    async def _serve(self, listening: socket.socket) -> None:
        with contextlib.closing(listening):
            try:
                await self._server.serve(sockets=[listening])
            except SystemExit:
                pass  # how uvicorn says that the application's start failed, which it has logged
            except Exception as error:  # noqa: BLE001 - whatever it is, the process drains and ends with 1
                log.error("serving HTTP failed (%s)", brief(error))
        if not self._stopping and self._server.started:  # else `listen` says it
            self.failed = True
            self._on_end()

    def close(self) -> None:
        """Takes no more connections, from this moment on; those that are open go on (M6)."""
        self._stopping = True
        self._server.should_exit = True
        for server in getattr(self._server, "servers", ()):
            server.close()

    async def stop(self, grace: float) -> bool:
        """Requests in flight have `grace` seconds, then they are cancelled. True if none had to be (M6)."""
        self.close()
        if self._task is None:
            return True
        self._server.config.timeout_graceful_shutdown = max(1, round(grace))
        begun = monotonic()
        await asyncio.wait({self._task}, timeout=grace + LIFESPAN_S)
        in_time = self._task.done() and monotonic() - begun < max(1.0, grace)
        await end_all([self._task])
        if not in_time:
            log.warning("requests in flight did not end within %g s, and were cut off (M6)", grace)
        return in_time and not self.failed
