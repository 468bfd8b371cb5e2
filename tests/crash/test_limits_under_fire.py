"""Never above the limit: worker processes that are killed and replaced pass instances through one key.

`make test` does it with a few; `make limits` with 8 workers and 20,000 instances.
"""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from itertools import cycle

from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.crash.conftest import StartWorker
from tests.support.crash_app import CREATE_SPANS, LIMITS, Narrow
from tests.support.waiting import eventually

WORKERS = int(os.environ.get("STEPWELL_LIMITS_WORKERS", "2"))
INSTANCES = int(os.environ.get("STEPWELL_LIMITS_INSTANCES", "240"))
KILLS = min(max(1, INSTANCES // 500), 12)
RATE = INSTANCES // 10  # a second
SLACK = 1.5  # seconds that the first step may begin later after its token than the last one
CHUNK = 5_000
PATIENCE = 1_200.0
QUEUES = {"default": 10}

# Who was inside at once: a beginning counts up, an end counts down; what was killed inside ended there.
MOST_INSIDE = """
with moments as (
  select began as at, 1 as change from public.spans
  union all
  select coalesce(ended, began), -1 from public.spans
)
select max(inside) from (select sum(change) over (order by at, change) as inside from moments) as m
"""


async def test_no_more_than_n_are_ever_inside_however_many_workers_are_killed(
    make_harness: MakeHarness, start_worker: StartWorker
) -> None:
    h = await make_harness([Narrow], limits=LIMITS)
    await h.sql(CREATE_SPANS)

    took = await _pass_through(h, start_worker, Narrow.child({}, concurrency_limit="narrow"))

    [(most,)] = await h.sql(MOST_INSIDE)
    [(killed,)] = await h.sql("select count(*) from public.spans where ended is null")
    print(f"\n{INSTANCES} instances, {WORKERS} workers, {KILLS} kills: at most {most} inside, "  # noqa: T201
          f"{killed} killed inside, {took:.1f} s")
    assert most <= 6
    assert await h.sql("select from stepwell.instances where slot is not null or hold is not null") == []


async def test_no_more_begin_than_the_rate_and_one_burst_however_many_workers_are_killed(
    make_harness: MakeHarness, start_worker: StartWorker
) -> None:
    h = await make_harness([Narrow], limits=LIMITS)
    await h.sql(CREATE_SPANS)

    await h.engine.migrate()
    await h.engine.limits.set("narrow", n=RATE, kind="rate")

    await _pass_through(h, start_worker, Narrow.child({}, rate_limit="narrow"), INSTANCES // 2)

    [(begun, seconds)] = await h.sql(
        "select count(*), extract(epoch from max(began) - min(began))::float8 from public.spans"
    )
    print(f"\n{begun} steps began within {seconds:.2f} s, at {RATE} a second")  # noqa: T201
    assert begun <= RATE * (seconds + SLACK) + 10


async def _pass_through(h: Harness, start_worker: StartWorker, entry: object, number: int = INSTANCES) -> float:
    """Let so many instances end, while one worker after the other is killed and replaced; returns the seconds."""
    await h.engine.migrate()
    for first in range(0, number, CHUNK):
        await h.engine.start_many([entry] * min(CHUNK, number - first))  # type: ignore[list-item]
    began = time.monotonic()
    workers = [await start_worker(h.url, queues=QUEUES, reap=0.5) for _ in range(WORKERS)]
    for kill, victim in zip(range(KILLS), cycle(range(WORKERS)), strict=False):
        await eventually(_have_begun(h, number * (kill + 1) // (KILLS + 2)), patience=PATIENCE)
        await workers[victim].kill()
        workers[victim] = await start_worker(h.url, queues=QUEUES, reap=0.5)
    await eventually(lambda: _all_are_done(h), patience=PATIENCE)
    took = time.monotonic() - began
    for worker in workers:
        await worker.ready()
        await worker.stop()
    return took


def _have_begun(h: Harness, number: int) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        [(found,)] = await h.sql("select count(*) from public.spans")
        return bool(found >= number)

    return look


async def _all_are_done(h: Harness) -> bool:
    return not await h.sql("select from stepwell.instances where status <> 'done' limit 1")
