"""A lock that another transaction holds, such as one of a lost host: rows that need it wait, and no others do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from stepwell import ConcurrencyLimit, Context, Done, Machine, RateLimit, step
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.crash.conftest import StartWorker
from tests.support.crash_app import CREATE_EFFECTS, MACHINES, Innocent
from tests.support.crash_app import LIMITS as NARROW
from tests.support.waiting import eventually

LEASE = 6.0
LOCKS = min(LEASE, 10.0)
MARGIN = 6.0
LIMITS = [
    ConcurrencyLimit("one", 1), RateLimit("few", 1000, per=timedelta(seconds=1)),
    RateLimit("slow", 1, per=timedelta(seconds=5)),
]  # fmt: skip
MANY = 60
QUEUES = {"needy": 5, "plain": 5}  # the row that waits comes first
HOLDS = {
    what: f"select from stepwell.locks where number = stepwell._lock_key('{what}', '{name}') for no key update"
    for what, name in {"limit": "one", "rate": "few", "key": "busy"}.items()
}
NEEDS: dict[str, dict[str, Any]] = {
    "limit": {"concurrency_limit": "one"},
    "rate": {"rate_limit": "few"},
    "key": {"concurrency_key": "busy"},
}


class Needy(Machine, queue="needy"):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done("needy")


class Slow(Machine, queue="needy"):
    """Ends when the test allows it."""

    @step
    async def start(self, ctx: Context[Any]) -> Done:
        await ctx.resources.wait()
        return Done("slow")


class Plain(Machine, queue="plain"):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done("plain")


@asynccontextmanager
async def holding(url: str, sql: str) -> AsyncIterator[None]:
    """A transaction that holds a lock."""
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            await connection.execute(sql)
            yield
    finally:
        await connection.close()


@pytest.mark.parametrize("what", [*HOLDS])
async def test_a_lock_that_one_queue_waits_for_delays_no_other_queue(make_harness: MakeHarness, what: str) -> None:
    h = await make_harness([Needy, Plain], limits=LIMITS)

    async with h.engine.worker(QUEUES), holding(h.url, HOLDS[what]):
        waiting = await h.engine.start_many([Needy.child(**NEEDS[what]) for _ in range(3)])
        results = [await (await h.engine.start(Plain)).result(timeout=5) for _ in range(20)]
        ended = [await handle.get() for handle in waiting]
        assert all(instance.status != "done" for instance in ended)
    async with h.engine.worker(QUEUES):
        later = [await handle.result(timeout=20) for handle in waiting]

    assert results == ["plain"] * 20
    assert later == ["needy"] * 3


async def test_outcomes_that_wait_for_many_keys_do_not_delay_other_outcomes(
    make_harness: MakeHarness,
) -> None:
    """A process that freezes while it puts rows on hold behind keys has many of them: each try waits as long as a
    lock may."""
    let = asyncio.Event()
    h = await make_harness([Slow, Plain], resources=let)
    held = "select pg_advisory_xact_lock(stepwell._lock_key('key', 'k' || n)) from generate_series(1, 50) n"

    async with h.engine.worker({"needy": 50, "plain": 5}):
        slow = await h.engine.start_many([Slow.child(concurrency_key=f"k{n}") for n in range(1, 51)])
        await eventually(lambda: h.sql("select where 50 = (select count(*) from stepwell.instances i "
                                       "join stepwell.workers w on i.claimed_at <= w.begun_at)"))
        async with holding(h.url, held):
            let.set()
            results = [await (await h.engine.start(Plain)).result(timeout=5) for _ in range(20)]
        later = [await handle.result(timeout=20) for handle in slow]

    assert results == ["plain"] * 20
    assert later == ["slow"] * 50


@pytest.mark.parametrize("what", ["limit", "rate", "key"])
async def test_due_rows_of_other_queues_do_not_wait_for_a_held_lock(make_harness: MakeHarness, what: str) -> None:
    h = await make_harness([Needy, Plain], limits=LIMITS)

    async with h.engine.worker(QUEUES, reap=timedelta(seconds=0.2)):
        async with holding(h.url, HOLDS[what]):
            waiting = await h.engine.start_many([Needy.child(**NEEDS[what]) for _ in range(3)])
            due = await h.engine.start(Plain, delay=timedelta(seconds=0.5))
            result = await due.result(timeout=8)
        later = [await handle.result(timeout=40) for handle in waiting]

    assert result == "plain"
    assert later == ["needy"] * 3


async def test_due_rows_do_not_wait_for_the_held_locks_of_many_rates(make_harness: MakeHarness) -> None:
    h = await make_harness([Needy, Plain], limits=LIMITS)
    held = ("select from stepwell.locks where number in (select stepwell._lock_key('rate', 'slow:' || n) from "
            f"generate_series(1, {MANY}) n) for no key update")
    behind = "select from stepwell.instances where hold = 'rate'"
    due_by = f"select where {MANY} = (select count(*) from stepwell.buckets where next_at < stepwell.now())"

    async with h.engine.worker({"needy": 2 * MANY, "plain": 5}):
        needs = [("slow", str(n)) for n in range(1, MANY + 1)]
        waiting = await h.engine.start_many([Needy.child(rate_limit=one) for one in needs * 2])
        await eventually(lambda: is_number(h, behind, MANY))
        async with holding(h.url, held):
            await eventually(lambda: h.sql(due_by))
            due = [await h.engine.start(Plain, delay=timedelta(seconds=0.1)) for _ in range(3)]
            results = [await handle.result(timeout=5) for handle in due]
        later = [await handle.result(timeout=40) for handle in waiting]

    assert results == ["plain"] * 3
    assert later == ["needy"] * 2 * MANY


async def is_number(h: Harness, sql: str, number: int) -> bool:
    return len(await h.sql(sql)) == number


@pytest.mark.parametrize(
    ("before", "needs"),
    [
        ("limits/read_candidates", {"concurrency_limit": "narrow", "rate_limit": "narrow"}),
        ("concurrency_keys/admit", {"concurrency_key": "busy"}),
    ],
    ids=["in an admission", "in a flush"],
)
async def test_a_frozen_worker_loses_its_locks_within_its_lease(
    make_harness: MakeHarness, start_worker: StartWorker, before: str, needs: dict[str, Any]
) -> None:
    h = await make_harness(MACHINES, limits=NARROW)
    await h.sql(CREATE_EFFECTS)
    settings = {"lease": LEASE, "heartbeat": 1.0, "reap": 0.5, "queues": {"default": 5, "plain": 5}}
    frozen = await start_worker(h.url, module="frozen_process", options=("--before", before), **settings)
    await frozen.ready()
    needy = [await h.engine.start(Innocent, **needs) for _ in range(2)]
    await eventually(lambda: is_stopped(frozen.pid))
    other = await start_worker(h.url, **settings)
    await other.ready()

    plain = await h.engine.start(Innocent, queue="plain")
    at_once = await plain.result(timeout=MARGIN)
    await eventually(lambda: has_no_transaction_of_engines(h), LOCKS + MARGIN)
    results = [await handle.result(timeout=2 * LEASE + 2 * MARGIN) for handle in needy]

    assert at_once == "worked"
    assert results == ["worked"] * 2
    frozen.wake()
    await other.stop()


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


async def has_no_transaction_of_engines(h: Harness) -> bool:
    """Whether no worker has a transaction that is idle, or waits for a lock."""
    return not await h.sql("select from pg_stat_activity where datname = current_database() and state <> 'idle' "
                           "and application_name like 'stepwell%' and xact_start < pg_catalog.now() - interval '1 s'")
