"""10,000 questions in the inbox: opened by their instances, and answered from 500 tasks; to the last answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from time import perf_counter

import asyncpg

from benchmarks.bench import Bench
from benchmarks.figures import Measure, Share, Workload
from benchmarks.machines import Asked
from stepwell import Engine

TASKS = 500
LOOK_EVERY = 0.02
QUESTIONS = 10_000
ITEMS = 1_000  # of one instance, where it asks about each


async def run(bench: Bench) -> dict[str, float]:
    number = bench.size(QUESTIONS, 20)
    items = bench.size(ITEMS, 5)
    single = await _rate(bench, [Asked.child({"note": bench.variant.note})] * number, number)
    each = await _rate(bench, [Asked.child({"items": items})] * (number // items), number // items * items)
    return {"single": single, "each": each}


async def _rate(bench: Bench, entries: list[object], number: int) -> float:
    async with bench.working() as (engine, _):
        began = perf_counter()
        await engine.start_many(entries)
        await answer(engine, bench.url, number)
        return number / (perf_counter() - began)


async def answer(engine: Engine, url: str, number: int) -> None:
    """Answer so many questions, as they come."""
    queue: asyncio.Queue[str | None] = asyncio.Queue()
    tasks = [asyncio.create_task(_answer_each(engine, queue)) for _ in range(TASKS)]
    async for ids in _listed(url, number):
        for id_ in ids:
            queue.put_nowait(id_)
    for _ in tasks:
        queue.put_nowait(None)
    await asyncio.gather(*tasks)


async def _answer_each(engine: Engine, queue: asyncio.Queue[str | None]) -> None:
    while (id_ := await queue.get()) is not None:
        await engine.complete(interaction=id_, reply=True, actor="bench")


async def _listed(url: str, number: int) -> AsyncIterator[Iterable[str]]:
    """Ids of open questions, as they come, until there were so many; whoever answers got them in some other way."""
    seen: set[str] = set()
    connection = await asyncpg.connect(url)
    while len(seen) < number:
        rows = await connection.fetch("select id::text from stepwell.interactions where status = 'dispatched'")
        fresh = [row["id"] for row in rows if row["id"] not in seen]
        seen.update(fresh)
        yield fresh
        await asyncio.sleep(LOOK_EVERY)
    await connection.close()


WORKLOAD = Workload(
    "asks",
    {
        "single": Measure("inbox: questions opened and answered, one per instance", "answers/s", Share(0.15, "steps")),
        "each": Measure("inbox: the same, 1,000 of one `Ask.each`", "answers/s", Share(0.15, "steps")),
    },
    run, is_sized=True,
)  # fmt: skip
