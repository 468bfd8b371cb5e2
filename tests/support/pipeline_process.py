"""A worker that runs a pipeline in a process that is to be killed, also within a step: `python -m … URL [options]`."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import asyncpg

from stepwell import Cancel, Engine
from stepwell._worker.running import ask_each
from stepwell.pipelines import Pipeline, await_, many_to_many, one_to_many, one_to_one
from stepwell.testing import crash
from tests.features.pipelines.examples import Item, Numbers
from tests.features.pipelines.streams import Score
from tests.support.ask_process import CHUNK, Noting
from tests.support.worker_process import read_settings

CREATE_RUNS = "create table public.runs (nr bigint generated always as identity, step text, number int, pid int)"
WINDOW = 5


class World:
    """Where steps record that they run, committed at once; and at which of them the process dies."""

    def __init__(self) -> None:
        self._connection: asyncpg.Connection | None = None
        self._turn = asyncio.Lock()
        self.fatal: tuple[str, int] | None = None

    async def open(self, url: str) -> None:
        self._turn = asyncio.Lock()
        self._connection = await asyncpg.connect(url)

    async def close(self) -> None:
        assert self._connection is not None
        await self._connection.close()

    async def note(self, step: str, number: int) -> None:
        assert self._connection is not None
        async with self._turn:
            await self._connection.execute(
                "insert into public.runs (step, number, pid) values ($1, $2, $3)", step, number, os.getpid()
            )
        if (step, number) == self.fatal:
            os.kill(os.getpid(), signal.SIGKILL)


world = World()


@one_to_many
async def count(numbers: Numbers) -> AsyncIterator[Item]:
    for number in range(numbers.upto):
        await world.note("count", number)
        yield Item(number)


@one_to_one
async def judge(score: Score) -> Score:
    await world.note("judge", score.number)
    if score.points < 0:
        raise Cancel("hopeless")
    return score


@many_to_many
async def rank(scores: AsyncIterator[Score]) -> AsyncIterator[list[int]]:
    async for score in scores:
        await world.note("rank", score.number)
        yield [score.number, score.points]


def ranking(name: str, **options: Any) -> Pipeline:
    asks = await_("Ask scores", over="there", input=Item, output=Score, window=WINDOW, **options)
    return Pipeline(name, [count, asks, judge, rank])


ranked = ranking("ranked")
hasty = ranking("hasty", timeout=timedelta(seconds=0.5))
woken = ranking("woken", timeout=timedelta(seconds=0.5), on_timeout="wake")


async def main(url: str, settings: dict[str, Any]) -> None:
    await world.open(url)
    engine = Engine(url, machines=[ranked, hasty, woken], transports=[Noting(url)], **settings)
    async with engine, engine.worker() as worker:
        sys.stdout.write(f"ready {worker.id}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--settings", type=read_settings, default={})
    parser.add_argument("--crash", metavar="POINT")
    parser.add_argument("--nth", type=int, default=1)
    parser.add_argument("--fatal", metavar="STEP:NUMBER")
    given = parser.parse_args()
    ask_each.CHUNK = CHUNK
    if given.crash is not None:
        crash(given.crash, nth=given.nth)
    if given.fatal is not None:
        name, _, at = given.fatal.partition(":")
        world.fatal = name, int(at)
    asyncio.run(main(given.url, given.settings))
