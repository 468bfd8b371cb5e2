"""POST requests over aiohttp: connects only to checked addresses, and reads little of the response."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from stepwell.errors import SendFailed, Undeliverable
from stepwell.transports.webhook.addresses import AddressGuard, BlockedAddress
from stepwell.transports.webhook.urls import Target

Resolver: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]
"""The IP addresses of a host, as text."""

KEEP_ALIVE: Final = 4.0  # seconds; most servers close connections after 5
MOST_READ: Final = 64 * 1024  # bytes of a response; a longer one closes its connection
MOST_QUOTED: Final = 200  # characters of a response, in errors
LONGEST_READ: Final = 1.0  # seconds, for a body that is not needed


_asked: ContextVar[str] = ContextVar("asked")  # the host of the request under way, for its new connection


@dataclass(frozen=True, slots=True)
class Response:
    """The part of a response that matters."""

    status: int
    location: str | None
    retry_after: str | None
    excerpt: str


async def resolve(host: str, port: int) -> Sequence[str]:
    """Ask the system's resolver."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


class Poster:
    """A pool of connections to the servers of webhooks."""

    def __init__(
        self, guard: AddressGuard, *, resolver: Resolver, tls: ssl.SSLContext | None, most: int, timeout: float
    ) -> None:
        self._guard = guard
        connector = aiohttp.TCPConnector(
            resolver=_CheckedResolver(guard, resolver),
            socket_factory=self._make_socket,
            use_dns_cache=False,  # each new connection resolves again
            ssl=True if tls is None else tls,
            limit=most,
            keepalive_timeout=KEEP_ALIVE,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=timeout),
            auto_decompress=False,  # a small body could become a large one
            trust_env=False,  # a proxy would connect to unchecked addresses
        )

    async def post(self, target: Target, headers: Mapping[str, str], body: bytes) -> Response:
        """Send one request, without following redirects. SendFailed if no response came, Undeliverable if it may not
        go there.
        """
        _asked.set(target.host)
        try:
            async with self._session.post(
                URL(target.url, encoded=True), data=body, headers=headers, allow_redirects=False
            ) as response:
                excerpt = await _read(response)
                return Response(
                    response.status, response.headers.get("Location"), response.headers.get("Retry-After"), excerpt
                )
        except TimeoutError as error:
            raise SendFailed(f"{target.shown} did not answer in time") from error
        except (aiohttp.ClientError, OSError) as error:
            blocked = _blocked(error)
            if blocked is not None:
                raise Undeliverable(str(blocked)) from error
            raise SendFailed(f"{target.shown}: {str(error) or type(error).__name__}") from error

    async def close(self) -> None:
        await self._session.close()

    def _make_socket(self, found: tuple[Any, ...]) -> socket.socket:
        """The last check before connecting, to this address and no other; an address in the URL itself was never
        resolved.
        """
        family, kind, protocol, _, sockaddr = found
        self._guard.check(_asked.get(), [str(sockaddr[0])])
        return socket.socket(family, kind, protocol)


class _CheckedResolver(AbstractResolver):
    """Gives aiohttp a host's addresses if all of them are allowed."""

    def __init__(self, guard: AddressGuard, resolver: Resolver) -> None:
        self._guard = guard
        self._resolver = resolver

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        addresses = await self._resolver(host, port)
        if not addresses:
            raise OSError(f"{host} has no address")
        self._guard.check(host, addresses)
        return [_result(host, address, port) for address in addresses]

    async def close(self) -> None:
        """Nothing is kept."""


def _result(host: str, address: str, port: int) -> ResolveResult:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return ResolveResult(
        hostname=host, host=address, port=port, family=family, proto=socket.IPPROTO_TCP, flags=socket.AI_NUMERICHOST
    )


async def _read(response: aiohttp.ClientResponse) -> str:
    """Read a little, so that the connection can be used again; whatever happens, the status is known."""
    read = bytearray()
    try:
        async with asyncio.timeout(LONGEST_READ):
            while len(read) < MOST_READ and (chunk := await response.content.read(MOST_READ - len(read))):
                read += chunk
    except (TimeoutError, aiohttp.ClientError, OSError):
        response.close()
    return ascii(bytes(read[:MOST_QUOTED]).decode("utf-8", "replace"))[1:-1]


def _blocked(error: BaseException | None) -> BlockedAddress | None:
    """The BlockedAddress behind aiohttp's error."""
    while error is not None and not isinstance(error, BlockedAddress):
        error = error.__cause__
    return error
