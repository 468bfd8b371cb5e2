"""stepwell.signal and stepwell.cancel in SQL: what they reach, what they end, and what the commit notifies."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from stepwell import Handle, Status
from stepwell.testing import Harness
from tests.support.waiting import eventually
from tests.surfaces.sql_and_drivers.machines import Busy, Family, Note, Order

BEATS_RARELY = {"lease": timedelta(minutes=20), "heartbeat": timedelta(minutes=5)}
RARELY = {"poll": timedelta(minutes=10), "max_poll": timedelta(minutes=10)}
OFTEN = {"poll": timedelta(milliseconds=50), "max_poll": timedelta(milliseconds=50)}


async def parked(h: Harness, key: str = "a") -> Handle:
    """An order that awaits its payment, without a worker."""
    order = await h.engine.start(Order, key=key)
    async with h.engine.worker():
        await order.wait(until="settled", timeout=20)
    return order


async def test_a_signal_wakes_the_instance_that_awaits_its_name_and_no_other(
    h: Harness, sql: asyncpg.Connection
) -> None:
    order = await parked(h)

    await sql.fetchval("select stepwell.signal('other', key => 'a')")
    before = await order.get()
    reached = await sql.fetchval("select stepwell.signal('paid', '[1, null]', key => 'a')")

    assert reached == order.id
    assert (before.status, (await order.get()).status) == (Status.AWAITING_SIGNAL, Status.RUNNABLE)
    inbox = await h.engine.insights.inbox(order.id)
    assert [(signal.name, signal.payload) for signal in inbox] == [("other", None), ("paid", [1, None])]


async def test_the_same_dedup_key_has_one_effect(h: Harness, sql: asyncpg.Connection) -> None:
    order = await h.engine.start(Order, key="a")

    reached = [await sql.fetchval("select stepwell.signal('paid', '1', id => $1, dedup_key => 'e')", order.id)
               for _ in range(2)]  # fmt: skip
    many = await sql.fetch("select id from stepwell.signal_many($1)", """[
        {"key": "a", "name": "paid", "dedup_key": "e"}, {"key": "a", "name": "paid", "dedup_key": "f"},
        {"key": "a", "name": "paid", "dedup_key": "f"}, {"key": "b", "name": "paid"}]""")

    assert reached == [order.id, order.id]
    assert [row["id"] for row in many] == [order.id, order.id, order.id, None]
    assert len(await h.engine.insights.inbox(order.id)) == 2


async def test_an_ended_instance_is_no_target_and_its_keys_next_holder_is(h: Harness, sql: asyncpg.Connection) -> None:
    first = await h.engine.start(Order, key="a")
    await h.engine.cancel(first.id)

    with pytest.raises(asyncpg.PostgresError) as by_key:
        await sql.fetchval("select stepwell.signal('paid', key => 'a')")
    second = await h.engine.start(Order, key="a")
    reached = await sql.fetchval("select stepwell.signal('paid', key => 'a')")
    with pytest.raises(asyncpg.PostgresError) as by_id:
        await sql.fetchval("select stepwell.signal('paid', id => $1)", first.id)

    assert (by_key.value.sqlstate, by_id.value.sqlstate) == ("SW011", "SW011")
    assert reached == second.id


async def test_a_cancel_stores_its_reason_and_returns_whether_it_had_an_effect(
    h: Harness, sql: asyncpg.Connection
) -> None:
    order = await h.engine.start(Order, key="a")

    answers = [await sql.fetchval("select stepwell.cancel(key => 'a', reason => 'no stock', by => 'shop')")
               for _ in range(2)]  # fmt: skip

    ended = await order.get()
    [operated] = await h.sql("select operated ->> 'by' as by from stepwell.instance_data where id = $1", order.id)
    assert answers == [True, False]
    assert (ended.status, ended.error and ended.error.message) == (Status.CANCELLED, "no stock")
    assert operated["by"] == "shop"


@pytest.mark.parametrize("cascade", [True, False])
async def test_a_cancelled_child_counts_and_a_cancel_of_a_parent_cancels_children(
    h: Harness, sql: asyncpg.Connection, cascade: bool
) -> None:
    family = await h.engine.start(Family)
    async with h.engine.worker():
        await family.wait(until="settled", timeout=20)
        children = await h.sql("select id from stepwell.instances where parent_id = $1", family.id)
        await sql.fetchval("select stepwell.cancel($1, cascade => $2)", children[0]["id"], cascade)
        one = await family.get()
        await sql.fetchval("select stepwell.cancel($1, cascade => $2)", family.id, cascade)

    rows = await h.sql("select status from stepwell.instances where parent_id = $1 order by id", family.id)
    assert one.status is Status.AWAITING_CHILDREN
    assert [row["status"] for row in rows].count("cancelled") == (2 if cascade else 1)


async def test_a_parent_continues_when_its_last_child_is_cancelled_by_sql(h: Harness, sql: asyncpg.Connection) -> None:
    family = await h.engine.start(Family)
    async with h.engine.worker(**RARELY):
        await family.wait(until="settled", timeout=20)
        async with sql.transaction():
            for row in await h.sql("select id from stepwell.instances where parent_id = $1", family.id):
                await sql.fetchval("select stepwell.cancel($1)", row["id"])

        assert await family.result(timeout=20) == ["cancelled", "cancelled"]


async def test_the_step_of_a_cancelled_instance_is_stopped_at_the_commit(h: Harness, sql: asyncpg.Connection) -> None:
    busy = await h.engine.start(Busy)
    async with h.engine.worker(**RARELY, **BEATS_RARELY) as worker:
        await eventually(lambda: worker.running == 1)
        transaction = sql.transaction()
        await transaction.start()
        await sql.fetchval("select stepwell.cancel($1)", busy.id)
        before = (worker.running, (await busy.get()).status)

        await transaction.commit()

        await eventually(lambda: worker.running == 0)
    assert before == (1, Status.EXECUTING)
    assert (await busy.get()).status is Status.CANCELLED


async def test_a_key_freed_by_a_cancel_passes_on_at_the_commit_and_blocks_none(
    h: Harness, sql: asyncpg.Connection
) -> None:
    busy = await h.engine.start(Busy, concurrency_key="k")
    async with h.engine.worker(**RARELY, reap=timedelta(minutes=10)):
        await eventually(lambda: h.sql("select from stepwell.instances where status = 'executing'"))
        behind = await h.engine.start(Note, concurrency_key="k")
        await eventually(lambda: h.sql("select from stepwell.instances where hold = 'key'"))
        transaction = sql.transaction()
        await transaction.start()
        await sql.fetchval("select stepwell.cancel($1)", busy.id)

        others = [await h.engine.start(Note, concurrency_key=key) for key in ("other", None)]
        meanwhile = [(await other.wait(timeout=20)).status for other in others]
        held = (await behind.get()).hold
        await transaction.commit()

        assert (await behind.wait(timeout=20)).status is Status.DONE
    assert (meanwhile, held) == ([Status.DONE, Status.DONE], "key")


async def test_a_worker_that_rarely_polls_wakes_at_the_commit(h: Harness, sql: asyncpg.Connection) -> None:
    async with h.engine.worker(**RARELY):
        async with sql.transaction():
            note = await sql.fetchval("select stepwell.start('Note')")
            order = await sql.fetchval("select stepwell.start('Order', key => 'a', delay => interval '10 ms')")
            await sql.fetchval("select stepwell.signal('paid', '5', key => 'a')")

        assert (await h.engine.wait(note, timeout=20)).status is Status.DONE
        assert (await h.engine.wait(order, timeout=20)).result == 5


async def heard(h: Harness, sql: asyncpg.Connection, *doors: str) -> list[str]:
    """The channels that are notified when calls are committed together."""
    said: list[str] = []
    all_said = asyncio.Event()
    ear = await asyncpg.connect(h.url)
    for channel in ("stepwell_work", "stepwell_due", "stepwell_idle", "stepwell_revoked"):
        await ear.add_listener(channel, lambda *notice: said.append(notice[2]))
    await ear.add_listener("end", lambda *_: all_said.set())
    async with sql.transaction():
        for door in doors:
            await sql.fetch(f"select stepwell.{door}")
    await ear.execute('notify "end"')
    await asyncio.wait_for(all_said.wait(), 20)
    await ear.close()
    return sorted(said)


async def test_a_null_for_notify_still_notifies(h: Harness, sql: asyncpg.Connection) -> None:
    assert await heard(h, sql, "start('Order', key => 'a', notify => null)") == ["stepwell_work"]
    assert await heard(h, sql, "start('Note', delay => '1 day', notify => null)") == ["stepwell_due"]
    assert await heard(h, sql, "signal('paid', key => 'a', notify => null)") == ["stepwell_work"]


async def test_without_a_notification_only_polling_finds_the_row(h: Harness, sql: asyncpg.Connection) -> None:
    said = await heard(
        h, sql, "start('Note', key => 'n', notify => false)",
        "start('Order', key => 'a', delay => '1 day', notify => false)",
        "signal('paid', key => 'a', notify => false)", "cancel(key => 'a', notify => false)",
    )  # fmt: skip

    async with h.engine.worker(**OFTEN):
        assert (await h.engine.wait("n", timeout=20)).status is Status.DONE
    assert said == []
