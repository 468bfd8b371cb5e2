"""Pipelines while workers are killed, replies arrive in any order, and operators cancel, retry and restart at random.

The invariants hold at every moment; in the end every pipeline reaches its result, in the order of its items. For
longer: `make soak-pipelines`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from stepwell import CompletionRefused, Engine, InvalidInput
from stepwell._worker.running import ask_each
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.crash.conftest import StartWorker
from tests.features.pipelines.examples import Numbers
from tests.features.pipelines.streams import BROKEN
from tests.support import asked
from tests.support.ask_process import CHUNK, CREATE_SENDINGS, Noting
from tests.support.pipeline_process import CREATE_RUNS, hasty, ranked, woken, world
from tests.support.processes import WorkerProcess

SECONDS = float(os.environ.get("STEPWELL_PIPELINES_SECONDS", "3"))
SEED = int(os.environ.get("STEPWELL_PIPELINES_SEED", "0")) or random.SystemRandom().randrange(1 << 30)
PROCESSES = int(os.environ.get("STEPWELL_PIPELINES_PROCESSES", "1"))
SOON = timedelta(milliseconds=100)
PATIENCE = 60 + SECONDS
MOST_OPEN = 40  # pipelines at a time
PROBLEMS = f"{asked.BROKEN} union all {BROKEN}"
SETTINGS: dict[str, Any] = {"reap": SOON, "max_crashes": 1_000}


@pytest.fixture
async def h(make_harness: MakeHarness) -> AsyncIterator[Harness]:
    harness = await make_harness([ranked, hasty, woken])
    await harness.sql(CREATE_SENDINGS)
    await harness.sql(CREATE_RUNS)
    await world.open(harness.url)
    yield harness
    await world.close()


class Crowd:
    """Starts, completes, cancels, retries and restarts at random, and counts its acts."""

    def __init__(self, pool: asyncpg.Pool, engine: Engine, dice: random.Random) -> None:
        self._pool, self._engine, self._dice = pool, engine, dice
        self.did: Counter[str] = Counter()
        self.sizes: dict[int, int] = {}  # items of the runs started as `ranked`

    async def go(self, until: float) -> None:
        """Act until that time."""
        acts = [self.start] * 2 + [self.answer] * 8 + [self.cancel, self.cancel_item, self.retry, self.retry,
                                                       self.restart, self.restart_item]  # fmt: skip
        while asyncio.get_running_loop().time() < until:
            act = self._dice.choice(acts)
            try:
                await act()
                self.did[act.__name__] += 1
            except (CompletionRefused, InvalidInput) as refused:
                self.did[type(refused).__name__] += 1

    async def start(self) -> None:
        [row] = await self._pool.fetch("select count(*) from stepwell.instances where finished_at is null "
                                       "and parent_id is null")  # fmt: skip
        if row["count"] < MOST_OPEN:
            pipeline, items = self._dice.choice([ranked, ranked, hasty, woken]), self._dice.randrange(9)
            handle = await self._engine.start(pipeline, Numbers(items))
            if pipeline is ranked:
                self.sizes[handle.id] = items

    async def answer(self) -> None:
        """Complete some interactions, also queued or closed ones; a few so that they fail."""
        rows = await self._pool.fetch(
            "select id::text, item from stepwell.interactions where finished_at is null or random() < 0.01 "
            "order by random() limit 8"
        )
        for row in rows:
            points = -1 if self._dice.random() < 0.02 else 100 + row["item"]
            with suppress(CompletionRefused):
                await self._engine.complete(interaction=row["id"], reply={"number": row["item"], "points": points})

    async def cancel(self) -> None:
        if instance := await self._any("parent_id is null and finished_at is null"):
            await self._engine.cancel(instance, cascade=self._dice.random() < 0.5)

    async def cancel_item(self) -> None:
        if instance := await self._any("parent_id is not null and finished_at is null"):
            await self._engine.cancel(instance)

    async def retry(self) -> None:
        if instance := await self._any("status in ('failed', 'cancelled')"):
            await self._engine.retry(instance)

    async def restart(self) -> None:
        if instance := await self._any("parent_id is null and finished_at is null"):
            await self._engine.restart(instance, step="segment_0")

    async def restart_item(self) -> None:
        if instance := await self._any("parent_id is not null"):
            await self._engine.restart(instance, step="item_0")

    async def _any(self, what: str) -> int | None:
        rows = await self._pool.fetch(f"select id from stepwell.instances where {what} order by random() limit 1")
        return rows[0]["id"] if rows else None


async def watch(pool: asyncpg.Pool, until: float) -> int:
    """Check the invariants repeatedly; returns how often."""
    looks = 0
    while not looks or asyncio.get_running_loop().time() < until:
        assert [row["problem"] for row in await pool.fetch(PROBLEMS)] == []
        looks += 1
        await asyncio.sleep(0.05)
    return looks


async def kill(h: Harness, start_worker: StartWorker, dice: random.Random, until: float) -> int:
    """Kill worker processes, at least one, and start others in their place; returns how many died."""
    settings = {"reap": 0.1, "max_crashes": 1_000}
    workers: list[WorkerProcess] = [
        await start_worker(h.url, module="pipeline_process", **settings) for _ in range(PROCESSES)
    ]
    deaths = 0
    while not deaths or asyncio.get_running_loop().time() < until:
        place = dice.randrange(len(workers))
        await workers[place].ready()
        await asyncio.sleep(dice.uniform(0.05, 0.8))
        await workers[place].kill()
        deaths += 1
        workers[place] = await start_worker(h.url, module="pipeline_process", **settings)
    for worker in workers:
        await worker.kill()
    return deaths


async def test_pipelines_reach_their_results_despite_kills_and_cancels(
    h: Harness, start_worker: StartWorker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenarios 35, 39 to 43, 48, 71, 72, 76, all at once."""
    print(f"STEPWELL_PIPELINES_SEED={SEED}")  # noqa: T201 - to repeat it
    dice = random.Random(SEED)  # noqa: S311 - not a secret
    monkeypatch.setattr(ask_each, "CHUNK", CHUNK)
    engine = h.another_engine(transports=[Noting(h.url)], **SETTINGS)

    with caplog.at_level(logging.WARNING, "stepwell"):
        async with asyncpg.create_pool(h.url, min_size=5, max_size=5) as pool, engine, engine.worker() as worker:
            crowd = Crowd(pool, engine, dice)
            await asyncio.gather(*(crowd.start() for _ in range(20)))
            until = asyncio.get_running_loop().time() + SECONDS
            looks, deaths, *_ = await asyncio.gather(
                watch(pool, until), kill(h, start_worker, dice, until), *(crowd.go(until) for _ in range(4))
            )
            async with asyncio.timeout(PATIENCE):
                await bring_to_an_end(pool, engine)
            results = await pool.fetch(
                "select i.id, i.status, d.result::text as result from stepwell.instances i "
                "join stepwell.instance_data d using (id) where i.machine = 'ranked' and i.parent_id is null"
            )
            left = await pool.fetch(PROBLEMS)
            tally = worker.stats

    print(f"{looks} looks, {deaths} killed; {dict(crowd.did)}; {tally}")  # noqa: T201 - what a run was made of
    assert (looks > 0, deaths > 0, len(results) > 0, left) == (True, True, True, [])
    for row in results:
        expected = [[number, 100 + number] for number in range(crowd.sizes[row["id"]])]
        assert (row["status"], row["result"] and json.loads(row["result"])) == ("done", expected), row["id"]
    assert tally.reconciled == 0
    assert [record.message for record in caplog.records if "deadlock" in record.message or record.exc_info] == []
    [row] = await h.sql("select deadlocks from pg_stat_database where datname = current_database()")
    assert row["deadlocks"] == 0


