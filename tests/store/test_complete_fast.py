"""The fast path of simple completions: it completes an interaction whole, or leaves it unchanged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from hashlib import md5
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from stepwell._store.connection.pool import WORKER
from stepwell._store.connection.sql_files import statement
from tests.store.gate import gate_before
from tests.store.plans import rolled_back

# Instance, unit and interaction have one number.
_ASK = """
with parked as (
  insert into stepwell.instances (id, machine, version, step, queue, status, due_at, created_at, updated_at,
                                  await_unit_id, visit)
  overriding system value
  select n, 'order', 1, 'ship', 'q' || n, 'awaiting_external', now(), now(), now(), n, 1
  from unnest($1::integer[]) n
), opened as (
  insert into stepwell.await_units (id, instance_id, visit, tenant, machine, version, step, transport, is_sent,
                                    reply_type, on_timeout, requires_token, opened, in_flight, is_filled, created_at)
  overriding system value
  select n, n, 1, '', 'order', 1, 'ask', 'manual', false, 'x', 'wake', false, 1, 1, true, now()
  from unnest($1::integer[]) n
)
insert into stepwell.interactions (id, correlation, unit_id, instance_id, created_at, deadline, next_at, tenant,
                                   transport, status, idempotency_key, request)
select md5('q' || n)::uuid, md5('c' || n)::uuid, n, n, now(), now() + interval '1 day', now(), '', 'manual',
       'dispatched', 'k', '1'
from unnest($1::integer[]) n
"""
_MANY = """
with asked as (
  insert into stepwell.interactions (id, correlation, unit_id, instance_id, item, created_at, next_at, tenant,
                                     transport, status, idempotency_key, request)
  select md5('q' || n)::uuid, md5('c' || n)::uuid, 1, 1, n, now(), now(), '', 'manual', 'dispatched', 'k' || n, '1'
  from unnest($1::integer[]) n
)
update stepwell.await_units
set "window" = 10, opened = opened + cardinality($1), in_flight = in_flight + cardinality($1)
where id = 1
"""
_ROWS = """
select q.status as question, q.reply::text as reply, q.actor, u.status as unit, u.resolved, u.in_flight,
       i.status as instance
from stepwell.interactions q
join stepwell.await_units u on u.id = q.unit_id
join stepwell.instances i on i.id = q.instance_id
where q.unit_id = $1
"""
_CHANGED = """
select (select count(*) from stepwell.interactions where status = 'completed') as answered,
       (select count(*) from stepwell.await_units where status = 'completed') as ended,
       (select count(*) from stepwell.instances where status = 'runnable') as woken
