"""A worker that asks the world, or who answers, in a process that is to be killed: `python -m … URL [options]`."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping
from typing import Any

import asyncpg

from stepwell import Engine
from stepwell._runtime import filler
from stepwell.testing import crash
from stepwell.transports import Dispatch, Transport
from tests.asks.machines import Batch, Expense
from tests.support.worker_process import _settings

CREATE_SENDINGS = (
    "create table public.sendings (number bigint generated always as identity, question uuid, attempt int, pid int)"
)
CHUNK = 3  # items of one transaction, in these processes


class Noting(Transport):
    """Sends into a table, committed at once, so that it survives its worker."""

    name = "there"

    def __init__(self, url: str) -> None:
        self._url = url
        self._turn = asyncio.Lock()

    async def open(self) -> None:
        self._connection = await asyncpg.connect(self._url)

    async def close(self) -> None:
        await self._connection.close()

    async def send(self, dispatch: Dispatch, /) -> Mapping[str, Any] | None:
        async with self._turn:
            await self._connection.execute(
                "insert into public.sendings (question, attempt, pid) values ($1, $2, $3)",
                dispatch.interaction_id, dispatch.attempt, os.getpid(),
            )  # fmt: skip
        return None


async def main(url: str, settings: dict[str, Any], question: str | None, reply: int) -> None:
    async with Engine(url, machines=[Expense, Batch], transports=[Noting(url)], **settings) as engine:
        if question is not None:
            await engine.complete(interaction=question, reply=reply)
            return
        async with engine.worker() as worker:
            sys.stdout.write(f"ready {worker.id}\n")
            sys.stdout.flush()
            await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--settings", type=_settings, default={})
    parser.add_argument("--crash", metavar="POINT")
    parser.add_argument("--nth", type=int, default=1)
    parser.add_argument("--answer", metavar="QUESTION")
    parser.add_argument("--reply", type=int, default=0)
    given = parser.parse_args()
    filler.CHUNK = CHUNK
    if given.crash is not None:
        crash(given.crash, nth=given.nth)
    asyncio.run(main(given.url, given.settings, given.answer, given.reply))
