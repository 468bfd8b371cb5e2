"""10,000 interactions of the manual transport: opened by their instances, completed by 500 tasks; to the last one."""

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
COMMITTED_WITHIN = timedelta(milliseconds=200)  # of an interaction's creation time
OPEN = "select id::text, created_at from stepwell.interactions where status = 'dispatched' and created_at >= $1"
INTERACTIONS = 10_000
ITEMS = 1_000  # of one instance, where it asks about each


async def run(bench: Bench) -> dict[str, float]:
    number = bench.size(INTERACTIONS, 20)
    askers = number // bench.size(ITEMS, 5)
    return {"single": await _rate(bench, number), "each": await _rate(bench, number, askers)}


async def _rate(bench: Bench, number: int, askers: int | None = None) -> float:
    """Completions per second, of one interaction per instance or of many by `Ask.each`. A tenth is done before: then
    connections plan their statements, as in the first round of signals and of children.
    """
    async with bench.working() as (engine, _):
        for part in (max(number // 10, askers or 1), number):
            items = 0 if askers is None else part // askers
            entry = Asked.child({"note": bench.variant.note, "items": items})
            began = perf_counter()
            await engine.start_many([entry] * (part if askers is None else askers))
            await complete_open(engine, bench.url, part)
        return number / (perf_counter() - began)


async def complete_open(engine: Engine, url: str, number: int) -> None:
    """Complete this many interactions, as they come."""
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
    """Ids of open interactions, as they come, until this many; a client gets them in some other way.

    A query reads those that may have come since the last one, and all if there was none: the workload measures
    opening and completing, not the list.
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
