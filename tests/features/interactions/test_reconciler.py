"""The reconciler normally finds nothing; it finds, repairs and counts damage that a person made."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest

from stepwell import Await, Context, Done, Engine, Handle, Machine, Spawn, step
from stepwell._store import await_units
from stepwell._store.connection.pool import WORKER, Database
from stepwell._worker.worker import Worker
from stepwell.testing import Harness, armed
from tests.features.interactions.looks import interaction_rows
from tests.features.interactions.machines import Batch, Expense
from tests.support.transports import Recording
from tests.support.waiting import eventually

SOON = timedelta(milliseconds=20)
ANSWERED = (
    "update stepwell.interactions set status = 'completed', reply = to_jsonb(7 + item), finished_at = now() "
    "where instance_id = $1"
)


@pytest.fixture
def there() -> Recording:
    return Recording()


@pytest.fixture
def engine(h: Harness, there: Recording) -> Engine:
    return h.another_engine(transports=[there], reap=SOON)


async def parked(engine: Engine, machine: Any = Batch, **state: Any) -> Handle[Any]:
    """An instance that waits for replies, and no worker."""
    handle = await engine.start(machine, {"items": [1, 2], **state} if machine is Batch else state)
    async with engine.worker(drain_timeout=timedelta(0)) as worker:
        await handle.wait(until="settled", timeout=30)
        assert worker.stats.reconciled == 0
    return handle


async def looked(engine: Engine, handle: Handle[Any]) -> tuple[Worker, Any]:
    """What the first check of a worker changes."""
    with armed("reconciler.looked") as point:
        async with engine.worker() as worker:
            await point.reached()
            ended = await handle.wait(timeout=30)
    return worker, ended


async def test_an_instance_that_waits_for_an_ended_unit_is_woken(
    h: Harness, engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """Digest, gap 18: the unit is terminal, its parent parked."""
    async with engine:
        batch = await parked(engine)
        await h.sql(ANSWERED, batch.id)
        await h.sql("update stepwell.await_units set status = 'completed', resolved = 2, in_flight = 0, "
                    "finished_at = now()")  # fmt: skip

        with caplog.at_level(logging.ERROR, "stepwell"):
            worker, ended = await looked(engine, batch)

    assert ended.result == [[0, "completed", 7], [1, "completed", 8]]
    assert worker.stats.reconciled == 1
    assert f"instances [{batch.id}] waited for nothing" in caplog.text


async def test_an_instance_that_waits_for_a_missing_unit_is_woken(h: Harness, engine: Engine) -> None:
    async with engine:
        batch = await parked(engine)
        await h.sql("delete from stepwell.interactions")
        await h.sql("delete from stepwell.await_units")

        worker, ended = await looked(engine, batch)

    assert (ended.status, ended.result) == ("done", [])
    assert worker.stats.reconciled == 1


async def test_a_unit_with_only_ended_interactions_is_counted(h: Harness, engine: Engine) -> None:
    """Digest, gap 18: completed, but not counted."""
    async with engine:
        batch = await parked(engine)
        await h.sql(ANSWERED, batch.id)

        worker, ended = await looked(engine, batch)

    assert ended.result == [[0, "completed", 7], [1, "completed", 8]]
    assert worker.stats.reconciled == 1


UNCOUNTED = (
    "update stepwell.interactions set status = 'completed', reply = '7', finished_at = now() "
    "where instance_id = $1 and item = 0"
)
STRAYS = {  # width of the window, the act, and what is dispatched after a check
    "answered, not counted": (1, [UNCOUNTED], [1]),
    "one of two answered, not counted": (2, [UNCOUNTED], [1, 2]),
    "counted, no other let out": (1, [
        UNCOUNTED, "update stepwell.await_units set resolved = 1, in_flight = 0 where instance_id = $1"], [1]),
    "out, not counted": (2, ["update stepwell.await_units set in_flight = 1 where instance_id = $1"], [0, 1]),
    "counted twice": (2, [
        UNCOUNTED, "update stepwell.await_units set resolved = 2, in_flight = 1 where instance_id = $1"], [1, 2]),
}  # fmt: skip


@pytest.mark.parametrize("damage", STRAYS)
async def test_a_unit_with_room_in_its_window_dispatches_its_next_items(
    h: Harness, engine: Engine, damage: str
) -> None:
    """Digest, gap 18: some of its interactions are queued, and no later event would dispatch them."""
    window, statements, out = STRAYS[damage]
    async with engine:
        batch = await parked(engine, items=[1, 2, 3, 4], window=window)
        for statement in statements:
            await h.sql(statement, batch.id)

        with armed("reconciler.looked") as point:
            async with engine.worker() as worker:
                await point.reached(2)
                rows = await interaction_rows(h, batch.id)
                for row in rows:
                    if row["finished_at"] is None:
                        await engine.complete(interaction=str(row["id"]), reply=7 + row["item"])
                ended = await batch.wait(timeout=30)

    assert [row["item"] for row in rows if row["status"] == "dispatched"] == out
    assert {(row["in_flight"], row["resolved"]) for row in rows} == {(window, out[0])}
    assert [fact["repaired"] for fact in point.facts[:2]] == [1, 0]
    assert worker.stats.reconciled == 1
    assert ended.result == [[n, "completed", 7 + n] for n in range(4)]


async def test_a_unit_without_a_waiting_instance_is_closed_with_its_interactions(h: Harness, engine: Engine) -> None:
    async with engine:
        batch = await parked(engine)
        await h.sql("update stepwell.instances set status = 'done', finished_at = now() where id = $1", batch.id)
        await h.sql("update stepwell.instances set await_unit_id = null where id = $1", batch.id)

        worker, _ = await looked(engine, batch)
        await eventually(lambda: worker.stats.reconciled)

    assert worker.stats.reconciled == 1
    rows = await h.sql("select u.status, q.status from stepwell.await_units u join stepwell.interactions q "
                       "on q.unit_id = u.id")  # fmt: skip
    assert [tuple(row) for row in rows] == [("cancelled", "cancelled")] * 2


async def test_sendings_of_a_dead_worker_are_repeated_and_are_no_damage(
    h: Harness, engine: Engine, there: Recording
) -> None:
    """Digest, gaps 3 and 18: dispatching for too long."""
    async with engine:
        batch = await parked(engine, transport="there")
        await h.sql("update stepwell.interactions set status = 'dispatching', worker_id = 999, attempts = 5")
        there.sent.clear()

        async with engine.worker() as worker:
            await eventually(lambda: len(there.sent) == 2)

    assert {(sent.attempt, sent.instance_id) for sent in there.sent} == {(6, batch.id)}
    assert (worker.stats.sent_again, worker.stats.reconciled) == (2, 0)


async def test_the_reconciler_leaves_consistent_rows_alone(h: Harness, engine: Engine) -> None:
    async with engine:
        await parked(engine)
        await parked(engine, Expense, seconds=3600.0)
        await parked(engine, transport="there", window=1)
        before = await h.sql("select * from stepwell.interactions order by id")

        with armed("reconciler.looked") as point:
            async with engine.worker(reap=SOON) as worker:
                await point.reached()

    assert worker.stats.reconciled == 0
    assert await h.sql("select * from stepwell.interactions order by id") == before


BACKLOG = """
with parked as (
  insert into stepwell.instances (machine, version, step, queue, status, due_at, created_at, updated_at, await_unit_id)
  select 'Batch', 1, 'collect', 'default', 'awaiting_external', now(), now(), now(), 1000000 + n
  from generate_series(1, $1::integer) n
  returning id, await_unit_id
), opened as (
  insert into stepwell.await_units (id, instance_id, visit, tenant, machine, version, step, transport, is_sent,
                                    reply_type, on_timeout, requires_token, opened, in_flight, is_filled, created_at)
  overriding system value
  select p.await_unit_id, p.id, 1, '', 'Batch', 1, 'start', 'manual', false, 'x', 'wake', false, 1, 1, true, now()
  from parked p
)
insert into stepwell.interactions (id, correlation, unit_id, instance_id, created_at, next_at, tenant, transport,
                                   status, idempotency_key, request)
