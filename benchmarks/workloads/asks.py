"""10,000 questions in the inbox: opened by their instances, and answered from 500 tasks; to the last answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from datetime import UTC, datetime, timedelta
from time import perf_counter

import asyncpg

from benchmarks.bench import Bench
from benchmarks.figures import Measure, Share, Workload
from benchmarks.machines import Asked
from stepwell import Engine

TASKS = 500
LOOK_EVERY = 0.02
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
COMMITTED_WITHIN = timedelta(milliseconds=200)  # of the time that a question has as its beginning
OPEN = "select id::text, created_at from stepwell.interactions where status = 'dispatched' and created_at >= $1"
QUESTIONS = 10_000
ITEMS = 1_000  # of one instance, where it asks about each


async def run(bench: Bench) -> dict[str, float]:
    number = bench.size(QUESTIONS, 20)
    askers = number // bench.size(ITEMS, 5)
    return {"single": await _rate(bench, number), "each": await _rate(bench, number, askers)}


async def _rate(bench: Bench, number: int, askers: int | None = None) -> float:
    """Answers per second, of one question per instance or of many by so many `Ask.each`. A tenth is asked and answered
    before: connections plan their statements then, as in the first round of signals and of children."""
    async with bench.working() as (engine, _):
        for part in (max(number // 10, askers or 1), number):
            items = 0 if askers is None else part // askers
            entry = Asked.child({"note": bench.variant.note, "items": items})
            began = perf_counter()
            await engine.start_many([entry] * (part if askers is None else askers))
            await answer(engine, bench.url, part)
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
    """Ids of open questions, as they come, until there were so many; whoever answers got them in some other way.

    A look is at those that may have come since the last one, and at all if there was none: what is asked for here is
    the pace of those who ask and answer, not of who looks on.
    """
    seen: set[str] = set()
    since = LONG_AGO
    connection = await asyncpg.connect(url)
    while len(seen) < number:
        rows = await connection.fetch(OPEN, since)
        fresh = [row["id"] for row in rows if row["id"] not in seen]
        seen.update(fresh)
        since = max(row["created_at"] for row in rows) - COMMITTED_WITHIN if fresh else LONG_AGO
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
