"""TCP proxies in their own thread: one per worker, one for the clients, one for the standby.

A proxy delays data, cuts a link in the middle of a message, closes one direction of it, or lets it go dark: data
vanishes and neither end gets an error, as with a firewall that has dropped the connection's state. New links work then.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable

Address = tuple[str, int]
_CHUNK = 64 * 1024
_LEAST, _MOST = 200, 20_000  # bytes that pass a link before it is truncated


class Proxy:
    """Listens on a port and forwards to the target. The attributes are read for each chunk."""

    def __init__(self, name: str, dice: random.Random) -> None:
        self.name = name
        self.dice = dice
        self.port = 0
        self.target: Address | None = None
        self.refuses = False
        self.delays: tuple[float, float] | None = None  # seconds for each chunk, in each direction
        self.truncates = False
        self.harmed = 0  # chunks that were delayed or cut off
        self.loop: asyncio.AbstractEventLoop
        self._server: asyncio.Server
        self._links: set[_Link] = set()

    async def open(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = self.target
        if self.refuses or target is None:
            writer.transport.abort()
            return
        try:
            server = await asyncio.open_connection(*target)
        except OSError:
            writer.transport.abort()
            return
        link = _Link(self, (reader, writer), server)
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)

    def cut(self) -> None:
        """Break all links."""
        self._to_links(_Link.abort)

    def go_dark(self) -> int:
        """Drop all data of the existing links, without an error at either end; returns the number of links."""
        return self._to_links(_Link.go_dark)

    def end_dark(self) -> None:
        """Break the links that went dark, as keepalives do in the end."""
        self._to_links(lambda link: link.abort() if link.is_dark else None)

    def half_close(self) -> int:
        """Close one direction of each link; the other one stays open. Returns how many there are."""
        return self._to_links(lambda link: link.half_close(towards_client=self.dice.random() < 0.5))

    def _to_links(self, act: Callable[[_Link], None]) -> int:
        """Do it to every link there is, in the thread of the proxies."""

        async def act_on_all() -> int:
            links = tuple(self._links)
            for link in links:
                act(link)
            return len(links)

        return asyncio.run_coroutine_threadsafe(act_on_all(), self.loop).result(10)

    def close(self) -> None:
        self._server.close()
        for link in tuple(self._links):
            link.abort()


class _Link:
    """One connection through a proxy."""

    def __init__(
        self, proxy: Proxy, client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:  # fmt: skip
        self._proxy = proxy
        self._from_client, self._to_client = client
        self._from_server, self._to_server = server
        self._left: int | None = None  # bytes until it is truncated
        self._ended = asyncio.Event()
        self.is_dark = False

    async def run(self) -> None:
        ways = [
            asyncio.create_task(self._pass_on(self._from_client, self._to_server)),
            asyncio.create_task(self._pass_on(self._from_server, self._to_client)),
        ]
        try:
            await self._ended.wait()
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            self._to_client.transport.abort()
            self._to_server.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(_CHUNK):
                if self._proxy.delays is not None:
                    self._proxy.harmed += 1
                    await asyncio.sleep(self._proxy.dice.uniform(*self._proxy.delays))
                chunk = self._cut_off(chunk)
                if not self.is_dark and not writer.is_closing():
                    writer.write(chunk)
                    await writer.drain()
                if self._left is not None and self._left <= 0:
                    break
        if self.is_dark:
            return  # the other end gets no error
        with contextlib.suppress(OSError):
            await writer.drain()
        self._ended.set()

    def _cut_off(self, chunk: bytes) -> bytes:
        if not self._proxy.truncates:
            return chunk
        if self._left is None:
            self._left = self._proxy.dice.randrange(_LEAST, _MOST)
        part = chunk[: self._left]
        self._left -= len(chunk)
        self._proxy.harmed += self._left <= 0
        return part

    def go_dark(self) -> None:
        self.is_dark = True

    def half_close(self, *, towards_client: bool) -> None:
        writer = self._to_client if towards_client else self._to_server
        if writer.can_write_eof() and not writer.is_closing():
            writer.write_eof()

    def abort(self) -> None:
        self._ended.set()


class Proxies:
    """All proxies of a run, and their thread."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._proxies: dict[str, Proxy] = {}
        self._target: Address | None = None
        self._thread.start()

    def get(self, name: str) -> Proxy:
        """The proxy of that name, opened if there is none yet."""
        if name not in self._proxies:
            proxy = Proxy(name, random.Random(f"{self._seed} {name}"))  # noqa: S311 - not a secret
            proxy.target = self._target
            asyncio.run_coroutine_threadsafe(proxy.open(), self._loop).result(10)
            self._proxies[name] = proxy
        return self._proxies[name]

    def all(self) -> list[Proxy]:
        return list(self._proxies.values())

    def lead_to(self, address: Address | None) -> None:
        """Forward new links there; those that exist are cut by the server's own end."""
        self._target = address
        for proxy in self._proxies.values():
            proxy.target = address

    def close(self) -> None:
        for proxy in self._proxies.values():
            self._loop.call_soon_threadsafe(proxy.close)
        self._loop.call_soon_threadsafe(self._loop.call_later, 0.2, self._loop.stop)
        self._thread.join(10)
        if not self._loop.is_running():
            self._loop.close()
