"""A small HTTP server with responses that a test writes, byte by byte if need be."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeAlias

import msgspec


@dataclass(frozen=True)
class Request:
    """One request as it came in."""

    line: str
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> dict[str, Any]:
        read: dict[str, Any] = msgspec.json.decode(self.body)
        return read


Behaviour: TypeAlias = bytes | Callable[[Request, asyncio.StreamWriter], Awaitable[None]]


def response(status: int, body: str = "", **headers: str) -> bytes:
    """A plain response."""
    lines = [f"HTTP/1.1 {status} Said", f"Content-Length: {len(body)}", *(
        f"{name.replace('_', '-')}: {value}" for name, value in headers.items()
    )]  # fmt: skip
    return "\r\n".join([*lines, "", body]).encode()


class Server:
    """Responds with the next of `behaviours`, and with `default` when none is left."""

    def __init__(self, *behaviours: Behaviour, default: Behaviour = b"", tls: ssl.SSLContext | None = None) -> None:
        self.behaviours = list(behaviours)
        self.default = default or response(202)
        self.requests: list[Request] = []
        self.connections = 0
        self._tls = tls
        self._came = asyncio.Condition()
        self._writers: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen, at the same port as before."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Hang up."""
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._server.wait_closed(), 5)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/ask"

    async def seen(self, number: int) -> list[Request]:
        """The requests, once there are this many."""
        async with self._came:
            await asyncio.wait_for(self._came.wait_for(lambda: len(self.requests) >= number), 10)
        return self.requests

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while True:
                await self._exchange(await _read(reader), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _exchange(self, request: Request, writer: asyncio.StreamWriter) -> None:
        async with self._came:
            self.requests.append(request)
            self._came.notify_all()
        behaviour = self.behaviours.pop(0) if self.behaviours else self.default
        if isinstance(behaviour, bytes):
            writer.write(behaviour)
            await writer.drain()
        else:
            await behaviour(request, writer)


async def _read(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
    return Request(head[0], headers, await reader.readexactly(int(headers.get("content-length", 0))))
