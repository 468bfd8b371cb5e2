"""Never above the limit: worker processes that are killed or drained, and replaced, run instances through one key.

`make test` uses a few; `make limits` uses 8 workers and 20,000 instances.
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
from tests.support.processes import WorkerProcess
from tests.support.waiting import eventually

WORKERS = int(os.environ.get("STEPWELL_LIMITS_WORKERS", "2"))
INSTANCES = int(os.environ.get("STEPWELL_LIMITS_INSTANCES", "240"))
VICTIMS = min(max(2, INSTANCES // 500), 12)  # every other one is killed, the rest are drained
SLOTS, BURST = 6, 10  # of the limits in crash_app
RATE = min(INSTANCES // 5, 300)  # a second; less than the workers could do
CHUNK = 5_000
PATIENCE = 1_200.0
QUEUES = {"default": 10}

# What workers do not record: when a reaper or a drain returned rows that had not ended, and when rows
# that need tokens were claimed, with the start of that transaction, since its tokens are counted up to then.
NOTES = (
    "create table public.let_go (instance bigint, at timestamptz)",
    "create table public.taken (since timestamptz, at timestamptz)",
    """
    create function public.note() returns trigger language plpgsql as $$
    begin
      if new.status = 'runnable' then
        insert into public.let_go values (new.id, clock_timestamp());
      elsif new.rate_limit is not null then
        insert into public.taken values (pg_catalog.now(), clock_timestamp());
      end if;
      return null;
    end
    $$
    """,
    """
    create trigger note after update on stepwell.instances for each row
    when (old.status = 'executing' and new.status = 'runnable' or old.status = 'runnable' and new.status = 'executing')
    execute function public.note()
    """,
)

# How many steps ran at once: a start counts up, an end counts down. A step killed while it ran counts until its row
# was reaped: until then no other may take its place. (A start that the server wrote still later, by a
# delayed statement of the dead worker, does not count.)
MOST_INSIDE = """
with moments as (
  select s.began as at, 1 as change from public.spans s
  union all
  select coalesce(s.ended,
                  (select min(g.at) from public.let_go g where g.instance = s.instance and g.at > s.began),
                  s.began), -1
  from public.spans s
)
select max(inside) from (select sum(change) over (order by at, change) as inside from moments) as m
"""

# The burst that the tokens taken in any window would need at the least. The a-th to the b-th are b - a + 1, and burst +
# rate times (time of b - time of a) may be taken; so for each b, the worst a before it is what a running minimum finds.
BURST_NEEDED = """
with taken as (
  select row_number() over (order by t.at) as number,
         extract(epoch from t.since - min(t.since) over ())::float8 * $1::float8 as filled_before,
         extract(epoch from t.at - min(t.since) over ())::float8 * $1::float8 as filled
  from public.taken t
), windows as (
  select t.number - t.filled - min(t.number - 1 - t.filled_before) over (order by t.number) as burst
  from taken t
)
select max(w.burst), count(*) from windows w
"""


async def test_a_limit_holds_however_many_workers_are_killed_and_drained(
    make_harness: MakeHarness, start_worker: StartWorker
) -> None:
    h = await _watched(make_harness)

    took = await _pass_through(h, start_worker, Narrow.child({}, concurrency_limit="narrow"))

    [(most,)] = await h.sql(MOST_INSIDE)
    [(killed,)] = await h.sql("select count(*) from public.spans where ended is null")
    print(f"\n{INSTANCES} instances, {WORKERS} workers, {VICTIMS} killed or drained: at most {most} inside, "  # noqa: T201
          f"{killed} killed inside, {took:.1f} s")
    assert most <= SLOTS
    assert await h.sql("select from stepwell.instances where slot is not null or hold is not null") == []


async def test_a_rate_holds_however_many_workers_are_killed(
    make_harness: MakeHarness, start_worker: StartWorker
) -> None:
    h = await _watched(make_harness)
    await h.engine.limits.set("narrow", n=RATE, kind="rate")

    took = await _pass_through(h, start_worker, Narrow.child({}, rate_limit="narrow"))

    [(burst, taken)] = await h.sql(BURST_NEEDED, RATE)
    print(f"\n{taken} tokens taken in {took:.1f} s at {RATE} a second, {VICTIMS} killed or drained: "  # noqa: T201
          f"the window in which most were needed a burst of {burst:.3f}")
    assert taken >= INSTANCES
    assert burst <= BURST + 0.01  # what is rounded


async def _watched(make_harness: MakeHarness) -> Harness:
    """A database that notes what happens to its rows."""
    h = await make_harness([Narrow], limits=LIMITS)
    await h.engine.migrate()
    for statement in (CREATE_SPANS, *NOTES):
        await h.sql(statement)
    return h


async def _pass_through(h: Harness, start_worker: StartWorker, entry: object) -> float:
    """Let all instances end, while one worker after the other is killed or drained, and replaced; returns the
    seconds."""
    for first in range(0, INSTANCES, CHUNK):
        await h.engine.start_many([entry] * min(CHUNK, INSTANCES - first))  # type: ignore[list-item]
    began = time.monotonic()
    workers = [await start_worker(h.url, queues=QUEUES, reap=0.5) for _ in range(WORKERS)]
    for nth, victim in zip(range(VICTIMS), cycle(range(WORKERS)), strict=False):
        await eventually(_have_begun(h, INSTANCES * (nth + 1) // (VICTIMS + 2)), patience=PATIENCE)
        await workers[victim].ready()
        if nth % 2:
            await workers[victim].stop()
        else:
            await _kill_inside(h, workers[victim])
        workers[victim] = await start_worker(h.url, queues=QUEUES, reap=0.5)
    await eventually(lambda: _all_are_done(h), patience=PATIENCE)
    took = time.monotonic() - began
    for worker in workers:
        await worker.ready()
        await worker.stop()
    return took


async def _kill_inside(h: Harness, worker: WorkerProcess) -> None:
    """Kill a worker while a step of its is inside, unless all are done before one is."""

    async def look() -> bool:
        worker.freeze()
        if await h.sql("select from public.spans where pid = $1 and ended is null", worker.pid):
            return True
        worker.wake()
        return await _all_are_done(h)

    await eventually(look, patience=PATIENCE)
    await worker.kill()


def _have_begun(h: Harness, number: int) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        [(found,)] = await h.sql("select count(*) from public.spans")
        return bool(found >= number)

    return look


async def _all_are_done(h: Harness) -> bool:
    return not await h.sql("select from stepwell.instances where status <> 'done' limit 1")
