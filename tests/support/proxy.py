"""A proxy between an engine and Postgres, on a Unix socket, that loses or holds one request or one reply.

It can also drop all notifications, as a pooler may. It reads the frontend's messages: a Parse names a statement, a
Bind runs it, so a statement's own text selects the mishap. After a loss both connections end; before a reply is lost
or held, Postgres has sent it.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, TypeVar
from urllib.parse import parse_qs, quote, urlsplit, urlunsplit

Part = Literal["request", "answer", "copied rows"]
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_SOME_ROWS = 100_000  # bytes; a sender of more waits until the rest is read
_SOCKET = ".s.PGSQL.5432"
_READY = b"Z"
_NOTICE = b"A"


@dataclass(eq=False)
class Mishap:
    """The mishap of one run of a statement: `happened` once it has, `release()` lets what is held pass."""

    statement: str
    part: Part
    is_loss: bool
    with_commit: bool = False
    happened: asyncio.Event = field(default_factory=asyncio.Event)
    _gate: asyncio.Event = field(default_factory=asyncio.Event)

    def release(self) -> None:
        self._gate.set()

    async def pass_by(self) -> None:
        await self._gate.wait()


class Proxy:
    """Forwards connections; `lose` and `hold` order a mishap, and the next run of the statement has it."""

    def __init__(self, url: str, folder: Path) -> None:
        parts = urlsplit(url)
        query = parse_qs(parts.query)
        self._server = f"{query['host'][0]}/.s.PGSQL.{query.get('port', ['5432'])[0]}"
        self._ordered: list[Mishap] = []
        self._links: set[asyncio.Task[None]] = set()
        self.swallows_notices = False
        self.socket = folder / _SOCKET
        self.url = urlunsplit(parts._replace(query=f"host={quote(str(folder))}&port=5432"))

    def lose(self, part: Part, statement: str, *, with_commit: bool = False) -> Mishap:
        """Lose the next run of a statement, or its reply; `with_commit`: those of the COMMIT that follows it."""
        return self._order(Mishap(statement, part, is_loss=True, with_commit=with_commit))

    def lose_copied_rows(self) -> Mishap:
        """Lose the rows of the next COPY, when some of them have been sent."""
        return self._order(Mishap("COPY", "copied rows", is_loss=True))

    def hold(self, part: Part, statement: str, *, with_commit: bool = False) -> Mishap:
        """Hold the next run of a statement, or its reply, until it is released; `with_commit` as above."""
        return self._order(Mishap(statement, part, is_loss=False, with_commit=with_commit))

    def take(self, statement: str) -> Mishap | None:
        """The mishap that is ordered for this run."""
        found = next((mishap for mishap in self._ordered if mishap.statement == statement), None)
        if found is not None:
            self._ordered.remove(found)
        return found

    def _order(self, mishap: Mishap) -> Mishap:
        self._ordered.append(mishap)
        return mishap

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


class _Link:
    """One connection through the proxy."""

    def __init__(self, proxy: Proxy, client: Stream, server: Stream) -> None:
        self._proxy = proxy
        self._from_client, self._to_client = client
        self._from_server, self._to_server = server
        self._statements: dict[bytes, str] = {}
        self._awaits_commit: Mishap | None = None
        self._of_answer: Mishap | None = None

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
            mishap = self._judge(kind, message[5:])
            if mishap is not None and mishap.part == "request":
                mishap.happened.set()
                if mishap.is_loss:
                    return
                await mishap.pass_by()
                mishap = self._proxy.take(mishap.statement)  # ordered meanwhile, for the same run's reply
            if mishap is not None and mishap.part == "answer":
                self._of_answer = mishap
            self._to_server.write(message)
            await self._to_server.drain()
            if mishap is not None and mishap.part == "copied rows":
                await self._from_client.readexactly(_SOME_ROWS)
                return

    async def _answer(self) -> None:
        kept = b""
        while True:
            kind, message = await _read(self._from_server)
            if kind == _NOTICE and self._proxy.swallows_notices:
                continue
            kept += message
            mishap = self._of_answer
            if mishap is not None:
                if kind != _READY:
                    continue
                mishap.happened.set()
                if mishap.is_loss:
                    return
                await mishap.pass_by()
                self._of_answer = None
            self._to_client.write(kept)
            kept = b""
            await self._to_client.drain()

    def _judge(self, kind: bytes, body: bytes) -> Mishap | None:
        """The mishap that this message is to suffer."""
        match kind:
            case b"P":
                name, text, *_ = body.split(b"\0")
                self._statements[name] = text.decode()
            case b"B":
                mishap = self._proxy.take(self._statements.get(body.split(b"\0")[1], ""))
                if mishap is None or not mishap.with_commit:
                    return mishap
                self._awaits_commit = mishap
            case b"Q" if body.startswith(b"COMMIT"):
                return self._awaits_commit
            case b"Q" if body.startswith(b"COPY"):
                return self._proxy.take("COPY")
            case _:
                pass
        return None


async def _read(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    return head[:1], head + await reader.readexactly(int.from_bytes(head[1:]) - 4)


class Accepting(Protocol):
    """A proxy that listens on a socket."""

    socket: Path

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None: ...
    async def end(self) -> None: ...


P = TypeVar("P", bound=Accepting)


def proxy_to(url: str) -> AbstractAsyncContextManager[Proxy]:
    """A proxy to the database of that URL; engines use `proxy.url` instead of it."""
    return listening(Proxy, url)


@asynccontextmanager
async def listening(kind: Callable[[str, Path], P], url: str) -> AsyncIterator[P]:
    """A proxy of that kind, for the length of the block."""
    folder = Path(tempfile.mkdtemp(prefix="stepwell-proxy-", dir="/tmp"))
    proxy = kind(url, folder)
    server = await asyncio.start_unix_server(proxy.accept, proxy.socket)
    try:
        yield proxy
    finally:
        server.close()
        await proxy.end()
        await server.wait_closed()
        shutil.rmtree(folder)
