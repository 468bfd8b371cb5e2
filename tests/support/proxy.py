"""A proxy between an engine and Postgres, on a Unix socket, that can lose one request, or the answer to one.

It reads the frontend's messages: a Parse names a statement, a Bind runs it, so that a loss can be told by the
statement's own text. Losing means that both connections end; before an answer is lost, Postgres has given it.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import parse_qs, quote, urlsplit, urlunsplit

Part = Literal["request", "answer"]
_SOCKET = ".s.PGSQL.5432"
_READY = b"Z"


@dataclass
class Loss:
    """One loss: ordered, and happened once `happened` is set."""

    statement: str
    part: Part
    with_commit: bool
    happened: asyncio.Event


class Proxy:
    """Forwards connections; `lose` orders a loss, the next statement that fits has it."""

    def __init__(self, url: str, folder: Path) -> None:
        parts = urlsplit(url)
        query = parse_qs(parts.query)
        self._server = f"{query['host'][0]}/.s.PGSQL.{query.get('port', ['5432'])[0]}"
        self._losses: list[Loss] = []
        self._links: set[asyncio.Task[None]] = set()
        self.socket = folder / _SOCKET
        self.url = urlunsplit(parts._replace(query=f"host={quote(str(folder))}&port=5432"))

    def lose(self, part: Part, statement: str, *, with_commit: bool = False) -> Loss:
        """Lose the next run of a statement, or its answer; `with_commit`: those of the COMMIT that follows it."""
        loss = Loss(statement, part, with_commit, asyncio.Event())
        self._losses.append(loss)
        return loss

    def ordered(self, statement: str) -> Loss | None:
        return next((loss for loss in self._losses if loss.statement == statement), None)

    def fulfil(self, loss: Loss) -> None:
        self._losses.remove(loss)
        loss.happened.set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._links.add(task)
        try:
            server = await asyncio.open_unix_connection(self._server)
            await _Link(self, (reader, writer), server).run()
        except OSError:
            writer.close()
        finally:
            self._links.discard(task)

    async def end(self) -> None:
        for link in tuple(self._links):
            link.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Link:
    """One connection through the proxy."""

    def __init__(self, proxy: Proxy, client: Stream, server: Stream) -> None:
        self._proxy = proxy
        self._from_client, self._to_client = client
        self._from_server, self._to_server = server
        self._statements: dict[bytes, str] = {}
        self._awaits_commit: Loss | None = None
        self._swallowing: Loss | None = None

    async def run(self) -> None:
        ways = [asyncio.create_task(self._ask()), asyncio.create_task(self._answer())]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for writer in (self._to_client, self._to_server):
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()

    async def _ask(self) -> None:
        length = await self._from_client.readexactly(4)  # the first message has no kind
        self._to_server.write(length + await self._from_client.readexactly(int.from_bytes(length) - 4))
        while True:
            kind, message = await _read(self._from_client)
            loss = self._judge(kind, message[5:])
            if loss is not None and loss.part == "request":
                self._proxy.fulfil(loss)
                return
            self._swallowing = self._swallowing or loss
            self._to_server.write(message)
            await self._to_server.drain()

    async def _answer(self) -> None:
        while True:
            kind, message = await _read(self._from_server)
            if self._swallowing is None:
                self._to_client.write(message)
                await self._to_client.drain()
            elif kind == _READY:
                self._proxy.fulfil(self._swallowing)
                return

    def _judge(self, kind: bytes, body: bytes) -> Loss | None:
        """The loss that this message is to suffer."""
        match kind:
            case b"P":
                name, text, *_ = body.split(b"\0")
                self._statements[name] = text.decode()
                return None
            case b"B":
                loss = self._proxy.ordered(self._statements.get(body.split(b"\0")[1], ""))
                if loss is not None and loss.with_commit:
                    self._awaits_commit = loss
                    return None
                return loss
            case b"Q" if body.startswith(b"COMMIT"):
                return self._awaits_commit
            case _:
                return None


async def _read(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    return head[:1], head + await reader.readexactly(int.from_bytes(head[1:]) - 4)


@asynccontextmanager
async def proxy_to(url: str) -> AsyncIterator[Proxy]:
    """A proxy to the database of that URL; engines use `proxy.url` instead of it."""
    folder = Path(tempfile.mkdtemp(prefix="stepwell-proxy-", dir="/tmp"))
    proxy = Proxy(url, folder)
    server = await asyncio.start_unix_server(proxy.accept, proxy.socket)
    try:
        yield proxy
    finally:
        server.close()
        await proxy.end()
        await server.wait_closed()
        shutil.rmtree(folder)
