"""A hot limit with thousands in its wait queue (100,000 in `make depth`) costs what it costs with ten."""

from __future__ import annotations

import asyncpg
import pytest

from stepwell._store.connection.pool import WORKER
from tests.store.backlog import DEPTH
from tests.store.plans import Bench, benched, without_autovacuum

DECLARE = """
insert into stepwell.limits (kind, name, n, per, burst, declared)
values ('concurrency', 'hot', 8, null, null, '{}'), ('rate', 'hot', 10, interval '1 second', 10, '{}')
"""
BUCKET = """
insert into stepwell.buckets (key, tokens, refilled_at, next_at)
values ('hot', 10, stepwell.now(), stepwell.now() - interval '1 second')
"""
LINE = """
insert into stepwell.instances
  (machine, version, step, queue, due_at, created_at, updated_at, status, hold, worker_id, slot, concurrency_limit,
   rate_limit)
select 'order', 1, 'ship', 'default', now() - n * interval '1 second', now(), now(), $2,
       case $3 when 'limit' then 'limit' when 'rate' then 'rate' end, case $2 when 'executing' then 1 end,
       case $2 when 'executing' then n end,
       case when $3 in ('limit', 'slot', 'both') then 'hot' end, case when $3 in ('rate', 'both') then 'hot' end
from generate_series(1, $1::integer) as n
returning id
"""


@pytest.fixture
def url(new_url: str) -> str:
    """Pages are counted."""
    return new_url


async def costs(bench: Bench, newcomers: list[int]) -> dict[str, int]:
    asked = {
        "limits/read_candidates": (newcomers, "default"),
        "limits/admit": (1, newcomers[:2], [7, 8], newcomers[2:], ["limit"] * 8, [None] * 8, ["hot"], [1.0], [0.1]),
        "limits/admit_waiting": (["hot"], [2], True),
        "limits/admit_due": (["hot"],),
        "limits/wake_rates": (["hot"],),
        "limits/recheck_rates_of_queue": ("default", "", 5_000),
        "limits/recheck_rates": ("hot", None, 5_000),
        "limits/find_waiting": ("hot", None, 5_000),
        "limits/admit_held": ("", 0, 5_000),
        "limits/prune": ("", 5_000),
        "concurrency_keys/find_idle": ("", "", "", 1_000),
        "instances/wake_due": (["default"], []),
    }
    return {name: (await bench.explain(name, *arguments)).buffers for name, arguments in asked.items()}


async def test_rule_24_a_wait_queue_of_thousands_costs_what_one_of_ten_costs(
    url: str, connection: asyncpg.Connection
) -> None:
    await without_autovacuum(url)
    await connection.execute(DECLARE)
    await connection.execute(BUCKET)
    await connection.fetch(LINE, 6, "executing", "both")
    newcomers = [row["id"] for row in await connection.fetch(LINE, 10, "runnable", "both")]
    for hold in ("limit", "rate"):
        await connection.fetch(LINE, 10, "runnable", hold)
    async with benched(url, WORKER) as bench:
        short = await costs(bench, newcomers)
        for hold in ("limit", "rate"):
            await connection.fetch(LINE, DEPTH * 5_000, "runnable", hold)
        await connection.execute("analyze stepwell.instances")
        long = await costs(bench, newcomers)

    print(short, long)  # noqa: T201 - pages touched
    assert {name: pages for name, pages in long.items() if pages > 1.3 * short[name] + 40} == {}


async def test_rule_24_the_fast_path_costs_the_same_with_a_wait_queue_of_thousands(
    url: str, connection: asyncpg.Connection
) -> None:
    await without_autovacuum(url)
    await connection.execute(DECLARE)
    for number, status, kind in ((6, "executing", "slot"), (10, "runnable", "slot"), (10, "runnable", "limit")):
        await connection.fetch(LINE, number, status, kind)
    calls = {"limits/claim_fast": (1, "default", 5, ["order@1"], []), "limits/admit_waiting_fast": (["hot"], [2])}
    pages: list[dict[str, int]] = []
    async with benched(url, WORKER) as bench:
        for deeper in (0, DEPTH * 5_000):
            await connection.fetch(LINE, deeper, "runnable", "limit")
            await connection.execute("analyze stepwell.instances")
            pages.append({name: (await bench.explain(name, *given)).buffers for name, given in calls.items()})

    print(*pages)  # noqa: T201 - pages touched
    short, long = pages
    assert {name: number for name, number in long.items() if number > 1.3 * short[name] + 40} == {}