OPEN = """
select (select count(*) from stepwell.instances where finished_at is null)
     + (select count(*) from stepwell.await_units where status = 'waiting' or continuing > 0)
     + (select count(*) from stepwell.interactions where finished_at is null) as number
"""


async def bring_to_an_end(pool: asyncpg.Pool, engine: Engine) -> None:
    """Cancel the urgent ones; retry all others, complete all that is asked correctly, until all are done."""
    for row in await pool.fetch("select id from stepwell.instances where machine <> 'ranked' and parent_id is null"):
        await engine.cancel(row["id"])
    while True:
        failed = await pool.fetch("select id from stepwell.instances where machine = 'ranked' and parent_id is null "
                                  "and status in ('failed', 'cancelled')")  # fmt: skip
        bad = await pool.fetch(
            "select i.parent_id as id from stepwell.instances i join stepwell.instance_data d using (id) "
            "where i.machine = 'ranked' and i.status = 'failed' and d.error ->> 'type' = 'Cancel'"
        )
        hopeless = {row["id"] for row in bad}
        for row in failed:
            if row["id"] in hopeless:  # wrong replies stay: the retry asks again
                await engine.restart(row["id"], step="segment_0")
            else:
                await engine.retry(row["id"])
        asked_ = await pool.fetch("select id::text, item from stepwell.interactions where finished_at is null")
        for row in asked_:
            with suppress(CompletionRefused):
                await engine.complete(interaction=row["id"], reply={"number": row["item"], "points": 100 + row["item"]})
        [open_] = await pool.fetch(OPEN)
        if not failed and not open_["number"]:
            return
        await asyncio.sleep(0.05)
