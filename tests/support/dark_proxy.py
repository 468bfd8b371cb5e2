"""A proxy that forgets its connections, as a NAT, a firewall or a moved address does: existing links go dark, with no
FIN and no RST to either side, while new ones work at once."""

from __future__ import annotations

import asyncio
import contextlib
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit, urlunsplit

from tests.support.proxy import listening

_SOCKET = ".s.PGSQL.5432"
_PIECE = 65_536
_FLUSH = b"H\0\0\0\x04"  # the message that asks for the reply to what was sent, and ends nothing


class DarkProxy:
    """Forwards connections to a Postgres on a Unix socket; `forget()` makes all that exist go dark."""

    def __init__(self, url: str, folder: Path) -> None:
        parts = urlsplit(url)
        query = parse_qs(parts.query)
        self._server = f"{query['host'][0]}/.s.PGSQL.{query.get('port', ['5432'])[0]}"
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.forget_at: bytes | None = None  # text of a statement: its link goes dark when it is prepared
        self.bytes_per_second: float | None = None  # that clients may send
        self.socket = folder / _SOCKET
        self.url = urlunsplit(parts._replace(query=f"host={quote(str(folder))}&port=5432"))

    def forget(self) -> int:
        """Let all links go dark; returns how many there were."""
        alive = [link for link in self._links if not link.is_dark]
        for link in alive:
            link.is_dark = True
        return len(alive)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        link = _Link(self)
        self._links.add(link)
        try:
            server = await asyncio.open_unix_connection(self._server)
            await link.run((reader, writer), server)
        except (OSError, asyncio.CancelledError):  # no server, or the end of the proxy
            pass
        finally:
            writer.close()
            self._links.discard(link)
            self._tasks.discard(task)

    async def end(self) -> None:
        await asyncio.sleep(0)  # tasks of connections that were accepted just now begin
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)


class _Link:
    """One connection through the proxy; once it is dark, both sides stay open, and nothing passes."""

    def __init__(self, proxy: DarkProxy) -> None:
        self._proxy = proxy
        self.is_dark = False
        self._over = asyncio.Event()

    async def run(
        self,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        ways = [
            asyncio.create_task(self._forward(client[0], server[1], is_sent=True)),
            asyncio.create_task(self._forward(server[0], client[1])),
        ]
        try:
            await self._over.wait()
        except asyncio.CancelledError:  # the end of the proxy
            pass
        finally:
            # All of it before the first wait, which the end of the proxy may cancel.
            for way in ways:
                way.cancel()
            for writer in (client[1], server[1]):
                writer.close()
            await asyncio.gather(*ways, return_exceptions=True)
            for writer in (client[1], server[1]):
                with contextlib.suppress(OSError):
                    await writer.wait_closed()

    async def _forward(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, is_sent: bool = False
    ) -> None:
        with contextlib.suppress(OSError):
            while piece := await source.read(_PIECE):
                if is_sent and self._proxy.bytes_per_second is not None:
                    await asyncio.sleep(len(piece) / self._proxy.bytes_per_second)
                if not self.is_dark:
                    target.write(piece)
                    await target.drain()
                if self._proxy.forget_at is not None and self._proxy.forget_at in piece and piece.endswith(_FLUSH):
                    self.is_dark, self._proxy.forget_at = True, None
        if not self.is_dark:
            self._over.set()


def dark_proxy_to(url: str) -> AbstractAsyncContextManager[DarkProxy]:
    """A proxy to the database of that URL; engines use `proxy.url` instead of it."""
    return listening(DarkProxy, url)
