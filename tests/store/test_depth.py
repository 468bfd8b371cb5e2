"""A claim costs the same in any backlog: parked, ended, future, blocked rows, and rows that no worker can run."""

from __future__ import annotations

import asyncpg
import pytest

from stepwell._store.connection.pool import WORKER
from tests.store.backlog import DEPTH, LABELS
from tests.store.plans import benched, without_autovacuum

CLAIMED = 100
CLAIMS = ("instances/claim", "instances/claim_fast")
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


@pytest.fixture
def url(new_url: str) -> str:
    """Pages are counted."""
    return new_url


async def fill(connection: asyncpg.Connection, kind: dict[str, object]) -> None:
    await connection.execute(INSERT.format(**{**PLAIN, **kind}))
    await connection.execute("analyze stepwell.instances")


async def costs_of_claims(url: str) -> dict[str, int]:
    """The pages that each way to claim touches."""
    pages = {}
    async with benched(url, WORKER) as bench:
        for claim in CLAIMS:
            plan = await bench.explain(claim, 1, "default", CLAIMED, LABELS, [])
            assert CLAIMED in [node["Actual Rows"] for node in plan.nodes if node["Node Type"] == "ModifyTable"]
            pages[claim] = plan.buffers
    return pages


@pytest.mark.parametrize("around", SURROUNDINGS)
async def test_a_claim_costs_the_same_in_every_backlog(url: str, connection: asyncpg.Connection, around: str) -> None:
    """With `make depth`, the largest builds 1.3 million rows, in about ten seconds."""
    await without_autovacuum(url)
    await fill(connection, {"rows": 5_000})
    alone = await costs_of_claims(url)

    for kind in SURROUNDINGS[around]:
        await fill(connection, kind)

    surrounded = await costs_of_claims(url)
    print(f"{CLAIMED} alone: {alone}, with {around}: {surrounded}")  # noqa: T201 - pages touched
    # An index of that many more rows is deeper; the time is measured by `make growth`.
    assert {claim: pages for claim, pages in surrounded.items() if pages > 1.5 * alone[claim]} == {}


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
