"""Webhooks over real sockets: what is sent, what counts as sent, and how little of a response is read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from stepwell.transports import SIGNATURE_HEADER, SendFailed, Undeliverable, Webhook, verify_signature
from tests.features.transports.dispatches import SECRET, make_dispatch
from tests.features.transports.servers import Request, Server, response

pytest.importorskip("aiohttp", reason='the extra "webhook" is not installed')

INSIDE = ["127.0.0.1"]


@asynccontextmanager
async def opened(server: Server, **settings: Any) -> AsyncIterator[Webhook]:
    """A webhook that asks this server."""
    merged: dict[str, Any] = {"url": server.url, "secret": SECRET, "allow_private": INSIDE, **settings}
    webhook = Webhook("payments", **merged)
    await webhook.open()
    try:
        yield webhook
    finally:
        await webhook.close()


async def test_an_interaction_is_sent_signed_with_its_completion_url() -> None:
    """Scenario 80."""
    dispatch = make_dispatch()
    async with Server() as server, opened(server, callback="https://us.example/complete") as webhook:
        kept = await webhook.send(dispatch)

    (request,) = server.requests
    assert request.line == "POST /ask HTTP/1.1"
    assert request.document == {**dispatch.envelope(), "callback": {"completionUrl": "https://us.example/complete"}}
    assert request.headers["host"] == f"127.0.0.1:{server.port}"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["stepwell-interaction-id"] == "int-1"
    verify_signature(request.body, request.headers[SIGNATURE_HEADER.lower()], SECRET)
    assert kept == {"url": server.url, "statusCode": 202}


async def test_the_authors_headers_and_the_query_are_sent_but_not_stored() -> None:
    async with Server() as server, opened(
        server, url=f"{server.url}?key=hidden&x=%2F", headers={"Authorization": "Bearer key", "User-Agent": "shop"}
    ) as webhook:  # fmt: skip
        kept = await webhook.send(make_dispatch())

    (request,) = server.requests
    assert request.line == "POST /ask?key=hidden&x=%2F HTTP/1.1"
    assert (request.headers["authorization"], request.headers["user-agent"]) == ("Bearer key", "shop")
    assert kept["url"] == server.url


async def test_a_webhook_without_a_secret_signs_nothing() -> None:
    async with Server() as server, opened(server, secret=None) as webhook:
        await webhook.send(make_dispatch())

    assert SIGNATURE_HEADER.lower() not in server.requests[0].headers


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
async def test_every_2xx_is_success(status: int) -> None:
    async with Server(response(status)) as server, opened(server) as webhook:
        assert await webhook.send(make_dispatch()) == {"url": server.url, "statusCode": status}


@pytest.mark.parametrize("status", [301, 302, 307, 400, 401, 404, 409, 422, 429, 500, 503])
async def test_any_other_status_fails_and_shows_the_response(status: int) -> None:
    refusal = response(status, "try\n\x00later", Location="https://elsewhere.example/")
    async with Server(refusal) as server, opened(server) as webhook:
        with pytest.raises(SendFailed, match=rf"answered {status}: try\\n\\x00later") as failed:
            await webhook.send(make_dispatch())

    assert failed.value.retry_after is None
    assert len(server.requests) == 1


async def test_a_gone_response_fails_for_good() -> None:
    async with Server(response(410, "no such customer")) as server, opened(server) as webhook:
        with pytest.raises(Undeliverable, match="answered 410: no such customer"):
            await webhook.send(make_dispatch())


@pytest.mark.parametrize(("asked", "attempt", "wait"), [
    ("30", 1, timedelta(seconds=30)), ("1", 4, timedelta(seconds=8)), ("999999", 1, timedelta(hours=1)),
    ("Thu, 01 Jan 2099 00:00:00 GMT", 1, timedelta(hours=1)), ("whenever", 1, None),
])  # fmt: skip
async def test_a_server_may_set_the_retry_delay_within_bounds(asked: str, attempt: int, wait: timedelta | None) -> None:
    async with Server(response(503, Retry_After=asked)) as server, opened(server) as webhook:
        with pytest.raises(SendFailed) as failed:
            await webhook.send(make_dispatch(attempt=attempt))

    assert failed.value.retry_after == wait


async def test_connections_are_reused() -> None:
    async with Server() as server, opened(server) as webhook:
        for attempt in (1, 2, 3):
            await webhook.send(make_dispatch(attempt=attempt))

    assert (len(server.requests), server.connections) == (3, 1)


async def test_a_refused_connection_fails_and_the_next_one_works() -> None:
    async with Server() as server, opened(server) as webhook:
        await server.stop()
        with pytest.raises(SendFailed, match=r"127\.0\.0\.1"):
            await webhook.send(make_dispatch())

        await server.start()
        assert await webhook.send(make_dispatch(attempt=2)) == {"url": server.url, "statusCode": 202}


async def hang_up(_: Request, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def say_nothing(_: Request, __: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("behaviour", [hang_up, b"what?\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000])
async def test_an_invalid_response_fails(behaviour: Any) -> None:
    async with Server(behaviour) as server, opened(server) as webhook:
        with pytest.raises(SendFailed):
            await webhook.send(make_dispatch())


async def test_a_missing_response_within_the_timeout_fails() -> None:
    async with Server(say_nothing) as server, opened(server, timeout=timedelta(milliseconds=50)) as webhook:
        with pytest.raises(SendFailed, match="did not answer in time"):
            await webhook.send(make_dispatch())


async def test_a_success_with_an_endless_body_is_a_success() -> None:
    async def dribble(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nx")
        await asyncio.Event().wait()

    async with Server(dribble) as server, opened(server) as webhook:
        assert await webhook.send(make_dispatch()) == {"url": server.url, "statusCode": 200}


async def test_an_endless_response_is_read_up_to_a_bound() -> None:
    sent = 0
    ended = asyncio.Event()

    async def flood(_: Request, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            while True:
                writer.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
                await writer.drain()
                sent += 0x10000
        finally:
            ended.set()

    async with Server(flood) as server, opened(server) as webhook:
        with pytest.raises(SendFailed, match=r"answered 500: x{200}$"):
            await webhook.send(make_dispatch())
        await asyncio.wait_for(ended.wait(), 10)  # we have hung up

    assert sent < 16 * 1024 * 1024  # what the buffers of both kernels take


async def test_a_compressed_response_is_not_decompressed() -> None:
    async with Server(response(500, "not gzip", Content_Encoding="gzip")) as server, opened(server) as webhook:
        with pytest.raises(SendFailed, match="answered 500: not gzip"):
            await webhook.send(make_dispatch())

    assert server.requests[0].headers["accept-encoding"] == "identity"


async def test_a_closed_webhook_sends_nothing_until_it_is_opened_again() -> None:
    async with Server() as server, opened(server) as webhook:
        await webhook.close()
        with pytest.raises(SendFailed, match="closed"):
            await webhook.send(make_dispatch())

        await webhook.open()
        await webhook.send(make_dispatch())

    assert len(server.requests) == 1