select gen_random_uuid(), gen_random_uuid(), p.await_unit_id, p.id, now(), now(), '', 'manual', 'dispatched', '', '1'
from parked p
"""


async def test_the_reconciler_checks_every_row_in_turn_at_any_depth(h: Harness) -> None:
    await h.sql(BACKLOG, 1_100)
    await h.sql("update stepwell.await_units set status = 'completed', finished_at = now(), in_flight = 0, "
                "resolved = 1 where instance_id = 700")  # fmt: skip
    await h.sql("update stepwell.instances set await_unit_id = 7, status = 'runnable' where id = 1050")

    found: list[tuple[list[int], list[int]]] = []
    after = await_units.ReconcilePlace()
    async with Database(h.url, session=WORKER) as database:
        for _ in range(4):
            repaired = await await_units.reconcile(database, after)
            after = repaired.after
            found.append(([*repaired.released], [*repaired.closed]))

    assert found == [([], []), ([700], []), ([], [1001050]), ([], [])]


async def test_a_round_continues_after_a_full_page_without_another_interval(h: Harness) -> None:
    """The damage is behind the first two pages, and the next interval is an hour away."""
    await h.sql(BACKLOG, 1_100)
    await h.sql("update stepwell.instances set await_unit_id = null, status = 'done', finished_at = now() "
                "where id = 1050")  # fmt: skip

    with armed("reconciler.looked") as point:
        async with h.another_engine(reap=timedelta(hours=1)) as engine, engine.worker() as worker:
            await point.reached(3)

    assert [fact["repaired"] for fact in point.facts] == [0, 0, 1]
    assert worker.stats.reconciled == 1
    [unit] = await h.sql("select status from stepwell.await_units where instance_id = 1050")
    assert unit["status"] == "cancelled"


async def test_the_shorter_of_two_lists_is_checked_once_in_a_round(h: Harness) -> None:
    """More units are open than instances parked: the end of one list does not restart the other."""
    await h.sql(BACKLOG, 1_100)
    await h.sql("update stepwell.instances set status = 'runnable' where id > 100")

    looks, after = [], await_units.ReconcilePlace()
    async with Database(h.url, session=WORKER) as database:
        while not after.is_end:
            after = (await await_units.reconcile(database, after)).after
            looks.append((after.parked, after.open))

    assert looks == [(None, 500), (None, 1000), (None, None)]


async def fill_up(h: Harness) -> None:
    """Make one unit of many: the item that is open is the last of five thousand."""
    await h.sql(BACKLOG, 1)
    await h.sql("update stepwell.await_units set opened = 5001, resolved = 5000, \"window\" = 1")
    await h.sql("update stepwell.interactions set item = 5000")
    await h.sql(
        "insert into stepwell.interactions (id, correlation, unit_id, instance_id, item, created_at, next_at, tenant, "
        "transport, status, idempotency_key, request, reply, finished_at) select gen_random_uuid(), gen_random_uuid(), "
        "unit_id, instance_id, n, now(), now(), '', 'manual', 'completed', '', '1', '1', now() "
        "from stepwell.interactions, generate_series(0, 4999) n"
    )


async def test_a_unit_of_many_items_is_checked_from_its_open_end(h: Harness) -> None:
    """Thousands that have ended before the one that is open cost nothing."""
    await fill_up(h)

    from tests.store.plans import benched  # noqa: PLC0415 - only here

    async with benched(h.url, WORKER) as bench:
        plan = await bench.explain("await_units/find_orphaned", 0)

    assert plan.buffers < 30


@pytest.mark.parametrize("first", ["dispatched", "completed"])
async def test_a_long_unit_is_sampled_by_items_and_judged_by_all(h: Harness, first: str) -> None:
    """The last one is queued. Dispatched ones, if any, are far before it: then the unit is consistent."""
    await fill_up(h)
    await h.sql("update stepwell.interactions set status = 'queued' where item = 5000")
    await h.sql("update stepwell.await_units set resolved = 4999")
    if first == "dispatched":
        await h.sql("update stepwell.interactions set status = 'dispatched', reply = null, finished_at = null "
                    "where item = 0")  # fmt: skip

    from tests.store.plans import benched  # noqa: PLC0415 - only here

    async with benched(h.url, WORKER) as bench:
        plan = await bench.explain("await_units/find_orphaned", 0)
    async with Database(h.url, session=WORKER) as database:
        repaired = await await_units.reconcile(database, await_units.ReconcilePlace())

    assert plan.rows_handled() < 1_500
    assert [*repaired.recounted] == ([] if first == "dispatched" else [1000001])
    [last] = await h.sql("select status from stepwell.interactions where item = 5000")
    assert last["status"] == ("queued" if first == "dispatched" else "dispatched")


async def test_a_parent_of_a_child_deleted_by_hand_is_woken(
    h: Harness, caplog: pytest.LogCaptureFixture
) -> None:
    """No other event would count that child."""

    class Parent(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Spawn:
            return Spawn([Waits.child()], then=self.join)

        @step
        async def join(self, ctx: Context[Any]) -> Done:
            return Done(len(ctx.children))

    class Waits(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Await:
            return Await("never", then=self.start)

    engine = Engine(h.url, machines=[Parent, Waits], reap=SOON)
    async with engine:
        parent = await engine.start(Parent)
        async with engine.worker():
            await parent.wait(until="settled", timeout=30)
            await eventually(lambda: h.sql("select from stepwell.instances where status = 'awaiting_signal'"))
        await h.sql("delete from stepwell.instances where parent_id = $1", parent.id)

        with caplog.at_level(logging.ERROR, "stepwell"):
            worker, ended = await looked(engine, parent)

    assert (ended.result, worker.stats.reconciled) == (0, 1)
    assert f"instances [{parent.id}] waited for children that have all ended" in caplog.text
