"""The completions API behind a real server on a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from tests.support.waiting import eventually


@asynccontextmanager
async def served(app: Any, **options: Any) -> AsyncIterator[str]:
    """Serve an application in this loop; returns its address."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", **options))
    running = asyncio.create_task(server._serve())  # without handlers for signals, which are pytest's
    try:
        await eventually(lambda: server.started or running.done())
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        await running
