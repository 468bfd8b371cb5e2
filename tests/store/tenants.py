"""Rows of fair queues, and what a claim of 100 of them costs."""

from __future__ import annotations

import asyncpg

from stepwell._store.connection.pool import WORKER
from tests.store.backlog import LABELS
from tests.store.plans import Plan, benched

CLAIMED = 100
LARGE = {  # tenants, and how many rows each; a % in the name makes each row a tenant of its own
    "1 tenant, 1 million rows": [("a", 1_000_000)],
    "10,000 tenants, 10 rows each": [("t%", 10_000)] * 10,
    "1 tenant with 100,000 rows, 1 with one": [("a", 100_000), ("b", 1)],
}
_INSERT = """
insert into stepwell.instances
  (machine, version, step, queue, due_at, created_at, updated_at, priority, tenant, share)
select 'order', 1, 'ship', 'default', now() - interval '1 day' + n * interval '1 second', now(), now(), $3, t.name,
       case when $4 then hashtextextended(t.name, 0) end
from generate_series(1, $2) as n cross join lateral (select replace($1, '%', n::text) as name) t
"""


async def fill(
    connection: asyncpg.Connection, tenant: str, rows: int, *, priority: int = 0, shared: bool = True
) -> None:
    """Write rows as start.sql would into a queue that is fair, or is not."""
    await connection.execute(_INSERT, tenant, rows, priority, shared)


async def cost(url: str, *, fair: bool = True) -> Plan:
    """The plan of a claim that takes all it wants."""
    async with benched(url, WORKER) as bench:
        if fair:
            plan = await bench.explain("fair_queues/claim", 1, "default", CLAIMED, LABELS, [], [], [], 0)
        else:
            plan = await bench.explain("instances/claim", 1, "default", CLAIMED, LABELS, [])
    [claimed] = [node for node in plan.nodes if node.get("Subplan Name") == "CTE claimed"]
    assert claimed["Actual Rows"] == CLAIMED
    return plan
