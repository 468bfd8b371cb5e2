"""Transactional steps against losses and against other transactions: both orders, and always one effect."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from stepwell import Await, Context, Done, Engine, Machine, Next, Retry, Spawn, Status, step
from stepwell._core.start_request import NewInstance
from stepwell._store import concurrency_keys
from stepwell._store.connection.sql_files import statement
from stepwell._store.operations import start
from stepwell._store.operations.deliver import NewSignal, deliver
from stepwell._store.testing import databases
from stepwell._worker.worker import Worker
from stepwell.testing import Harness, armed
from tests.conftest import MakeHarness
from tests.support.crash_app import book
from tests.support.proxy import Part, proxy_to
from tests.support.race import Session
from tests.support.waiting import eventually

COMMIT = statement("instances/commit")
CUT = """
select pg_terminate_backend(pid) from pg_stat_activity
where application_name like 'stepwell step%' and datname = current_database()
"""
HANDLED = -1
SOON = timedelta(seconds=0.3)


class Child(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done("child")


class Booking(Machine):
    """Writes a ledger entry, counts its runs in the resources, and continues in some way."""

    @step(transactional=True)
    async def start(self, ctx: Context[Any]) -> Next:
        await self._book(ctx)
        return Next(self.end)

    @step(transactional=True, timeout=timedelta(seconds=1))
    async def hurry(self, ctx: Context[Any]) -> Next:
        await self._book(ctx)
        return Next(self.end)

    @step(transactional=True)
    async def park(self, ctx: Context[Any]) -> Await:
        await self._book(ctx)
        return Await("go", then=self.end)

    @step(transactional=True)
    async def spawn(self, ctx: Context[Any]) -> Spawn:
        await self._book(ctx)
        return Spawn([Child.child(key="only")], then=self.end)

    async def _book(self, ctx: Context[Any]) -> None:
        ctx.resources.append(ctx.attempt)
        await book(ctx.connection, ctx)

    @step
    async def end(self, ctx: Context[Any]) -> Done:
        return Done([signal.payload for signal in ctx.awaited])

    async def handle(self, error: Exception, ctx: Context[Any]) -> Retry:
        ctx.resources.append(HANDLED)
        raise AssertionError(f"not for handle: {error!r}")


@pytest.fixture
def runs() -> list[int]:
    """The attempts of every run."""
    return []


@pytest.fixture
async def h(make_harness: MakeHarness, runs: list[int]) -> Harness:
    harness = await make_harness([Booking, Child], resources=runs, max_poll=timedelta(seconds=1))
    await harness.sql("create table public.ledger (instance bigint not null)")
    await harness.sql("create table public.counter as select 0 as booked")
    return harness


@pytest.fixture
async def foreign(h: Harness) -> AsyncIterator[asyncpg.Connection]:
    """A connection that is not the engine's."""
    connection = await asyncpg.connect(h.url)
    yield connection
    connection.terminate()


async def booked(h: Harness) -> int:
    [row] = await h.sql("select count(*) as rows, (select booked from public.counter) from public.ledger")
    assert row["rows"] == row["booked"]
    return int(row["rows"])


async def is_booked(h: Harness, least: int) -> bool:
    return await booked(h) >= least


@pytest.mark.parametrize("session", ["asyncpg", "sqlalchemy"])
@pytest.mark.parametrize("part", ["request", "answer"])
async def test_a_lost_commit_runs_again_and_a_commit_with_a_lost_reply_does_not(
    h: Harness, runs: list[int], part: Part, session: str
) -> None:
    """The fence tells which of both it was."""
    booking = await h.engine.start(Booking)

    async with proxy_to(h.url) as proxy:
        loss = proxy.lose(part, COMMIT, with_commit=True)
        options = {"poll": SOON, "max_poll": SOON, "transactional_session": session}
        engine = Engine(proxy.url, machines=[Booking, Child], resources=runs, **options)
        async with engine, engine.worker() as worker:
            result = await booking.result(timeout=30)
            await eventually(lambda: worker.stats.committed == (3 if part == "request" else 2))

    assert loss.happened.is_set()
    assert (result, await booked(h)) == ([], 1)
    assert (runs, worker.stats.stale) == ([0, 1] if part == "request" else [0], 0)


