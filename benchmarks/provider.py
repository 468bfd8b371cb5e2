"""The external system of webhooks, as a process: replies 202, then completes each interaction over HTTP. Prints its
port.
"""

from __future__ import annotations

import asyncio
import sys

from aiohttp import ClientSession, TCPConnector, web

CALLS = 50  # completions under way at a time


async def main(token: str) -> None:
    waiting: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    async def take(request: web.Request) -> web.Response:
        asked = await request.json()
        waiting.put_nowait((asked["callback"]["completionUrl"], asked["interactionId"]))
        return web.Response(status=202)

    app = web.Application()
    app.router.add_post("/", take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    sys.stdout.write(f"{runner.addresses[0][1]}\n")
    sys.stdout.flush()
    async with ClientSession(
        connector=TCPConnector(limit=CALLS), headers={"Authorization": f"Bearer {token}"}
    ) as session:
        await asyncio.gather(*(_answer(session, waiting) for _ in range(CALLS)))


async def _answer(session: ClientSession, waiting: asyncio.Queue[tuple[str, str]]) -> None:
    while True:
        url, id_ = await waiting.get()
        async with session.post(url, json={"interactionId": id_, "responsePayload": True}) as response:
            response.raise_for_status()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
