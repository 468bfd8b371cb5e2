"""A network that forgets connections, as a NAT or a moved address does: links go dark, and new ones work at once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from stepwell import Context, Done, Engine, Machine, Next, step
from stepwell._process import probes
from stepwell._store.connection.pool import Database
from stepwell._store.connection.sql_files import statement
from stepwell.errors import DatabaseUnavailable
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.support.dark_proxy import DarkProxy, dark_proxy_to
from tests.support.waiting import eventually

LEASE = 6.0
ANSWER = min(LEASE / 2, 10.0)
LOCKS = min(LEASE, 10.0)
POLL = 5.0
REAP = LEASE / 2
STALLED_FOR = 10.0
MARGIN = 6.0  # seconds, for a machine under load
LEFT = """
select from pg_stat_activity
where datname = current_database() and application_name ~ '^stepwell (worker|step)'
  and state like 'idle in transaction%' and state_change < pg_catalog.now() - interval '0.5 s'"""
STALLED = """
select from pg_stat_activity
where datname = current_database() and application_name ~ '^stepwell (worker|step)'
  and state = 'active' and wait_event = 'ClientRead' and state_change < clock_timestamp() - interval '0.5 s'"""
SLEEPS = """
select from pg_stat_activity
where datname = current_database() and state = 'active' and query like 'select pg_sleep%'"""
FOOTPRINTS = "create table footprints (instance bigint)"


class Walk(Machine, initial="one"):
    """Two steps that count their runs in the resources."""

    @step
    async def one(self, ctx: Context[Any]) -> Next:
        ctx.resources[ctx.id, ctx.step] += 1
        return Next(self.two)

    @step
    async def two(self, ctx: Context[Any]) -> Done:
        ctx.resources[ctx.id, ctx.step] += 1
        return Done("walked")


class Booked(Machine):
    """A step that shares its transaction with its outcome."""

    @step(transactional=True)
    async def start(self, ctx: Context[Any]) -> Done:
        ctx.resources[ctx.id, ctx.step] += 1
        run = ctx.connection.execute if hasattr(ctx.connection, "fetchrow") else _by_sqlalchemy(ctx.connection)
        await run(f"insert into footprints values ({ctx.id})")
        return Done("booked")


class Slow(Machine):
    """A transactional step with a statement of its own that takes as long as its state says; it fails by any error."""

    @step(transactional=True)
    async def start(self, ctx: Context[dict[str, float]]) -> Done:
        ctx.resources[ctx.id, ctx.step] += 1
        run = ctx.connection.execute if hasattr(ctx.connection, "fetchrow") else _by_sqlalchemy(ctx.connection)
        await run(f"select pg_sleep({ctx.state['seconds'] if ctx.resources[ctx.id, ctx.step] == 1 else 0})")
        return Done("slept")


def _by_sqlalchemy(session: Any) -> Any:
    from sqlalchemy import text  # noqa: PLC0415 - an extra

    return lambda sql: session.execute(text(sql))


@dataclass
class Site:
    """An engine that reaches its database through a proxy that forgets, and the counts of its steps."""

    harness: Harness
    proxy: DarkProxy
    engine: Engine
    runs: Counter[tuple[int, str]]

    async def left(self) -> bool:
        """Whether the server holds an abandoned transaction."""
        return bool(await self.harness.sql(LEFT))

    async def stalled(self) -> bool:
        """Whether the server waits for the rest of a statement."""
        return bool(await self.harness.sql(STALLED))


@pytest.fixture(params=["asyncpg"])
async def site(make_harness: MakeHarness, request: pytest.FixtureRequest) -> AsyncIterator[Site]:
    runs: Counter[tuple[int, str]] = Counter()
    harness = await make_harness([Walk, Booked, Slow], resources=runs)
    await harness.sql(FOOTPRINTS)
    async with (
        dark_proxy_to(harness.url) as proxy,
        Engine(
            proxy.url, machines=[Walk, Booked, Slow], resources=runs, lease=timedelta(seconds=LEASE),
            transactional_session=request.param,
        ) as engine,
    ):  # fmt: skip
        yield Site(harness, proxy, engine, runs)


async def test_a_worker_commits_again_within_half_a_lease_of_darkness(site: Site) -> None:
    async with site.engine.worker({"default": 5}) as worker:
        walks = await site.harness.engine.start_many([Walk.child() for _ in range(300)])
        await eventually(lambda: worker.stats.committed > 50)

        site.proxy.forget()
        before = worker.stats.committed
        await eventually(lambda: worker.stats.committed > before + 50, ANSWER + MARGIN)
        results = [await walk.result(timeout=30) for walk in walks]

    assert results == ["walked"] * 300
    assert worker.stats.leases_lost == 0
    assert await site.harness.sql("select from stepwell.instances where status <> 'done' or crashes > 0") == []


async def test_an_idle_worker_takes_work_within_half_a_lease_of_darkness(site: Site) -> None:
    """All connections of its pool are dark."""
    async with site.engine.worker() as worker:
        await fill(worker._database)

        site.proxy.forget()
        walk = await site.harness.engine.start(Walk)

        await eventually(lambda: worker.stats.committed >= 2, ANSWER + MARGIN)
        assert await walk.result(timeout=20) == "walked"
        assert worker.stats.leases_lost == 0


async def test_a_client_has_its_result_or_its_error_within_half_a_lease(site: Site) -> None:
    await asyncio.gather(*(site.engine.start(Walk) for _ in range(5)))

    site.proxy.forget()
    async with asyncio.timeout(ANSWER + MARGIN):
        with pytest.raises(DatabaseUnavailable):
            await site.engine.start(Walk)
    async with asyncio.timeout(ANSWER):
        after = await asyncio.gather(*(site.engine.start(Walk) for _ in range(5)))

    assert len({walk.id for walk in after}) == 5


async def test_after_a_call_that_met_darkness_no_other_call_meets_it(site: Site) -> None:
    async def ask() -> None:
        await asyncio.gather(*(site.engine.insights.list() for _ in range(8)))

    await ask()
    assert site.proxy.forget() >= 4  # connections that lie idle in the pool

    with pytest.raises(DatabaseUnavailable):
        await site.engine.insights.list()

    await ask()


async def test_a_cancelled_call_does_not_wait_for_a_dark_connection(site: Site) -> None:
    await site.engine.start(Walk)

    site.proxy.forget()
    began = asyncio.get_running_loop().time()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await site.engine.start(Walk)

    assert asyncio.get_running_loop().time() - began < ANSWER - 1.0


async def test_the_server_drops_locks_of_a_dark_connection_within_the_lease(site: Site) -> None:
    """A group commit is between two statements, with the row of its outcome locked, when its connection goes dark."""
    stands, goes_on = asyncio.Event(), asyncio.Event()

    async def stop(gap: dict[str, Any]) -> None:
        if gap["after"] == "instances/commit" and not stands.is_set():
            stands.set()
            await goes_on.wait()

    probes.hooks[probes.GAP] = stop
    try:
        async with site.engine.worker() as worker:
            walk = await site.harness.engine.start(Walk, concurrency_key="one")
            await stands.wait()

            site.proxy.forget()
            await eventually(site.left)
            await eventually(lambda: is_not(site.left), LOCKS + MARGIN)
            goes_on.set()
            result = await walk.result(timeout=20)
    finally:
        del probes.hooks[probes.GAP]

    assert result == "walked"
    assert worker.stats.leases_lost == 0
    assert site.runs == {(walk.id, "one"): 1, (walk.id, "two"): 1}


@pytest.mark.parametrize("site", ["asyncpg", "sqlalchemy"], indirect=True)
async def test_transactional_steps_continue_within_half_a_lease_of_darkness(site: Site) -> None:
    async with site.engine.worker({"default": 5}) as worker:
        first = await site.harness.engine.start_many([Booked.child() for _ in range(20)])
        assert [await booked.result(timeout=20) for booked in first] == ["booked"] * 20

        site.proxy.forget()
        second = await site.harness.engine.start_many([Booked.child() for _ in range(20)])
        await eventually(lambda: worker.stats.committed >= 40, ANSWER + MARGIN)
        results = [await booked.result(timeout=20) for booked in second]

    assert results == ["booked"] * 20
    assert worker.stats.leases_lost == 0
    footprints = await site.harness.sql("select instance, count(*) from footprints group by 1 order by 1")
    assert [tuple(row) for row in footprints] == [(booked.id, 1) for booked in [*first, *second]]


@pytest.mark.parametrize("site", ["asyncpg", "sqlalchemy"], indirect=True)
async def test_a_dark_transactional_step_loses_its_row_lock_within_the_lease(site: Site) -> None:
    """The outcome is written, and COMMIT is not sent, when the connection goes dark."""
    stands, goes_on = asyncio.Event(), asyncio.Event()

    async def stop(gap: dict[str, Any]) -> None:
        if gap["transaction"].endswith(".Transaction") and gap["before"] == "commit" and not stands.is_set():
            stands.set()
            await goes_on.wait()

    probes.hooks[probes.GAP] = stop
    try:
        async with site.engine.worker() as worker:
            booked = await site.harness.engine.start(Booked)
            await stands.wait()

            site.proxy.forget()
            await eventually(site.left)
            await eventually(lambda: is_not(site.left), LOCKS + MARGIN)
            goes_on.set()
            result = await booked.result(timeout=20)
    finally:
        del probes.hooks[probes.GAP]

    assert result == "booked"
    assert worker.stats.leases_lost == 0
    assert len(await site.harness.sql("select from footprints")) == 1


@pytest.mark.parametrize("site", ["asyncpg", "sqlalchemy"], indirect=True)
async def test_a_step_with_a_dark_statement_of_its_own_runs_again_soon(site: Site) -> None:
    async with site.engine.worker({"default": 5}) as worker:
        slow = await site.harness.engine.start(Slow, {"seconds": 0.5})
        await eventually(lambda: site.harness.sql(SLEEPS))

        site.proxy.forget()
        await eventually(lambda: site.runs[slow.id, "start"] == 2, ANSWER + MARGIN)  # the step itself may take a minute
        result = await slow.result(timeout=30)

    assert result == "slept"
    assert worker.stats.leases_lost == 0


@pytest.mark.parametrize("site", ["asyncpg", "sqlalchemy"], indirect=True)
async def test_a_statement_that_the_server_works_on_is_waited_for(site: Site) -> None:
    async with site.engine.worker({"default": 5}):
        slow = await site.harness.engine.start(Slow, {"seconds": ANSWER * 1.5})

        result = await slow.result(timeout=30)

    assert result == "slept"
    assert site.runs == {(slow.id, "start"): 1}


async def test_a_copy_of_wide_states_notices_darkness_within_half_a_lease(site: Site) -> None:
    await site.engine.start(Walk)
    forgotten = []

    async def forget(gap: dict[str, Any]) -> None:
        if str(gap["before"]).startswith("copy"):
            forgotten.append(site.proxy.forget())

    probes.hooks[probes.GAP] = forget
    try:
        async with asyncio.timeout(ANSWER + MARGIN):
            with pytest.raises(DatabaseUnavailable):
                await site.engine.start_many([Walk.child({"wide": "w" * 1000}) for _ in range(5_001)])
    finally:
        del probes.hooks[probes.GAP]

    assert any(forgotten)


async def test_a_copy_over_a_slow_connection_is_waited_for(site: Site) -> None:
    """The server waits longer for data than it may wait for nothing."""
    states = [{"wide": "w" * 10_000}] * 400 + [{"wide": "w" * 300}] * 4_601

    site.proxy.bytes_per_second = 4_000_000 / (ANSWER * 1.5)
    started = await site.engine.start_many([Walk.child(state) for state in states])

    assert len(started) == len(states)


@pytest.mark.parametrize("call", ["start_many", "retry"])
async def test_a_call_with_a_timeout_of_a_minute_notices_darkness_in_half_a_lease(site: Site, call: str) -> None:
    waiting = await site.engine.start(Walk, delay=timedelta(hours=1))
    calls = {
        "start_many": lambda: site.engine.start_many([Walk.child(key=f"k{n}") for n in range(1_001)]),
        "retry": lambda: site.engine.retry(waiting.id),
    }
    forgotten = []

    async def forget(gap: dict[str, Any]) -> None:
        if gap["before"] not in {None, "commit"} and gap["after"] is not None:
            forgotten.append(site.proxy.forget())

    probes.hooks[probes.GAP] = forget
    try:
        async with asyncio.timeout(ANSWER + MARGIN):
            with pytest.raises(DatabaseUnavailable):
                await calls[call]()
    finally:
        del probes.hooks[probes.GAP]

    assert any(forgotten)


async def test_notifications_arrive_again_soon_after_darkness(site: Site) -> None:
    """Only the poll of an idle worker meets the darkness; the listener itself checks once a minute."""
    notifier = site.engine._notifier
    async with site.engine.worker() as worker:
        await eventually(lambda: notifier.is_listening)
        connection = notifier._listener._connection

        site.proxy.forget()
        await eventually(lambda: notifier._listener._connection is not connection, POLL + 2 * ANSWER + MARGIN)
        await eventually(lambda: notifier.is_listening, MARGIN)

        assert worker.stats.leases_lost == 0


async def fill(database: Database) -> None:
    """Open all connections that a pool may have."""
    async with AsyncExitStack() as stack:
        for _ in range(database._most):
            await stack.enter_async_context(database.connection())


async def test_the_reaper_ends_a_backend_that_waits_for_half_a_statement(site: Site) -> None:
    """A group commit prepares its next statement, with the row of its outcome locked, when its connection goes dark:
    neither the timeout of a statement nor that of an idle transaction ends the backend then."""

    async def forget_next(gap: dict[str, Any]) -> None:
        if gap["after"] == "instances/commit" and gap["before"] not in {None, "commit"} and not prepared:
            prepared.append(gap["before"])
            site.proxy.forget_at = statement(gap["before"])[:200].encode()

    prepared: list[str] = []
    probes.hooks[probes.GAP] = forget_next
    try:
        async with site.engine.worker() as worker:
            walk = await site.harness.engine.start(Walk, concurrency_key="one")
            await eventually(site.stalled, MARGIN)
            await eventually(lambda: is_not(site.stalled), STALLED_FOR + REAP + MARGIN)
            result = await walk.result(timeout=20)
    finally:
        del probes.hooks[probes.GAP]

    assert result == "walked"
    assert worker.stats.leases_lost == 0
    assert site.runs == {(walk.id, "one"): 1, (walk.id, "two"): 1}


async def is_not(condition: Any) -> bool:
    return not await condition()
