"""Calls on a caller's connection: for each driver, its commit makes them visible and its rollback leaves nothing."""

from __future__ import annotations

import asyncpg
import pytest

from stepwell import Duplicate, InvalidConnection, IsolationTooHigh, NoTarget, NotFound, Status
from stepwell.testing import Harness
from tests.surfaces.sql_and_drivers.callers import Caller
from tests.surfaces.sql_and_drivers.machines import Note, Order


async def test_the_callers_commit_starts_the_instance(h: Harness, caller: Caller) -> None:
    await caller.execute("create table app_orders (id integer)")
    started = await caller.start(Order, {"number": 7}, key="order:7", priority=-2, tenant="acme")
    before = (await h.engine.insights.list()).items

    await caller.commit()

    assert before == []
    [after] = (await h.engine.insights.list()).items
    assert (after.id, after.key, after.priority, after.tenant) == (started.id, "order:7", -2, "acme")
    assert (after.machine, after.version, after.step, after.state) == ("Order", 1, "start", {"number": 7})


async def test_the_callers_rollback_leaves_nothing(h: Harness, caller: Caller) -> None:
    await caller.execute("create table app_orders (id integer)")
    await caller.start(Order, key="order:7")
    await caller.start_many([Order.child(key="a"), (Note, {"b": 1})])

    await caller.rollback()

    assert (await h.engine.insights.list()).items == []
    assert await h.sql("select * from stepwell.instance_data") == []


async def test_a_duplicate_does_not_abort_the_callers_transaction(h: Harness, caller: Caller) -> None:
    holder = await h.engine.start(Order, key="order:7")

    with pytest.raises(Duplicate) as raised:
        await caller.start(Order, key="order:7")
    same = await caller.start(Order, key="order:7", if_exists="return")
    many = await caller.start_many([Order.child(key="order:8"), Order.child(key="order:7"), Order.child(key="order:8")])
    await caller.commit()

    assert raised.value.id == holder.id == same.id
    assert [getattr(answer, "key", None) for answer in many] == ["order:8", "order:7", "order:8"]
    assert [isinstance(answer, Duplicate) for answer in many] == [False, True, True]
    assert many[2].id == many[0].id
    assert {row.key for row in (await h.engine.insights.list()).items} == {"order:7", "order:8"}


async def test_an_id_of_another_tenant_is_unknown_on_the_callers_connection(h: Harness, caller: Caller) -> None:
    acme = await h.engine.start(Order, tenant="acme")

    with pytest.raises(NoTarget):
        await caller.signal(acme.id, "paid", tenant="globex")
    with pytest.raises(NotFound):
        await caller.cancel(acme.id, tenant="globex")
    await caller.signal(acme.id, "paid", tenant="acme")
    await caller.signal(acme.id, "paid")
    was_cancelled = await caller.cancel(acme.id)
    await caller.commit()

    assert was_cancelled
    assert (await acme.get()).status is Status.CANCELLED


async def test_a_signal_arrives_with_the_callers_commit(h: Harness, caller: Caller) -> None:
    order = await h.engine.start(Order, key="order:7")
    async with h.engine.worker():
        await order.wait(timeout=20, until="settled")

        await caller.signal("order:7", "paid", {"amount": 100}, dedup_key="evt-1")
        await caller.signal(order.id, "paid", {"amount": 100}, dedup_key="evt-1")
        assert await h.engine.insights.inbox(order.id) == []
        await caller.commit()

        assert await order.result(timeout=20) == {"amount": 100}


async def test_a_signal_that_is_rolled_back_never_existed(h: Harness, caller: Caller) -> None:
    order = await h.engine.start(Order, key="order:7")
    await caller.signal("order:7", "paid")

    await caller.rollback()

    assert await h.engine.insights.inbox(order.id) == []


async def test_a_signal_without_a_target_does_not_abort_the_callers_transaction(h: Harness, caller: Caller) -> None:
    with pytest.raises(NoTarget):
        await caller.signal("nobody", "paid")
    with pytest.raises(NoTarget):
        await caller.signal(-1, "paid")
    kept = await caller.start(Order, key="order:7")

    await caller.commit()

    assert (await h.engine.get("order:7")).id == kept.id


async def test_a_start_can_be_signalled_and_cancelled_before_it_is_committed(h: Harness, caller: Caller) -> None:
    await caller.start(Order, key="order:7")
    await caller.start(Order, key="order:8")
    await caller.signal("order:7", "paid", 1)
    cancelled = await caller.cancel("order:8", reason="no stock", by="shop")

    await caller.commit()

    order = await h.engine.get("order:7")
    assert [signal.payload for signal in await h.engine.insights.inbox(order.id)] == [1]
    assert cancelled is True
    assert (await h.engine.get("order:8")).status is Status.CANCELLED


async def test_a_handle_takes_the_connection_too(h: Harness) -> None:
    connection = await asyncpg.connect(h.url)
    order = await h.engine.start(Order)

    async with connection.transaction():
        await order.signal("paid", 1, connection=connection)
        assert await order.cancel(connection=connection) is True
        before = (await h.engine.insights.inbox(order.id), (await order.get()).status)

    assert before == ([], Status.RUNNABLE)
    assert (await order.get()).status is Status.CANCELLED
    await connection.close()


async def test_a_cancel_takes_effect_with_the_callers_commit(h: Harness, caller: Caller) -> None:
    order = await h.engine.start(Order, key="order:7")

    assert await caller.cancel(order.id, reason="no stock") is True
    assert (await order.get()).status is Status.RUNNABLE
    assert await caller.cancel(order.id) is False
    with pytest.raises(NotFound):
        await caller.cancel("nobody")
    await caller.commit()

    ended = await order.get()
    assert (ended.status, ended.error and ended.error.message) == (Status.CANCELLED, "no stock")


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
async def test_a_transaction_above_read_committed_is_refused(h: Harness, caller: Caller, level: str) -> None:
    await caller.use_isolation(level)

    with pytest.raises(IsolationTooHigh, match=f"{level}.*READ COMMITTED"):
        await caller.start(Order)
    await caller.rollback()

    assert (await h.engine.insights.list()).items == []


async def test_a_connection_without_a_transaction_is_refused(h: Harness, caller: Caller) -> None:
    await caller.use_autocommit()

    with pytest.raises(InvalidConnection, match=r"autocommit|has no transaction"):
        await caller.start(Order)

    assert (await h.engine.insights.list()).items == []


async def test_a_closed_connection_is_refused(h: Harness, caller: Caller) -> None:
    if caller.reopens:
        pytest.skip("a closed session of SQLAlchemy opens again when it is used")
    await caller.rollback()
    await caller.close()

    with pytest.raises(InvalidConnection, match=r"closed|released"):
        await caller.start(Order)

    assert (await h.engine.insights.list()).items == []
    await caller.open()