@pytest.mark.parametrize("session", ["asyncpg", "sqlalchemy"])
async def test_connections_cut_under_load_lose_and_repeat_nothing(
    h: Harness, runs: list[int], session: str
) -> None:
    """Wherever the steps are: in the author's statements, in the engine's, in the commit, in the reset."""
    bookings = await h.engine.start_many([Booking] * 60)

    async with h.another_engine(transactional_session=session) as engine, engine.worker():
        for share in range(5):
            await eventually(lambda least=share * 10: is_booked(h, least))
            await h.sql(CUT)
        results = [await booking.result(timeout=30) for booking in bookings]  # type: ignore[union-attr]

    assert results == [[]] * 60
    assert await booked(h) == 60
    assert len(await h.sql("select distinct instance from public.ledger")) == 60
    assert HANDLED not in runs


async def test_a_commit_with_a_late_reply_is_no_timeout_of_the_step(h: Harness, runs: list[int]) -> None:
    booking = await h.engine.start(Booking, step="hurry")

    async with proxy_to(h.url) as proxy:
        late = proxy.hold("answer", COMMIT, with_commit=True)
        engine = Engine(proxy.url, machines=[Booking, Child], resources=runs, poll=SOON, max_poll=SOON)
        async with engine, engine.worker() as worker:
            result = await booking.result(timeout=30)
            await eventually(lambda: worker.stats.committed == 2)
            late.release()

    assert (result, await booked(h), runs) == ([], 1, [0])


async def test_a_step_starts_when_the_database_is_back_and_counts_no_attempt(h: Harness, runs: list[int]) -> None:
    booking = await h.engine.start(Booking)
    elsewhere = databases.sibling(h.url, "postgres")
    [name] = [row["name"] for row in await h.sql("select current_database() as name")]

    with armed("executor.begun", hold=True) as begun:
        async with h.engine.worker() as worker:
            await begun.reached()
            await databases.query(elsewhere, f"alter database {name} with allow_connections false")
            begun.release()
            await eventually(lambda: worker.stats.steps == 1)
            waiting = list(runs)
            await databases.query(elsewhere, f"alter database {name} with allow_connections true")
            await booking.result(timeout=30)

    assert (waiting, runs, await booked(h)) == ([], [0], 1)


async def test_a_step_that_waits_for_its_locked_row_delays_no_other_row(
    h: Harness, foreign: asyncpg.Connection, runs: list[int]
) -> None:
    """The lock of the concurrency key is released after each try."""
    booking = await h.engine.start(Booking, concurrency_key="account")

    with armed("transactional.returned", hold=True) as returned:
        async with h.engine.worker() as worker:
            await returned.reached()
            async with foreign.transaction():
                await foreign.execute("select from stepwell.instances for no key update")
                returned.release()
                await is_trying_again(worker)
                async with asyncio.timeout(10):
                    await concurrency_keys.lock(Session(foreign), ["account"])
                before = await booked(h)
            await booking.result(timeout=30)

    assert (before, await booked(h), runs, worker.stats.stale) == (0, 1, [0], 0)


async def test_a_cancel_before_the_commit_leaves_nothing_of_the_step(
    h: Harness, foreign: asyncpg.Connection, runs: list[int]
) -> None:
    """The step has returned, and a cancel holds its row and is not committed yet."""
    booking = await h.engine.start(Booking)

    with armed("transactional.returned", hold=True) as returned:
        async with h.engine.worker() as worker:
            await returned.reached()
            async with foreign.transaction():
                await foreign.execute(
                    "update stepwell.instances set status = 'cancelled', fence = fence + 1, worker_id = null, "
                    "claimed_at = null, finished_at = now() where id = $1", booking.id
                )  # fmt: skip
                returned.release()
                await is_trying_again(worker)
            await eventually(lambda: worker.running == 0)

    assert (await booked(h), runs, worker.stats.stale) == (0, [0], 1)
    assert (await booking.get()).status is Status.CANCELLED


