"""10,000 questions in the inbox: opened by their instances, listed, and answered from 100 tasks; to the last answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from time import perf_counter

from benchmarks.bench import Bench
from benchmarks.figures import Measure, Share, Workload
from benchmarks.machines import Asked
from stepwell import Engine

TASKS = 100
PAGE = 500
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
        await answer(engine, number)
        return number / (perf_counter() - began)


async def answer(engine: Engine, number: int) -> None:
    """Answer so many questions, as they come."""
    queue: asyncio.Queue[str | None] = asyncio.Queue()
    tasks = [asyncio.create_task(_answer_each(engine, queue)) for _ in range(TASKS)]
    async for ids in _listed(engine, number):
        for id_ in ids:
            queue.put_nowait(id_)
    for _ in tasks:
        queue.put_nowait(None)
    await asyncio.gather(*tasks)


async def _answer_each(engine: Engine, queue: asyncio.Queue[str | None]) -> None:
    while (id_ := await queue.get()) is not None:
        await engine.complete(interaction=id_, reply=True, actor="bench")


async def _listed(engine: Engine, number: int) -> AsyncIterator[Iterable[str]]:
    """Ids of open questions, page by page, until there were so many."""
    seen: set[str] = set()
    cursor: str | None = None
    while len(seen) < number:
        page = await engine.interactions.pending(limit=PAGE, after=cursor)
        fresh = [question.id for question in page.items if question.id not in seen]
        seen.update(fresh)
        yield fresh
        cursor = page.cursor
        if not fresh:
            await asyncio.sleep(0.005)


WORKLOAD = Workload(
    "asks",
    {
        "single": Measure("inbox: questions opened and answered, one per instance", "answers/s", Share(0.15, "steps")),
        "each": Measure("inbox: the same, 1,000 of one `Ask.each`", "answers/s", Share(0.15, "steps")),
    },
    run, is_sized=True,
)  # fmt: skip
