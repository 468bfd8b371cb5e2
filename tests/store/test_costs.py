"""How many statements an operation costs, by our own counter and by the driver's log."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from stepwell import Await, ConcurrencyLimit, Context, Done, Machine, step
from stepwell._core.commit import Commit, Values
from stepwell._core.instance import Claim
from stepwell._core.start_request import NewInstance
from stepwell._core.status import Status
from stepwell._store import concurrency_keys, instances
from stepwell._store.connection.pool import Database
from stepwell._store.operations import commit, start
from stepwell._store.operations.claim import claim_full
from stepwell._store.registrations import workers
from stepwell._store.registrations.workers import HostIdentity
from stepwell.testing import armed
from tests.conftest import MakeHarness
from tests.store.wire_log import HOUSEKEEPING, Tally
from tests.support.claims import request
from tests.support.commits import full_path
from tests.support.waiting import eventually

LABELS = ["order@1"]
NO_POLL = timedelta(minutes=10)


class Order(Machine):
    @step
    async def start(self, ctx: Context[None]) -> Done:
        return Done({"order": ctx.id})


@pytest.fixture
async def tally(database: Database) -> Tally:
    made = Tally(database)
    await made.attach()
    return made


def new(count: int, concurrency_key: str | None = None) -> list[NewInstance]:
    return [
        NewInstance(
            machine="order", version=1, step="start", queue="default", priority=0, due=None, tenant="",
            concurrency_key=concurrency_key and f"{concurrency_key} {n}", state="{}",
        )
        for n in range(count)
    ]  # fmt: skip


async def enter_worker(database: Database) -> int:
    return (await workers.register(database, HostIdentity("h", "b", 1, "p"), "0", {}, LABELS, timedelta(hours=1))).id


async def claims(database: Database, count: int, concurrency_key: str | None = None) -> list[Claim]:
    worker = await enter_worker(database)
    await start.start(database, new(count, concurrency_key))
    return (await claim_full(database, request(worker, count, LABELS))).claims


def ended(given: Sequence[Claim]) -> list[Commit]:
    values = Values(result="{}")
    return [Commit(claim=c, status=Status.DONE, step="start", version=1, attempt=0, values=values) for c in given]


@pytest.mark.parametrize("count", [1, 1_000])
async def test_starting_any_number_is_one_statement(database: Database, tally: Tally, count: int) -> None:
    started = await start.start(database, new(count))

    assert len(started) == count
    await tally.expect("instances/start_fast")


async def test_starting_several_that_differ_is_one_statement(database: Database, tally: Tally) -> None:
    started = await start.start(database, new(100, "account"))

    assert len(started) == 100
    await tally.expect("instances/start")


async def test_start_many_of_a_thousand_is_one_statement(make_harness: MakeHarness) -> None:
    h = await make_harness([Order])
    tally = Tally(h.engine._opened)
    await tally.attach()

    await h.engine.start_many([Order] * 1_000)
    await eventually(lambda: tally.sent)

    assert tally.sent.count("instances/start_fast") == 1
    assert set(tally.sent) <= {"instances/start_fast", "notifications/send"}


async def test_concurrent_single_starts_are_two_statements(make_harness: MakeHarness) -> None:
    """The first is sent at once; those that arrive meanwhile are sent together."""
    h = await make_harness([Order])
    tally = Tally(h.engine._opened)
    await tally.attach()

    handles = await asyncio.gather(*(h.engine.start(Order) for _ in range(50)))
    await eventually(lambda: tally.sent.count("instances/start_fast") == 2)

    assert len({handle.id for handle in handles}) == 50
    assert set(tally.sent) <= {"instances/start_fast", "notifications/send"}


async def test_a_claim_is_one_statement(database: Database, tally: Tally) -> None:
    worker = await enter_worker(database)
    await start.start(database, new(50))
    tally.clear()

    claimed = await claim_full(database, request(worker, 50, LABELS))

    assert len(claimed.claims) == 50
    await tally.expect("instances/claim")


async def test_marking_started_is_one_statement_and_returns_the_states(database: Database, tally: Tally) -> None:
    given = await claims(database, 50)
    tally.clear()

    begun = await workers.mark_started(database, given[0].claimed_at, [], given)

    assert begun is not None
    assert set(begun.states) == {c.id for c in given}
    await tally.expect("workers/mark_started")


@pytest.mark.parametrize("count", [3, 300])
async def test_a_group_commit_of_simple_outcomes_is_one_statement(database: Database, tally: Tally, count: int) -> None:
    given = await claims(database, count)
    tally.clear()

    flushed = await commit.commit(database, ended(given), full_path())

    assert len(flushed.committed) == count
    await tally.expect("instances/commit")


@pytest.mark.parametrize("count", [3, 300])
async def test_a_group_commit_with_concurrency_keys_is_three_in_one_transaction(
    database: Database, tally: Tally, count: int
) -> None:
    given = await claims(database, count, "account")
    tally.clear()

    flushed = await commit.commit(database, ended(given), full_path())

    assert len(flushed.committed) == count
    await tally.expect("BEGIN", "instances/commit", "concurrency_keys/lock", "concurrency_keys/admit", "COMMIT")


async def test_a_hold_behind_a_key_is_two_statements_in_one_transaction(database: Database, tally: Tally) -> None:
    await claims(database, 1, "account")
    [behind] = await start.start(database, new(1, "account"))
    tally.clear()

    held = await concurrency_keys.hold(database, [behind.id], ["account 0"])

    assert list(held) == [behind.id]
    await tally.expect("BEGIN", "concurrency_keys/lock", "concurrency_keys/hold", "COMMIT")


async def test_the_due_tick_is_one_statement(database: Database, tally: Tally) -> None:
    await instances.wake_due(database, ["default", "mail"])

    await tally.expect("instances/wake_due")


async def test_reading_and_waiting_for_a_settled_instance_are_one_statement_each(make_harness: MakeHarness) -> None:
    h = await make_harness([Order])
    order = await h.engine.start(Order)
    async with h.engine.worker():
        await order.result(timeout=10)
    tally = Tally(h.engine._opened)
    await tally.attach()

    await order.get()
    await tally.expect("instances/read")
    tally.clear()
    await order.wait(timeout=10)

    await tally.expect("instances/read")


async def test_waiting_for_a_running_instance_is_three_statements(make_harness: MakeHarness) -> None:
    h = await make_harness([Order])
    order = await h.engine.start(Order)
    tally = Tally(h.engine._opened)
    await tally.attach()

    waiting = asyncio.create_task(order.wait(timeout=30))
    await eventually(lambda: "instances/watch" in tally.sent)
    async with h.engine.worker():
        await waiting

    spent = [name for name in tally.sent if name != "notifications/send"]
    assert spent == ["instances/read", "instances/watch", "instances/read"]


async def test_an_instance_of_one_step_costs_an_idle_worker_two_statements(make_harness: MakeHarness) -> None:
    h = await make_harness([Order], poll=NO_POLL, max_poll=NO_POLL)
    async with h.engine.worker() as worker:
        tally = Tally(h.engine._opened, worker._database)
        await tally.attach()

        with armed("committer.committed") as committed:
            await h.engine.start(Order)
            await committed.reached()

        spent = [name for name in tally.sent if name not in HOUSEKEEPING]
        assert spent == ["instances/start_fast", "instances/claim_started_fast", "instances/commit_fast"]


async def test_a_step_under_a_limit_costs_four_statements_in_a_known_queue(
    make_harness: MakeHarness,
) -> None:
    h = await make_harness([Order], limits=[ConcurrencyLimit("two", 2)], poll=NO_POLL, max_poll=NO_POLL)
    await h.engine.start_many([Order.child(concurrency_limit="two") for _ in range(5)])
    async with h.engine.worker({"default": 2}) as worker:
        with armed("limiter.admitted", hold=True) as admitting:
            await admitting.reached()
            tally = Tally(h.engine._opened, worker._database)
            await tally.attach()
            admitting.release()
        await eventually(lambda: worker.stats.committed == 5)

    spent = {name for name in tally.sent if name not in {*HOUSEKEEPING, "notifications/send"}}
    assert spent <= {"limits/claim_fast", "workers/mark_started", "instances/commit_fast", "limits/admit_waiting_fast",
                     "workers/leave"}


async def test_a_signal_costs_four_statements_to_the_end_of_its_instance(
    make_harness: MakeHarness,
) -> None:
    class Parked(Machine):
        @step
        async def start(self, ctx: Context[None]) -> Await:
            return Await("go", then=self.finish)

        @step
        async def finish(self, ctx: Context[None]) -> Done:
            return Done()

    h = await make_harness([Parked], poll=NO_POLL, max_poll=NO_POLL)
    async with h.engine.worker() as worker:
        parked = await h.engine.start(Parked)
        await parked.wait(timeout=10, until="settled")
        tally = Tally(h.engine._opened, worker._database)
        await tally.attach()

        await parked.signal("go")
        await eventually(lambda: "signals/drop" in tally.sent)

        spent = [name for name in tally.sent if name not in {*HOUSEKEEPING, "notifications/send"}]
        assert spent == ["signals/deliver_fast", "instances/claim_started_fast", "instances/commit_fast",
                         "signals/drop"]


@pytest.mark.parametrize(
    ("key", "hanging"),
    [(None, []), ("account", ["SAVEPOINT", "instances/commit", "concurrency_keys/lock", "concurrency_keys/admit",
                              "RELEASE"])],
    ids=["plain", "with its key"],
)
async def test_a_transactional_step_costs_two_statements_more_and_a_reset(
    make_harness: MakeHarness, key: str | None, hanging: list[str]
) -> None:
    class Booking(Machine):
        @step(transactional=True)
        async def start(self, ctx: Context[None]) -> Done:
            await ctx.connection.execute("insert into public.ledger values (1)")
            return Done()

    h = await make_harness([Booking], transactional_pool=1)
    await h.sql("create table public.ledger (n integer)")
    async with h.engine.worker() as worker:
        assert worker._graph.committing.transactional_runner is not None
        tally = Tally(worker._graph.committing.transactional_runner._pool)  # type: ignore[arg-type]  # counts as a database does
        await tally.attach()
        booking = await h.engine.start(Booking, concurrency_key=key)
        await booking.result(timeout=30)

        written = hanging or ["instances/commit"]
        reset = "SELECT"
        await tally.expect(
            "BEGIN", "step_transaction/mark", "INSERT", "step_transaction/take_over", *written, "COMMIT", reset
        )  # fmt: skip


async def test_simple_outcomes_take_the_fast_path_beside_others(make_harness: MakeHarness) -> None:
    class Either(Machine):
        @step
        async def start(self, ctx: Context[dict[str, Any]]) -> Await | Done:
            return Await("go", then=self.start) if ctx.state.get("parks") else Done()

    h = await make_harness([Either], poll=NO_POLL, max_poll=NO_POLL)
    await h.engine.start_many([Either.child({"parks": number % 2 == 0}) for number in range(120)])
    with armed("committer.before_commit", hold=True) as committing:
        async with h.engine.worker({"default": 120}) as worker:
            await committing.reached()
            await eventually(lambda: worker.stats.steps == 120)
            tally = Tally(worker._database)
            await tally.attach()
            committing.release()
            await eventually(lambda: worker.stats.committed == 120)

    assert {"instances/commit", "instances/commit_fast"} <= set(tally.sent)
    rows = await h.sql("select status, count(*) as number from stepwell.instances group by status order by status")
    assert [tuple(row) for row in rows] == [("awaiting_signal", 60), ("done", 60)]