"""
ANSWERED = ("completed", "[1, 2]", "bob", "completed", 1, 0, "runnable")
OUT = "q.status || '' in ('waiting', 'dispatching', 'dispatched')"
MOST = "u.max_items = 0 or jsonb_array_length(g.reply) <= u.max_items"
ENDED = "finished_at = now()"

CHANGING = {  # what may become of an interaction: what the statement returns about it, and the change
    "is answered": (OUT, f"interactions set status = 'completed', reply = '0', {ENDED} where unit_id"),
    "is closed": (OUT, f"interactions set status = 'cancelled', {ENDED} where unit_id"),
    "is late": ("q.deadline > stepwell.now()", "interactions set deadline = created_at where unit_id"),
    "has an ended unit": ("u.status || '' = 'waiting'", f"await_units set status = 'failed', {ENDED} where id"),
    "is waited for by nobody": ("i.status || '' = 'awaiting_external'", "instances set status = 'runnable' where id"),
    "is of an earlier unit": ("i.await_unit_id = u.id", "instances set await_unit_id = 7 where id"),
}
LASTING = {
    "is followed by others": ("u.in_flight = u.opened - u.resolved", "await_units set opened = 2 where id"),
    "goes on by itself": ("u.item_step is null", "await_units set item_step = 'take' where id"),
    "needs a token": ("not u.requires_token", "await_units set requires_token = true where id"),
    "takes fewer items": (MOST, "await_units set max_items = 1 where id"),
}


def question(number: int) -> str:
    return str(UUID(md5(f"q{number}".encode()).hexdigest()))  # noqa: S324 - no secret


async def answer(connection: asyncpg.Connection, *numbers: int, instead: tuple[str, str] = ("", "")) -> Any:
    """Complete these interactions; the positions of those completed, and the queues.

    `instead`: a part of the statement.
    """
    text = statement("interactions/complete_fast")
    assert instead[0] in text
    [row] = await connection.fetch(text.replace(*instead), *arguments(*numbers))
    return sorted(row["places"]), sorted(row["queues"])


def arguments(*numbers: int) -> tuple[Any, ...]:
    return [question(n) for n in numbers], ["[1, 2]"] * len(numbers), ["bob"] * len(numbers)


async def rows(connection: asyncpg.Connection, number: int) -> tuple[Any, ...]:
    row = await connection.fetchrow(_ROWS, number)
    return tuple(row) if row else ()


async def unit(connection: asyncpg.Connection) -> tuple[Any, ...]:
    row = await connection.fetchrow(
        "select u.resolved, u.in_flight, u.status as unit, i.status as instance "
        "from stepwell.await_units u join stepwell.instances i on i.id = u.instance_id where u.id = 1"
    )
    return tuple(row) if row else ()


async def let_ask(connection: asyncpg.Connection) -> None:
    """Let the first instance be one that still asks."""
    await connection.execute("update stepwell.instances set status = 'executing', worker_id = 1, claimed_at = now(), "
                             "await_unit_id = null, filling_unit_id = 1 where id = 1")
    await connection.execute("update stepwell.await_units set is_filled = false where id = 1")


@pytest.fixture
async def alone(shared_url: str) -> AsyncIterator[asyncpg.Connection]:
    """A connection as the engine has it, inside a transaction that is rolled back; two instances wait for a reply."""
    opened = await asyncpg.connect(shared_url, server_settings=WORKER)
    async with rolled_back(opened):
        await opened.execute(_ASK, [1, 2])
        yield opened
    await opened.close()


@pytest.fixture
async def others(connection: asyncpg.Connection) -> asyncpg.Connection:
    """A second connection for concurrent changes; three instances wait for a reply."""
    await connection.execute(_ASK, [1, 2, 3])
    return connection


@pytest.mark.parametrize("status", ["waiting", "dispatching", "dispatched"])
async def test_a_simple_interaction_is_completed_and_its_instance_continues(
    alone: asyncpg.Connection, status: str
) -> None:
    await alone.execute("update stepwell.interactions set status = $1, worker_id = 1", status)

    taken = await answer(alone, 2, 1)

    assert taken == ([0, 1], ["q1", "q2"])
    assert await rows(alone, 1) == await rows(alone, 2) == ANSWERED


async def test_an_interaction_without_deadline_or_max_items_is_simple(alone: asyncpg.Connection) -> None:
    await alone.execute("update stepwell.interactions set deadline = null")
    await alone.execute("update stepwell.await_units set max_items = 0")

    assert await answer(alone, 1) == ([0], ["q1"])


@pytest.mark.parametrize(("guard", "change"), [*CHANGING.values(), *LASTING.values()], ids=[*CHANGING, *LASTING])
async def test_an_interaction_that_is_not_simple_is_left_unchanged(
    alone: asyncpg.Connection, guard: str, change: str
) -> None:
    await alone.execute(f"update stepwell.{change} = 1")
    before = await rows(alone, 1)

    taken = await answer(alone, 1, 2)

    assert taken == ([1], ["q2"])
    assert await rows(alone, 1) == before
    places, _ = await answer(alone, 1, instead=(guard, "true"))
    assert places == [0], "without that guard it would be taken"


@pytest.mark.parametrize("change", [change for _, change in CHANGING.values()], ids=CHANGING)
async def test_the_state_of_an_interaction_after_the_snapshot_decides(
    url: str, others: asyncpg.Connection, change: str
) -> None:
    async with gate_before(url, 1) as gate:
        answering = await gate.send("interactions/complete_fast", *arguments(1, 2, 3))
        await others.execute(f"update stepwell.{change} = 2")
        before = await rows(others, 2)
        await gate.open()
        [taken] = await answering

    assert (sorted(taken["places"]), sorted(taken["queues"])) == ([0, 2], ["q1", "q3"])
    assert await rows(others, 2) == before
    assert await rows(others, 1) == await rows(others, 3) == ANSWERED


@pytest.mark.parametrize("table", ["interactions", "await_units", "instances"])
async def test_an_interaction_deleted_after_the_snapshot_is_not_completed(
    url: str, others: asyncpg.Connection, table: str
) -> None:
    async with gate_before(url, 1) as gate:
        answering = await gate.send("interactions/complete_fast", *arguments(1, 2))
        await others.execute(f"delete from stepwell.{table} where id::text = any ($1::text[])", ["2", question(2)])
        await gate.open()
        [taken] = await answering

    assert (taken["places"], taken["queues"]) == ([0], ["q1"])
    assert tuple(await others.fetchrow(_CHANGED)) == (1, 1, 1)


async def test_an_interaction_sent_again_after_the_snapshot_is_completed(
    url: str, others: asyncpg.Connection
) -> None:
    async with gate_before(url, 1) as gate:
        answering = await gate.send("interactions/complete_fast", *arguments(1, 2, 3))
        await others.execute("update stepwell.interactions set status = 'dispatching', worker_id = 1 where unit_id = 2")
        await others.execute("update stepwell.interactions set deadline = now() + interval '9 days' where unit_id = 3")
        await others.execute("update stepwell.await_units set created_at = now() where id = 3")
        await others.execute("update stepwell.instances set fence = fence + 2 where id = 3")
        await gate.open()
        [taken] = await answering

    assert sorted(taken["places"]) == [0, 1, 2]
    assert await rows(others, 2) == await rows(others, 3) == ANSWERED
    assert await others.fetchval("select fence from stepwell.instances where id = 3") == 2


@pytest.mark.parametrize("table", ["interactions", "await_units", "instances"])
async def test_a_fast_completion_skips_locked_rows_and_completes_the_others(
    url: str, others: asyncpg.Connection, table: str
) -> None:
    answering = await asyncpg.connect(url, server_settings=WORKER)
    holding = others.transaction()
    await holding.start()
    await others.execute(f"update stepwell.{table} set created_at = now() where id::text in ('2', $1)", question(2))

    async with asyncio.timeout(20):
        taken = await answer(answering, 1, 2, 3)

    assert taken == ([0, 2], ["q1", "q3"])
    await holding.rollback()
    assert await rows(others, 2) == ("dispatched", None, None, "waiting", 0, 1, "awaiting_external")
    assert await answer(answering, 2) == ([0], ["q2"])
    await answering.close()


async def test_an_interaction_named_twice_is_completed_and_counted_once(alone: asyncpg.Connection) -> None:
    places, queues = await answer(alone, 1, 2, 1)

    assert (len(places), 1 in places, queues) == (2, True, ["q1", "q2"])
    assert await rows(alone, 1) == ANSWERED


async def test_a_unit_of_many_ends_with_its_last_completion(alone: asyncpg.Connection) -> None:
    await alone.execute(_MANY, [11, 12, 13])

    assert await answer(alone, 12, 2, 1) == ([0, 1, 2], ["q2"])
    assert await unit(alone) == (2, 2, "waiting", "awaiting_external")
    assert await answer(alone, 13, 11) == ([0, 1], ["q1"])
    assert await unit(alone) == (4, 0, "completed", "runnable")


async def test_an_instance_that_is_still_asking_stays_executing(alone: asyncpg.Connection) -> None:
    await let_ask(alone)

    assert await answer(alone, 1) == ([0], [])
    assert await unit(alone) == (1, 0, "waiting", "executing")


async def test_an_instance_that_parks_meanwhile_continues(url: str, others: asyncpg.Connection) -> None:
    """Two connections: in the snapshot it still asks, with a slot; it has asked everything when it is completed."""
    await let_ask(others)
    await others.execute("update stepwell.instances set concurrency_limit = 'l', slot = 1 where id = 1")
    async with gate_before(url, 2) as gate:
        answering = await gate.send("interactions/complete_fast", *arguments(2, 1))
        await others.execute("update stepwell.instances set status = 'awaiting_external', worker_id = null, "
                             "claimed_at = null, slot = null, await_unit_id = 1, filling_unit_id = null where id = 1")
        await others.execute("update stepwell.await_units set is_filled = true where id = 1")
        await gate.open()
        [taken] = await answering

    assert (sorted(taken["places"]), sorted(taken["queues"])) == ([0, 1], ["q1", "q2"])
    assert await unit(others) == (1, 0, "completed", "runnable")


async def test_no_completion_is_lost_while_others_count_in_the_same_unit(
    url: str, others: asyncpg.Connection
) -> None:
    """Two connections: completions since the snapshot are counted, and the last one ends the unit."""
    await others.execute(_MANY, [11, 12])
    async with gate_before(url, 2) as gate:
        answering = await gate.send("interactions/complete_fast", *arguments(2, 1, 11))
        assert await answer(others, 12) == ([0], [])
        await gate.open()
        [taken] = await answering

    assert (sorted(taken["places"]), sorted(taken["queues"])) == ([0, 1, 2], ["q1", "q2"])
    assert await unit(others) == (3, 0, "completed", "runnable")


async def test_of_two_interactions_of_an_instance_the_awaited_one_is_completed(alone: asyncpg.Connection) -> None:
    await alone.execute("update stepwell.await_units set instance_id = 1, visit = 2 where id = 2")
    await alone.execute("update stepwell.interactions set instance_id = 1 where unit_id = 2")

    assert await answer(alone, 2, 1) == ([1], ["q1"])