async def test_a_cancel_after_the_commit_finds_the_step_committed(h: Harness, runs: list[int]) -> None:
    """The outcome is written and not committed: the cancel waits for it, and ends what comes after."""
    booking = await h.engine.start(Booking)

    with armed("transactional.written", hold=True) as written, armed("claimer.before_claim") as claiming:
        async with h.engine.worker() as worker:
            await written.reached()
            cancelling = asyncio.create_task(booking.cancel())
            await eventually(lambda: waits_for_a_lock(h))
            claiming._gate.clear()  # so that no worker claims the next step before the cancel has its lock
            written.release()
            cancelled = await cancelling
            claiming.release()

    assert (cancelled, await booked(h), runs) == (True, 1, [0])
    assert ((await booking.get()).status, worker.stats.stale) == (Status.CANCELLED, 0)


@pytest.mark.parametrize("order", ["signal first", "park first"])
async def test_a_signal_and_a_park_that_block_one_another_end_awake(
    h: Harness, foreign: asyncpg.Connection, order: str
) -> None:
    """Rule 11: the signal's transaction is open while the step ends, or the step's when the signal arrives."""
    booking = await h.engine.start(Booking, step="park")
    go = NewSignal(id=booking.id, tenant=None, key=None, name="go", payload="7", dedup_key=None)

    with armed("transactional.returned", hold=True) as returned, armed("transactional.written", hold=True) as written:
        async with h.engine.worker() as worker:
            await returned.reached()
            if order == "signal first":
                async with foreign.transaction():
                    await deliver(Session(foreign), [go])
                    returned.release()
                    written.release()
                    await is_trying_again(worker)
            else:
                returned.release()
                await written.reached()
                signalling = asyncio.create_task(booking.signal("go", 7))
                await eventually(lambda: waits_for_a_lock(h))
                written.release()
                await signalling
            result = await booking.result(timeout=30)

    assert (result, await booked(h)) == ([7], 1)


@pytest.mark.parametrize("commits", [True, False], ids=["taken", "left free"])
async def test_a_childs_key_in_a_callers_open_transaction_does_not_lose_the_step(
    h: Harness, foreign: asyncpg.Connection, runs: list[int], commits: bool
) -> None:
    """The spawn is retried from a savepoint; what the author wrote stays."""
    booking = await h.engine.start(Booking, step="spawn")
    rival = foreign.transaction()
    await rival.start()
    await start.start(Session(foreign), [
        NewInstance(
            machine="Child", version=1, step="start", queue="nowhere", priority=0, due=None, tenant="",
            key="only", key_scope="live", concurrency_key=None, state="null",
        )
    ])  # fmt: skip

    async with h.engine.worker() as worker:
        await eventually(lambda: waits_for_a_lock(h))
        await is_trying_again(worker)
        await (rival.commit() if commits else rival.rollback())
        await booking.result(timeout=30)

    [row] = await h.sql("select count(*) from stepwell.instances where parent_id = $1", booking.id)
    assert (row["count"], await booked(h), runs) == (0 if commits else 1, 1, [0])


async def is_trying_again(worker: Worker) -> None:
    """Wait until the worker's one step has tried several times to write its outcome."""
    assert worker._graph.committing.transactional_runner is not None
    pool = worker._graph.committing.transactional_runner._pool
    before = pool.statements
    await eventually(lambda: pool.statements > before + 6)


async def waits_for_a_lock(h: Harness) -> bool:
    return bool(
        await h.sql(
            "select from pg_locks l join pg_stat_activity a using (pid) "
            "where not l.granted and a.datname = current_database()"
        )
    )
