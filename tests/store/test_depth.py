"""A claim costs the same in any backlog: parked, ended, future, blocked rows, and rows that no worker can run."""

from __future__ import annotations

import asyncpg
import pytest

from stepwell._store.connection.pool import WORKER
from tests.store.backlog import DEPTH, LABELS
from tests.store.plans import benched

CLAIMED = 100
INSERT = """
insert into stepwell.instances
  (machine, version, step, queue, due_at, created_at, updated_at, priority, status, hold, awaits, concurrency_key,
   finished_at, concurrency_limit, rate_limit)
select 'order', {version}, 'ship', 'default', now() + {due}, now(), now(), {priority}, '{status}', {hold}, {awaits},
       {key}, {end}, {limit}, {rate}
from generate_series(1, {rows}) as n
"""
PLAIN = {
    "version": 1, "due": "n * interval '-1 second'", "priority": 0, "status": "runnable", "hold": "null",
    "awaits": "null", "key": "null", "end": "null", "limit": "null", "rate": "null",
}  # fmt: skip
SURROUNDINGS = {
    "parked and ended": [
        {"rows": DEPTH * 100_000, "status": "awaiting_signal", "awaits": "'{paid}'"},
        {"rows": DEPTH * 30_000, "status": "done", "end": "now()"},
    ],
    "behind one key": [{"rows": DEPTH * 10_000, "priority": -9, "hold": "'key'", "key": "'hot'"}],
    "behind one limit and one rate": [
        {"rows": DEPTH * 5_000, "priority": -9, "hold": "'limit'", "limit": "'hot'"},
        {"rows": DEPTH * 5_000, "priority": -9, "hold": "'rate'", "rate": "'hot'"},
    ],
    "future and more urgent": [
        {"rows": DEPTH * 30_000, "priority": -9, "hold": "'due'", "due": "n * interval '1 day'"}
    ],
    "that nobody can run": [{"rows": DEPTH * 10_000, "priority": -9, "hold": "'version'", "version": "7 + n % 3"}],
}


async def fill(connection: asyncpg.Connection, kind: dict[str, object]) -> None:
    await connection.execute(INSERT.format(**{**PLAIN, **kind}))
    await connection.execute("analyze stepwell.instances")


async def cost_of_a_claim(url: str, claim: str) -> int:
    async with benched(url, WORKER) as bench:
        plan = await bench.explain(claim, 1, "default", CLAIMED, LABELS, [])
    assert CLAIMED in [node["Actual Rows"] for node in plan.nodes if node["Node Type"] == "ModifyTable"]
    return plan.buffers


@pytest.mark.parametrize("claim", ["instances/claim", "instances/claim_fast"])
@pytest.mark.parametrize("around", SURROUNDINGS)
async def test_a_claim_costs_the_same_in_every_backlog(
    url: str, connection: asyncpg.Connection, around: str, claim: str
) -> None:
    """With `make depth`, the largest builds 1.3 million rows, in about ten seconds."""
    await fill(connection, {"rows": 5_000})
    alone = await cost_of_a_claim(url, claim)

    for kind in SURROUNDINGS[around]:
        await fill(connection, kind)

    surrounded = await cost_of_a_claim(url, claim)
    print(f"{claim} of {CLAIMED}: {alone} buffers, with {around}: {surrounded}")  # noqa: T201 - for those who look
    assert surrounded <= 1.5 * alone  # an index of that many more rows is deeper; the time is measured by `make growth`


async def test_a_read_past_rows_no_worker_can_run_costs_one_probe_per_version(
    url: str, connection: asyncpg.Connection
) -> None:
    await fill(connection, {"rows": DEPTH * 5_000, "hold": "'version'", "version": "7 + n % 3"})

    async with benched(url, WORKER) as bench:
        plan = await bench.explain("instances/admit_versions", LABELS, True, [])

    assert plan.buffers <= 100
    assert plan.indexes("instances") <= {"instances_unrunnable", "instances_pkey"}


async def test_rows_that_can_run_again_are_found_behind_rows_that_cannot(
    url: str, connection: asyncpg.Connection
) -> None:
    await fill(connection, {"rows": DEPTH * 5_000, "hold": "'version'", "version": "7 + n % 3"})
    await fill(connection, {"rows": 100, "hold": "'version'", "version": "10"})

    async with benched(url, WORKER) as bench:
        plan = await bench.explain("instances/admit_versions", ["order@10"], False, [])

    assert plan.nodes[0]["Actual Rows"] == 100
    assert plan.buffers <= 40 * 100


@pytest.mark.parametrize(
    ("statement", "arguments"),
    [
        ("instances/find_key", ("", "daily")),
        ("instances/find_key_holders", ([""], ["daily"])),
        ("signals/deliver", ([None], [""], ["daily"], ["paid"], ["null"], [None])),
    ],
)
async def test_a_key_used_many_times_is_resolved_by_one_probe(
    url: str, connection: asyncpg.Connection, statement: str, arguments: tuple[object, ...]
) -> None:
    await fill(connection, {"rows": DEPTH * 2_000, "status": "done", "end": "now()"})
    await connection.execute("update stepwell.instances set key = 'daily', key_scope = 'live'")
    await connection.execute("vacuum analyze stepwell.instances")

    async with benched(url, WORKER) as bench:
        plan = await bench.explain(statement, *arguments)

    assert plan.buffers <= 12
