"""Workers with prefetch while operators cancel, restart and pause, and workers come and go: no claim is left behind.

Short by default. STEPWELL_PREFETCH_SECONDS=600 goes on for longer, from STEPWELL_PREFETCH_SEED on.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from typing import Any

from stepwell import Context, Done, Machine, Next, step
from stepwell._worker.worker import Worker
from stepwell.errors import InvalidInput
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.support.idle import is_idle
from tests.support.waiting import eventually

QUEUES = ("short", "long")
WORKERS = 2
PHASES = 4  # after each of them, everything comes to rest
EVENTS = 10  # of one phase
OFTEN = timedelta(seconds=0.3)
LIVE = "finished_at is null"


class Seen:
    """What the steps note, and their own way to the database."""

    def __init__(self) -> None:
        self.ran: Counter[tuple[int, int]] = Counter()  # by id and fence
        self.sql: Callable[..., Awaitable[Any]]


class Walk(Machine, state=dict):
    """So many steps, each of which gives way to others so many times. Some take their own row away without a notice:
    the outcome of that step is stale."""

    @step
    async def start(self, ctx: Context[dict[str, int]]) -> Next | Done:
        seen: Seen = ctx.resources
        seen.ran[ctx.id, ctx.fence] += 1
        left = ctx.state["left"]
        if left == ctx.state.get("leaves_at"):
            await seen.sql("select stepwell.try_cancel(id => $1, notify => false)", ctx.id)
        for _ in range(left % 5 * 10):
            await asyncio.sleep(0)
        return Next(self.start, state={**ctx.state, "left": left - 1}) if left else Done()


class Schedule:
    """One run of events that a seed decides."""

    def __init__(self, h: Harness, seed: int) -> None:
        self.h = h
        self.random = random.Random(seed)  # noqa: S311 - to be repeated, not to be secret
        self.workers: list[tuple[AsyncExitStack, Worker]] = []

    async def run(self) -> None:
        for _ in range(WORKERS):
            await self.start_worker()
        acts = (self.start, self.start, self.start, self.cancel, self.restart, self.pause, self.resume, self.replace)
        for _ in range(PHASES):
            for _ in range(EVENTS):
                await self.random.choice(acts)()
            await self.come_to_rest()
        for stack, _ in self.workers:
            await stack.aclose()

    async def start_worker(self) -> None:
        stack, choose = AsyncExitStack(), self.random
        worker = await stack.enter_async_context(self.h.engine.worker(
            {queue: choose.randint(1, 3) for queue in QUEUES}, prefetch=choose.randint(1, 4),
            run_ahead=choose.choice([0, 2, 16]), min_demand=choose.randint(1, 2),
        ))  # fmt: skip
        self.workers.append((stack, worker))

    async def replace(self) -> None:
        stack, _ = self.workers.pop(self.random.randrange(len(self.workers)))
        await asyncio.gather(stack.aclose(), self.start_worker())

    async def start(self) -> None:
        queue, priority = self.random.choice(QUEUES), self.random.randint(0, 2)
        state = {"left": self.random.randint(0, 9), "leaves_at": self.random.randint(0, 18)}
        entry = Walk.child(state, queue=queue, priority=priority)
        await self.h.engine.start_many([entry] * self.random.randint(1, 12))

    async def some(self) -> list[int]:
        rows = await self.h.sql(f"select id from stepwell.instances where {LIVE} order by id")
        return [row["id"] for row in self.random.sample(rows, min(len(rows), 3))]

    async def cancel(self) -> None:
        """Some are cancelled by SQL, half of them without a notice."""
        notify = self.random.random() < 0.5
        for id_ in await self.some():
            await self.h.sql("select stepwell.try_cancel(id => $1, notify => $2)", id_, notify)

    async def restart(self) -> None:
        for id_ in await self.some():
            with suppress(InvalidInput):  # it is done by now
                await self.h.engine.restart(id_, step="start", state={"left": self.random.randint(0, 3)})

    async def pause(self) -> None:
        await self.h.engine.queues.pause(self.random.choice(QUEUES))

    async def resume(self) -> None:
        await self.h.engine.queues.resume(self.random.choice(QUEUES))

    async def come_to_rest(self) -> None:
        """Everything ends, and the workers have nothing left."""
        for queue in QUEUES:
            await self.h.engine.queues.resume(queue)
        left: list[Any] = []

        async def have_ended() -> bool:
            left[:] = [dict(row) for row in await self.h.sql(f"select * from stepwell.instances where {LIVE}")]
            return not left

        with suppress(AssertionError):
            await eventually(have_ended)
        assert not left, f"these never end: {left}"
        for _, worker in self.workers:
            await eventually(lambda worker=worker: is_idle(worker))  # type: ignore[misc]
            for queue_slots in worker._graph.all_queue_slots:
                assert (queue_slots.running, queue_slots.away, queue_slots.reserved, len(queue_slots.buffer),
                        len(queue_slots.returning)) == (0,) * 5
            assert worker._graph.starter.withdrawals.waiting_ids() == []
        assert await self.h.sql("select from stepwell.instances where status = 'executing'") == []


async def run_once(make_harness: MakeHarness, seed: int) -> None:
    seen = Seen()
    often = dict.fromkeys(("heartbeat", "poll", "max_poll"), OFTEN)
    h = await make_harness([Walk], resources=seen, **often)
    seen.sql = h.sql

    await Schedule(h, seed).run()

    assert seen.ran
    assert not [claim for claim, times in seen.ran.items() if times > 1], "a claim ran twice"


async def test_no_schedule_leaves_a_claim_with_an_idle_worker(make_harness: MakeHarness) -> None:
    seconds = float(os.environ.get("STEPWELL_PREFETCH_SECONDS", "0"))
    if not seconds:
        await run_once(make_harness, 2)
        return
    seed = int(os.environ.get("STEPWELL_PREFETCH_SEED", str(int(time.time()))))
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        print(f"prefetch: seed {seed}", flush=True)  # noqa: T201 - what to run again when it fails
        await run_once(make_harness, seed)
        seed += 1
