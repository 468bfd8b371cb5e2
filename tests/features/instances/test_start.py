"""Rule 25: what `start` and `start_many` accept, and what they refuse."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from stepwell import (
    Context,
    DatabaseError,
    Done,
    Engine,
    EngineClosed,
    Handle,
    InvalidInput,
    InvalidState,
    Machine,
    PayloadTooLarge,
    Status,
    UnknownMachine,
    UnknownStep,
    step,
)
from stepwell._store.operations.start import WIDE as WIDE_FROM
from stepwell.errors import DatabaseUnavailable
from tests.conftest import MakeHarness
from tests.support.proxy import proxy_to
from tests.support.waiting import eventually

WIDE = "w" * WIDE_FROM
NOON = datetime(2040, 1, 1, 12, tzinfo=UTC)


class Order(Machine, queue="checkout"):
    @dataclass
    class State:
        count: int = 0
        note: str = ""

    @step
    async def start(self, ctx: Context[State]) -> Done:
        return Done(ctx.state.count)

    @step
    async def ship(self, ctx: Context[State]) -> Done:
        return Done()


class Unregistered(Machine, name="Ordr"):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done()


async def test_concurrent_starts_are_each_committed_with_their_own_state(make_harness: MakeHarness) -> None:
    h = await make_harness([Order])

    handles = await asyncio.gather(*(h.engine.start(Order, {"count": n}, priority=n % 2) for n in range(20)))

    found = [await handle.get() for handle in handles]
    assert [(one.state["count"], one.priority) for one in found] == [(n, n % 2) for n in range(20)]


async def test_a_start_that_the_database_refuses_fails_no_concurrent_start(make_harness: MakeHarness) -> None:
    h = await make_harness([Order])
    await h.sql("alter table stepwell.instance_data add check (state ->> 'count' <> '13')")

    returned = await asyncio.gather(
        *(h.engine.start(Order, {"count": n}) for n in range(20)), return_exceptions=True
    )

    refused = [n for n, item in enumerate(returned) if isinstance(item, DatabaseError)]
    assert refused == [13]
    assert (await h.sql("select count(*) as number from stepwell.instances"))[0]["number"] == 19


async def test_a_large_batch_returns_in_order_and_is_committed_at_once(make_harness: MakeHarness) -> None:
    """More than one statement; the last inserted row has the time of the first one."""
    h = await make_harness([Order])

    handles = await h.engine.start_many([Order.child({"count": n}, priority=n % 2) for n in range(5_500)])

    rows = await h.sql("select id, (state ->> 'count')::integer as count from stepwell.instance_data order by 2")
    assert [handle.id for handle in handles if isinstance(handle, Handle)] == [row["id"] for row in rows]
    assert [row["count"] for row in rows] == list(range(5_500))
    [row] = await h.sql("select count(distinct created_at) as moments from stepwell.instances")
    assert row["moments"] == 1


@pytest.mark.parametrize("note", ["", WIDE], ids=["narrow", "wide"])
@pytest.mark.parametrize("refused_by", ["the engine", "the database"])
async def test_a_large_batch_with_a_bad_entry_leaves_nothing(
    make_harness: MakeHarness, refused_by: str, note: str
) -> None:
    h = await make_harness([Order])
    await h.sql("alter table stepwell.instance_data add check (state ->> 'count' <> '5400')")
    entries: list[Any] = [Order.child({"count": n, "note": note}) for n in range(5_500)]
    if refused_by == "the engine":
        entries[5_300] = Order.child({"count": "many"})

    with pytest.raises(InvalidState if refused_by == "the engine" else DatabaseError):
        await h.engine.start_many(entries)

    assert (await h.sql("select count(*) as number from stepwell.instances"))[0]["number"] == 0
    assert len(await h.engine.start_many(entries[:5_100])) == 5_100, "and what is good is taken"


async def test_wide_states_of_a_large_batch_are_stored_like_single_ones(make_harness: MakeHarness) -> None:
    h = await make_harness([Order])
    notes = [f"{WIDE} {n} \\ \" \n \x1e \U0001f600 é" for n in range(5_100)]

    handles = await h.engine.start_many([Order.child({"count": n, "note": note}) for n, note in enumerate(notes)])
    single = await h.engine.start(Order, {"count": 5_000, "note": notes[5_000]})

    rows = await h.sql("select d.* from stepwell.instance_data d join stepwell.instances using (id) order by d.id")
    assert [row["id"] for row in rows] == [*(handle.id for handle in handles), single.id]
    assert [json.loads(row["state"]) for row in rows[:-1]] == [
        {"count": n, "note": note} for n, note in enumerate(notes)
    ]
    assert list(rows[5_000])[1:] == list(rows[-1])[1:]


async def test_wide_states_are_stored_while_the_applications_threads_are_busy(make_harness: MakeHarness) -> None:
    h = await make_harness([Order])
    gate = threading.Event()
    with ThreadPoolExecutor(1) as threads:
        asyncio.get_running_loop().set_default_executor(threads)
        busy = asyncio.create_task(asyncio.to_thread(gate.wait))
        try:
            async with asyncio.timeout(30):
                handles = await h.engine.start_many([Order.child({"note": WIDE})] * 5_100)
        finally:
            gate.set()
        await busy

    assert len(handles) == 5_100


async def test_a_start_many_cancelled_while_it_stores_wide_states_leaves_nothing(
    make_harness: MakeHarness,
) -> None:
    h = await make_harness([Order])
    await h.sql("create function gate() returns trigger language plpgsql as "
                "'begin perform pg_advisory_xact_lock_shared(77); return new; end'")  # fmt: skip
    await h.sql("create trigger gate before insert on stepwell.instance_data for each row execute function gate()")
    entries = [Order.child({"note": WIDE})] * 5_100

    holder = await asyncpg.connect(h.url)
    await holder.execute("select pg_advisory_lock(77)")
    starting = asyncio.create_task(h.engine.start_many(entries))
    await eventually(lambda: h.sql(
        "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' "
        "and query ilike 'copy %'"
    ))  # fmt: skip
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await holder.close()

    assert await h.sql("select from stepwell.instances") == []
    assert len(await h.engine.start_many(entries)) == len(entries), "and the connections are in order"


async def test_a_start_many_that_loses_its_connection_raises_and_leaves_nothing(
    make_harness: MakeHarness,
) -> None:
    h = await make_harness([Order])
    entries = [Order.child({"note": WIDE * 10})] * 5_100

    async with proxy_to(h.url) as proxy, Engine(proxy.url, machines=[Order]) as engine:
        proxy.lose_copied_rows()
        starting = asyncio.create_task(engine.start_many(entries))
        await eventually(starting.done)
        with pytest.raises(DatabaseUnavailable):
            await starting

        assert await h.sql("select from stepwell.instances") == []
        assert len(await engine.start_many(entries)) == len(entries), "and the connections are in order"


async def test_a_start_is_committed_with_all_its_options(make_harness: MakeHarness) -> None:
    h = await make_harness([Order])

    handle = await h.engine.start(
        Order, {"count": 4}, queue="fast", priority=-3, at=NOON, step=Order.ship, concurrency_key="a", tenant="acme"
    )
    started = await handle.get()

    assert (started.id, started.machine, started.version, started.step) == (handle.id, "Order", 1, "ship")
    assert (started.queue, started.priority, started.due_at) == ("fast", -3, NOON)
    assert (started.concurrency_key, started.tenant, started.state) == ("a", "acme", {"count": 4, "note": ""})
    assert (started.status, started.attempt, started.result, started.error) == (Status.RUNNABLE, 0, None, None)


async def test_the_tenant_of_the_engine_is_the_default(make_harness: MakeHarness) -> None:
    h = await make_harness([Order], tenant="acme")

    handle = await h.engine.start(Order)

    assert (await handle.get()).tenant == "acme"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"priority": 32_768}, r"^priority: 32768 is out of range"),
        ({"priority": 1.5}, r"^priority: expected a whole number, got 1\.5"),
        ({"delay": timedelta(days=40_000)}, r"^delay: .* is out of range"),
        ({"delay": timedelta(microseconds=-1)}, r"^delay: .* is out of range"),
        ({"delay": 5}, r"^delay: expected a timedelta, got 5"),
        ({"at": datetime(2040, 1, 1)}, r"^at: .* is naive"),  # noqa: DTZ001 - the point
        ({"at": datetime(9_999, 1, 1, tzinfo=UTC)}, r"^at: .* is out of range"),
        ({"delay": timedelta(1), "at": NOON}, r"^delay: both delay and at are given"),
        ({"queue": ""}, r"^queue: the queue's name is empty"),
        ({"queue": "a\x00"}, r"^queue: .*does not print"),
        ({"queue": "x" * 201}, r"^queue: .*201 characters"),
        ({"concurrency_key": "x" * 201}, r"^concurrency_key: has 201 characters"),
        ({"tenant": "\ud800"}, r"^tenant: has a lone surrogate"),
    ],
)
async def test_rule_25_a_start_option_out_of_range_is_refused(
    make_harness: MakeHarness, options: dict[str, Any], message: str
) -> None:
    """Rule 25: refused with the name of the field; nothing is stored.

    Scenario 81: refused, if both delay and at are given.
    """
    h = await make_harness([Order])

    with pytest.raises(InvalidInput, match=message):
        await h.engine.start(Order, **options)

    assert (await h.engine.insights.list()).items == []


async def test_rule_25_the_bounds_of_every_range_are_accepted(make_harness: MakeHarness) -> None:
    """Rule 25: what the call accepts, the database can hold."""
    h = await make_harness([Order])

    handles = [
        await h.engine.start(Order, priority=-32_768),
        await h.engine.start(Order, priority=32_767),
        await h.engine.start(Order, delay=timedelta(days=36_500)),
        await h.engine.start(Order, at=datetime(9_000, 12, 31, tzinfo=UTC)),
        await h.engine.start(Order, at=datetime(1, 1, 1, tzinfo=UTC)),
        await h.engine.start(Order, queue="ü" * 200, concurrency_key="ü" * 200, tenant="ü" * 200),
    ]

    assert [(await handle.get()).id for handle in handles] == [handle.id for handle in handles]


async def test_an_unknown_machine_name_is_refused_with_the_near_miss(make_harness: MakeHarness) -> None:
    h = await make_harness([Order])

    with pytest.raises(UnknownMachine, match=r"'Ordr' is not registered.*did you mean 'Order'"):
        await h.engine.start(Unregistered)
    with pytest.raises(UnknownStep, match="has no step 'shp'; did you mean 'ship'"):
        await h.engine.start(Order, step="shp")
    with pytest.raises(InvalidState, match=r"coutn.*did you mean 'count'"):
        await h.engine.start(Order, {"coutn": 1})


async def test_a_state_that_does_not_fit_is_refused_with_its_path(make_harness: MakeHarness) -> None:
    h = await make_harness([Order])

    with pytest.raises(InvalidState, match=r"state\.count: expected int, got str"):
        await h.engine.start(Order, {"count": "many"})
    with pytest.raises(InvalidInput, match=r"state\.note: .*NUL"):
        await h.engine.start(Order, {"note": "a\x00b"})
    with pytest.raises(PayloadTooLarge, match=r"state: .* bytes are more than max_payload"):
        await h.engine.start(Order, {"note": "x" * 2_000_000})


async def test_start_many_keeps_the_order_of_twelve_thousand_entries(make_harness: MakeHarness) -> None:
    """Scenario 12."""
    h = await make_harness([Order])

    handles = await h.engine.start_many([Order.child({"count": n}) for n in range(12_000)])
    rows = await h.sql("select id, (state->>'count')::int as count from stepwell.instance_data order by id")

    assert [(row["id"], row["count"]) for row in rows] == [(handle.id, n) for n, handle in enumerate(handles)]


async def test_start_many_stores_nothing_if_one_entry_is_bad(make_harness: MakeHarness) -> None:
    h = await make_harness([Order])

    with pytest.raises(InvalidState, match=r"state\.count") as caught:
        await h.engine.start_many([Order, (Order, {"count": 1}), (Order, {"count": "bad"}), Order])

    assert caught.value.__notes__ == ["in entries[2]"]
    assert (await h.engine.insights.list()).items == []


async def test_start_many_stores_nothing_if_the_database_refuses_a_late_chunk(make_harness: MakeHarness) -> None:
    h = await make_harness([Order])
    await h.sql("alter table stepwell.instances add constraint picky check (priority <> 13)")

    with pytest.raises(Exception, match="picky"):
        await h.engine.start_many([*[Order] * 11_999, Order.child(priority=13)])

    assert (await h.engine.insights.list()).items == []


@pytest.mark.filterwarnings("error")
async def test_start_many_that_is_refused_early_leaves_no_prepared_rows(
    make_harness: MakeHarness,
) -> None:
    h = await make_harness([Order])
    await h.sql("alter table stepwell.instances add constraint refused check (priority <> 77)")

    with pytest.raises(DatabaseError):
        await h.engine.start_many([Order.child({"count": n}, priority=77 if n == 9 else 0) for n in range(9_000)])
    gc.collect()

    assert await h.sql("select from stepwell.instances") == []
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "stepwell insert"]


async def test_start_many_of_an_empty_list_starts_nothing(make_harness: MakeHarness) -> None:
    h = await make_harness([Order])

    assert await h.engine.start_many([]) == []


async def test_instances_of_start_many_run(make_harness: MakeHarness) -> None:
    h = await make_harness([Order])
    async with h.engine.worker({"checkout": 10}):
        handles = await h.engine.start_many([Order.child({"count": n}) for n in range(100)])

        assert [await handle.result(timeout=30) for handle in handles] == list(range(100))


async def test_every_call_of_a_closed_engine_raises_engine_closed(make_harness: MakeHarness) -> None:
    h = await make_harness([Order])
    closed = h.another_engine()

    for call in (lambda: closed.start(Order), lambda: closed.start_many([Order]), lambda: closed.get(1),
                 lambda: closed.wait(1)):  # fmt: skip
        with pytest.raises(EngineClosed, match="async with engine"):
            await call()
    with pytest.raises(EngineClosed):
        closed.insights  # noqa: B018 - asking is the test
    with pytest.raises(EngineClosed):
        async with closed.worker():
            pass


async def test_an_engine_can_be_opened_again(make_harness: MakeHarness) -> None:
    h = await make_harness([Order])
    engine = h.another_engine()
    async with engine:
        first = await engine.start(Order)

    async with engine:
        assert (await engine.get(first.id)).id == first.id
    with pytest.raises(EngineClosed):
        await first.get()
