"""The reconciler normally finds nothing; what somebody damages by hand it finds, mends and counts."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest

from stepwell import Engine, Handle
from stepwell._runtime.worker import Worker
from stepwell._store import units
from stepwell._store.database import WORKER, Database
from stepwell.testing import Harness, armed
from tests.asks.looks import questions
from tests.asks.machines import Batch, Expense
from tests.support.transports import Recording
from tests.support.waiting import eventually

SOON = timedelta(milliseconds=100)
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
    """An instance that waits for answers, and no worker."""
    handle = await engine.start(machine, {"items": [1, 2], **state} if machine is Batch else state)
    async with engine.worker(drain_timeout=timedelta(0)) as worker:
        await handle.wait(until="settled", timeout=30)
        assert worker.tally.reconciled == 0
    return handle


async def looked(engine: Engine, handle: Handle[Any]) -> tuple[Worker, Any]:
    """What a worker's first look makes of it."""
    with armed("reconciler.looked") as point:
        async with engine.worker() as worker:
            await point.reached()
            ended = await handle.wait(timeout=30)
    return worker, ended


async def test_an_instance_that_waits_for_a_unit_that_has_ended_goes_on(
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
    assert worker.tally.reconciled == 1
    assert f"instances [{batch.id}] waited for nothing" in caplog.text


async def test_an_instance_that_waits_for_a_unit_that_is_not_there_goes_on(h: Harness, engine: Engine) -> None:
    async with engine:
        batch = await parked(engine)
        await h.sql("delete from stepwell.interactions")
        await h.sql("delete from stepwell.await_units")

        worker, ended = await looked(engine, batch)

    assert (ended.status, ended.result) == ("done", [])
    assert worker.tally.reconciled == 1


async def test_a_unit_whose_questions_have_all_ended_is_counted(h: Harness, engine: Engine) -> None:
    """Digest, gap 18: answered, but not counted."""
    async with engine:
        batch = await parked(engine)
        await h.sql(ANSWERED, batch.id)

        worker, ended = await looked(engine, batch)

    assert ended.result == [[0, "completed", 7], [1, "completed", 8]]
    assert worker.tally.reconciled == 1


UNCOUNTED = (
    "update stepwell.interactions set status = 'completed', reply = '7', finished_at = now() "
    "where instance_id = $1 and item = 0"
)
STRAYS = {  # how wide the window is, what somebody does, and what is out after a look
    "answered, not counted": (1, [UNCOUNTED], [1]),
    "one of two answered, not counted": (2, [UNCOUNTED], [1, 2]),
    "counted, no other let out": (1, [
        UNCOUNTED, "update stepwell.await_units set resolved = 1, in_flight = 0 where instance_id = $1"], [1]),
    "out, not counted": (2, ["update stepwell.await_units set in_flight = 1 where instance_id = $1"], [0, 1]),
    "counted twice": (2, [
        UNCOUNTED, "update stepwell.await_units set resolved = 2, in_flight = 1 where instance_id = $1"], [1, 2]),
}  # fmt: skip


@pytest.mark.parametrize("damage", STRAYS)
async def test_a_unit_with_room_in_its_window_lets_the_next_ones_out(h: Harness, engine: Engine, damage: str) -> None:
    """Digest, gap 18: some of its questions are queued, and nothing that happens would ever let them out."""
    window, statements, out = STRAYS[damage]
    async with engine:
        batch = await parked(engine, items=[1, 2, 3, 4], window=window)
        for statement in statements:
            await h.sql(statement, batch.id)

        with armed("reconciler.looked") as point:
            async with engine.worker() as worker:
                await point.reached(2)
                rows = await questions(h, batch.id)
                for row in rows:
                    if row["finished_at"] is None:
                        await engine.complete(interaction=str(row["id"]), reply=7 + row["item"])
                ended = await batch.wait(timeout=30)

    assert [row["item"] for row in rows if row["status"] == "dispatched"] == out
    assert {(row["in_flight"], row["resolved"]) for row in rows} == {(window, out[0])}
    assert [fact["repaired"] for fact in point.facts[:2]] == [1, 0]
    assert worker.tally.reconciled == 1
    assert ended.result == [[n, "completed", 7 + n] for n in range(4)]


async def test_a_unit_that_nobody_waits_for_is_closed_with_its_questions(h: Harness, engine: Engine) -> None:
    async with engine:
        batch = await parked(engine)
        await h.sql("update stepwell.instances set status = 'done', finished_at = now() where id = $1", batch.id)
        await h.sql("update stepwell.instances set await_unit_id = null where id = $1", batch.id)

        worker, _ = await looked(engine, batch)
        await eventually(lambda: worker.tally.reconciled)

    assert worker.tally.reconciled == 1
    rows = await h.sql("select u.status, q.status from stepwell.await_units u join stepwell.interactions q "
                       "on q.unit_id = u.id")  # fmt: skip
    assert [tuple(row) for row in rows] == [("cancelled", "cancelled")] * 2


async def test_what_a_dead_worker_was_sending_is_sent_again_and_is_no_damage(
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
    assert (worker.tally.sent_again, worker.tally.reconciled) == (2, 0)


async def test_what_is_as_it_should_be_is_left_alone(h: Harness, engine: Engine) -> None:
    async with engine:
        await parked(engine)
        await parked(engine, Expense, seconds=3600.0)
        await parked(engine, transport="there", window=1)
        before = await h.sql("select * from stepwell.interactions order by id")

        with armed("reconciler.looked") as point:
            async with engine.worker(reap=SOON) as worker:
                await point.reached()

    assert worker.tally.reconciled == 0
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
  select p.await_unit_id, p.id, 1, '', 'Batch', 1, 'start', 'inbox', false, 'x', 'wake', false, 1, 1, true, now()
  from parked p
)
insert into stepwell.interactions (id, correlation, unit_id, instance_id, created_at, next_at, tenant, transport,
                                   status, idempotency_key, request)
select gen_random_uuid(), gen_random_uuid(), p.await_unit_id, p.id, now(), now(), '', 'inbox', 'dispatched', '', '1'
from parked p
"""


async def test_everything_is_looked_at_in_turn_however_much_waits(h: Harness) -> None:
    await h.sql(BACKLOG, 1_100)
    await h.sql("update stepwell.await_units set status = 'completed', finished_at = now(), in_flight = 0, "
                "resolved = 1 where instance_id = 700")  # fmt: skip
    await h.sql("update stepwell.instances set await_unit_id = 7, status = 'runnable' where id = 1050")

    found: list[tuple[list[int], list[int]]] = []
    after = units.Place()
    async with Database(h.url, session=WORKER) as database:
        for _ in range(4):
            repaired = await units.reconcile(database, after)
            after = repaired.after
            found.append(([*repaired.released], [*repaired.closed]))

    assert found == [([], []), ([700], []), ([], [1001050]), ([], [])]


async def test_a_round_goes_on_after_a_full_look_without_another_interval(h: Harness) -> None:
    """What is wrong lies behind the first two looks, and the next interval is an hour away."""
    await h.sql(BACKLOG, 1_100)
    await h.sql("update stepwell.instances set await_unit_id = null, status = 'done', finished_at = now() "
                "where id = 1050")  # fmt: skip

    with armed("reconciler.looked") as point:
        async with h.another_engine(reap=timedelta(hours=1)) as engine, engine.worker() as worker:
            await point.reached(3)

    assert [fact["repaired"] for fact in point.facts] == [0, 0, 1]
    assert worker.tally.reconciled == 1
    [unit] = await h.sql("select status from stepwell.await_units where instance_id = 1050")
    assert unit["status"] == "cancelled"


async def test_the_shorter_of_two_lists_is_looked_at_once_in_a_round(h: Harness) -> None:
    """More units are open than instances parked: the end of one list is no beginning."""
    await h.sql(BACKLOG, 1_100)
    await h.sql("update stepwell.instances set status = 'runnable' where id > 100")

    looks, after = [], units.Place()
    async with Database(h.url, session=WORKER) as database:
        while not after.is_end:
            after = (await units.reconcile(database, after)).after
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
        "unit_id, instance_id, n, now(), now(), '', 'inbox', 'completed', '', '1', '1', now() "
        "from stepwell.interactions, generate_series(0, 4999) n"
    )


async def test_a_unit_of_many_items_is_looked_at_from_its_open_end(h: Harness) -> None:
    """Thousands that have ended before the one that is open cost nothing."""
    await fill_up(h)

    from tests.store.plans import benched  # noqa: PLC0415 - only here

    async with benched(h.url, WORKER) as bench:
        plan = await bench.explain("units/find_stray", 0)

    assert plan.buffers < 30


@pytest.mark.parametrize("first", ["dispatched", "completed"])
async def test_a_long_unit_is_looked_at_for_some_of_its_items_and_judged_by_all(h: Harness, first: str) -> None:
    """The last one is queued. What is out lies far before it, if anything is: then all is as it should be."""
    await fill_up(h)
    await h.sql("update stepwell.interactions set status = 'queued' where item = 5000")
    await h.sql("update stepwell.await_units set resolved = 4999")
    if first == "dispatched":
        await h.sql("update stepwell.interactions set status = 'dispatched', reply = null, finished_at = null "
                    "where item = 0")  # fmt: skip

    from tests.store.plans import benched  # noqa: PLC0415 - only here

    async with benched(h.url, WORKER) as bench:
        plan = await bench.explain("units/find_stray", 0)
    async with Database(h.url, session=WORKER) as database:
        repaired = await units.reconcile(database, units.Place())

    assert plan.rows_handled() < 1_500
    assert [*repaired.recounted] == ([] if first == "dispatched" else [1000001])
    [last] = await h.sql("select status from stepwell.interactions where item = 5000")
    assert last["status"] == ("queued" if first == "dispatched" else "dispatched")
