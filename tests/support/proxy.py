"""A TCP proxy before a database server: passes, refuses, resets, delays, or swallows what goes through it.

with Proxy(own_server.url) as proxy:
    app = App(proxy.url)
    proxy.mode("blackhole")                  # connections stay open, nothing arrives on either side
    proxy.after(b"COMMIT", "blackhole")      # the server gets the next COMMIT, the client never its answer
    proxy.cut.wait()                         # … and it has happened: the server has answered
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import threading
from collections.abc import Awaitable, Callable
from typing import Literal, Self, TypeVar

from sqlalchemy.engine import URL, make_url

from support.urls import plain
from support.waiting import BOUND, Signal

Mode = Literal["pass", "refuse", "reset", "delay", "blackhole"]
T = TypeVar("T")


class _Link:
    """One client's connection and its counterpart to the server."""

    def __init__(self, client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self.client, self.server = client, server
        self.cut: str | None = None

    def reset(self) -> None:
        for writer in (self.client, self.server):
            _reset(writer)


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    if (
        sock.family == socket.AF_INET and sock.fileno() >= 0
    ):  # else it has been closed meanwhile  # closing with a linger time of 0 sends RST instead of FIN
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


class Proxy:
    """Runs on a thread of its own from `with` to its end. `cut` is set when `after` has done its work."""

    def __init__(self, target: URL | str) -> None:
        self._target = make_url(target)
        self._mode: Mode = "pass"
        self._seconds = 0.0
        self._armed: tuple[re.Pattern[bytes], str] | None = None
        self._links: set[_Link] = set()
        self._server: asyncio.Server | None = None
        self.port = 0
        self.cut = Signal("the proxy cut a connection")

    @property
    def url(self) -> str:
        """The target's URL through this proxy, as a user writes it."""
        return plain(self._target.set(host="127.0.0.1", port=self.port).difference_update_query(["unix_socket"]))

    # --- from the test's thread ---

    def __enter__(self) -> Self:
        started = Signal("the proxy listens")
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main(started)), name="proxy", daemon=True)
        self._thread.start()
        started.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(BOUND)

    def mode(self, mode: Mode, seconds: float = 0.2) -> None:
        """From now on, also for open connections. `seconds` is the delay of each chunk in mode `delay`."""
        self._do(lambda: self._set(mode, seconds))

    def after(self, pattern: bytes, then: Literal["blackhole", "reset"] = "blackhole") -> None:
        """Cut the one connection that next sends `pattern`, once the server has answered to it; the answer is lost.

        A COMMIT is told from the AUTOCOMMIT that PyMySQL sends when it connects.

        Only what is sent as text can be found: BEGIN, COMMIT, ROLLBACK, and statements that are not prepared.
        """
        self.cut.clear()
        self._armed = (re.compile(rb"(?<!AUTO)" + re.escape(pattern)), then)

    def _do(self, action: Callable[[], Awaitable[T]]) -> T:
        async def run() -> T:
            return await action()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(BOUND)

    # --- on the proxy's loop ---

    async def _main(self, started: Signal) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        await self._listen()
        started.set()
        await self._end.wait()
        await self._set("reset", 0)
        if self._server:
            self._server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _set(self, mode: Mode, seconds: float) -> None:
        self._mode, self._seconds = mode, seconds
        if mode == "refuse" and self._server:
            self._server.close()
            self._server = None
        elif mode != "refuse" and self._server is None:
            await self._listen()
        if mode == "reset":
            for link in list(self._links):
                link.reset()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._mode == "reset":
            return _reset(writer)
        try:
            from_server, to_server = await self._connect()
        except OSError:
            return _reset(writer)
        link = _Link(writer, to_server)
        self._links.add(link)
        try:
            await asyncio.gather(self._up(link, reader), self._down(link, from_server))
        except asyncio.CancelledError:  # the proxy ends; a stream's callback would print it
            pass
        finally:
            self._links.discard(link)
            link.client.close()
            link.server.close()
        return None

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if path := self._target.query.get("unix_socket"):
            return await asyncio.open_unix_connection(str(path))
        return await asyncio.open_connection(self._target.host, self._target.port)

    async def _up(self, link: _Link, reader: asyncio.StreamReader) -> None:
        async for data in self._chunks(reader):
            if self._armed and self._armed[0].search(data):
                (_, link.cut), self._armed = self._armed, None
            link.server.write(data)
        if not self._dark(link):
            link.server.close()

    async def _down(self, link: _Link, reader: asyncio.StreamReader) -> None:
        async for data in self._chunks(reader):
            if link.cut:
                self.cut.set()
                if link.cut == "reset":
                    link.reset()
                continue
            link.client.write(data)
        if not self._dark(link):
            link.client.close()

    def _dark(self, link: _Link) -> bool:
        """Whether the end of one side must be hidden from the other."""
        return self._mode == "blackhole" or link.cut == "blackhole"

    async def _chunks(self, reader: asyncio.StreamReader):
        while True:
            try:
                data = await reader.read(65536)
            except ConnectionError:
                return
            if not data:
                return
            if self._mode == "delay":
                await asyncio.sleep(self._seconds)
            if self._mode != "blackhole":
                yield data
