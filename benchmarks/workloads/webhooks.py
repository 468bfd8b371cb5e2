"""Interactions over a webhook on loopback: posted to another process, which completes them over HTTP; to the last
one.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter

import uvicorn

from benchmarks.bench import QUEUES, Bench
from benchmarks.figures import Measure, Workload
from benchmarks.machines import ALL, Asked
from stepwell import Engine
from stepwell.transports import Webhook
from stepwell.web import BearerToken, completions

INTERACTIONS = 10_000
TOKEN = "b" * 40
SECRET = "s" * 40


async def run(bench: Bench) -> dict[str, float]:
    number = bench.size(INTERACTIONS, 10)
    async with _provider() as provider, _working(bench, provider) as engine:
        began = perf_counter()
        handles = await engine.start_many([Asked.child({"transport": "provider"})] * number)
        for handle in handles:
            await handle.wait(timeout=60)
        rate = number / (perf_counter() - began)
    await bench.expect_done(number)
    return {"rate": rate}


@asynccontextmanager
async def _provider() -> AsyncIterator[int]:
    """The external system; yields its port."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "benchmarks.provider", TOKEN, stdout=PIPE)
    try:
        assert process.stdout is not None  # noqa: S101 - stdout is a pipe
        yield int(await process.stdout.readline())
    finally:
        process.terminate()
        await process.wait()


@asynccontextmanager
async def _working(bench: Bench, provider: int) -> AsyncIterator[Engine]:
    """An engine that asks the provider, with a worker and the HTTP application for completions."""
    server = _Server()
    webhook = Webhook(
        "provider", url=f"http://127.0.0.1:{provider}/", callback=f"{server.address}/interactions/complete",
        secret=SECRET, allow_private=True, max_in_flight=100,
    )  # fmt: skip
    engine = Engine(bench.url, machines=ALL, transports=[webhook], queues=QUEUES)
    await engine.migrate()
    token = BearerToken(TOKEN, scopes={"complete"}, actor="bench")
    async with engine, engine.worker(), server.serving(completions(engine, tokens=[token], rate=None)):
        yield engine


class _Server:
    """A server in this process, on a port that is known before it serves."""

    def __init__(self) -> None:
        config = uvicorn.Config(None, host="127.0.0.1", port=0, log_level="error", lifespan="off")  # type: ignore[arg-type]  # given later
        self._config = config
        self._socket = config.bind_socket()
        self.address = f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    @asynccontextmanager
    async def serving(self, app: object) -> AsyncIterator[None]:
        self._config.app = app  # type: ignore[assignment]  # an ASGI application
        server = uvicorn.Server(self._config)
        task = asyncio.create_task(server.serve(sockets=[self._socket]))
        try:
            yield
        finally:
            server.should_exit = True
            await task


WORKLOAD = Workload(
    "webhooks", {"rate": Measure("webhook on loopback: asked, posted, answered over HTTP, gone on", "answers/s")}, run
)
