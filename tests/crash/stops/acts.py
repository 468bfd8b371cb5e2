"""What the stopped clients do. Each act may be repeated as a whole: a client that was cut off repeats it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from functools import wraps
from typing import Any

import asyncpg

from stepwell import ConcurrencyLimit, Engine, RateLimit
from stepwell._store import await_units, children, instances, limits, retention
from stepwell._store.await_units import Dropped
from stepwell._store.connection.pool import Database
from stepwell._store.operations.claim import claim_full
from stepwell._store.registrations import workers
from stepwell._store.registrations.workers import HostIdentity
from stepwell.errors import CompletionRefused, DatabaseUnreachable, Duplicate, InvalidInput
from tests.crash.stops.machines import FAILS, HANGS, LIMITS, Asker, Guardian, Leaf, Narrow, Numbers, Sleeper, scores
from tests.support.claims import request
from tests.support.waiting import eventually

OPEN = """
select id::text, item from stepwell.interactions
where instance_id = $1 and status in ('waiting', 'dispatching', 'dispatched') order by item"""


Act = Callable[[Engine], Awaitable[None]]


def opened(act: Act) -> Act:
    """Open the engine for an act."""

    @wraps(act)
    async def opened_act(engine: Engine) -> None:
        async with engine:
            await act(engine)

    return opened_act


KEYED = "select id from stepwell.instances where key is not null"


async def sql(engine: Engine, text: str, *args: Any) -> list[Any]:
    connection = await asyncpg.connect(engine._dsn)
    try:
        return list(await connection.fetch(text, *args))
    finally:
        await connection.close()


async def until(engine: Engine, text: str, *args: Any) -> list[Any]:
    """Wait until such rows exist."""
    return await eventually(lambda: sql(engine, text, *args))


async def pipeline(engine: Engine, key: str, points: int) -> int:
    """A pipeline with one item that continues, with points, a key and, if it hangs, a slot; and two open
    interactions. Returns the item."""
    run = await engine.start(scores, Numbers(3), key=key, key_scope="forever", if_exists="return")
    while not (item := await sql(engine, "select id from stepwell.instances where parent_id = $1", run.id)):
        asked = await sql(engine, OPEN, run.id)
        if len(asked) == 3:
            with suppress(CompletionRefused):
                await engine.complete(interaction=asked[0]["id"], reply={"number": 0, "points": points})
    if points == HANGS:
        await sql(engine, "update stepwell.instances set concurrency_key = $2 where id = $1 and finished_at is null",
                  item[0]["id"], f"held by {key}")
    return int(item[0]["id"])


async def hanging(engine: Engine, key: str) -> None:
    """A step that runs, has a slot, and does not end."""
    handle = await engine.start(Narrow, {"hangs": True}, key=key, key_scope="forever", if_exists="return")
    text = "select from stepwell.instances where id = $1 and status in ('executing', 'cancelled', 'done')"
    await until(engine, text, handle.id)


@opened
async def cancel(engine: Engine) -> None:
    """Cancel a child, instances with a key and a slot, an item, and an instance that asks."""
    await engine.start(Guardian, {"child": "child"}, key="guardian", key_scope="forever", if_exists="return")
    await engine.start(Sleeper, {}, key="keyed", concurrency_key="one", key_scope="forever", if_exists="return")
    await until(engine, "select from stepwell.instances where key = 'child'")
    await hanging(engine, "hanging")
    item = await pipeline(engine, "one", HANGS)
    await pipeline(engine, "other", HANGS)
    for target in ("child", "keyed", "hanging", item, "other"):
        await engine.cancel(target)


@opened
async def retry(engine: Engine) -> None:
    """Retry an item without a waiting parent, and the instance that failed with it."""
    item = await pipeline(engine, "one", FAILS)
    await until(engine, "select from stepwell.instances where key = 'one' and status = 'failed'")
    with suppress(InvalidInput):
        await engine.retry(item)
    await engine.retry("one")


@opened
async def restart(engine: Engine) -> None:
    """Restart instances with a key, a slot, items and an interaction; and one that has lost its business key
    meanwhile."""
    await engine.start(Sleeper, {}, key="keyed", concurrency_key="one", key_scope="forever", if_exists="return")
    await hanging(engine, "hanging")
    item = await pipeline(engine, "one", HANGS)
    await pipeline(engine, "other", HANGS)
    await engine.restart("keyed", step="end", state={})
    await engine.restart("hanging", step="pass_slowly", state={})
    step = (await engine.get(item)).step
    with suppress(InvalidInput):  # its pipeline was cancelled by this act before it was repeated
        await engine.restart(item, step=step)
    await engine.restart("other", step=scores.machine.initial)
    for key in ("one", "other"):
        await engine.cancel(key)
    named = "select id from stepwell.instances where key = 'passed on' and machine = $1"
    if not await sql(engine, named, "Leaf"):
        await (await engine.start(Leaf, {"n": 1}, key="passed on")).wait()
    if not await sql(engine, named, "Sleeper"):
        await engine.start(Sleeper, {}, key="passed on")
    with suppress(Duplicate):
        await engine.restart((await sql(engine, named, "Leaf"))[0]["id"], step="grow")
    await engine.signal("passed on", "wake", dedup_key="once")


@opened
async def start(engine: Engine) -> None:
    """Start many: some with keys that are taken, many without, and through a caller's connection."""
    await engine.start_many([Leaf.child({"n": n}, key=f"key {n}", key_scope="forever") for n in (1, 2)])
    await engine.start_many([Leaf.child({"n": n}, key=f"key {n}", key_scope="forever") for n in (1, 2, 3)])
    if not await sql(engine, "select from stepwell.instances where queue = 'many' limit 1"):
        text = "x" * 300
        await engine.start_many([Leaf.child({"n": n, "text": text}, queue="many") for n in range(5_001)])
    if not await sql(engine, "select from stepwell.instances where queue = 'mixed' limit 1"):
        mixed = [Leaf.child({"n": n}, queue="mixed", priority=n % 2) for n in range(5_001)]
        await engine.start_many(mixed)
    if not await sql(engine, "select from stepwell.instances where queue = 'iterated' limit 1"):
        await engine.start_many(tuple(Leaf.child({"n": n}, queue="iterated") for n in range(5_001)))
    try:
        await in_own_transaction(engine)
    except (asyncpg.InterfaceError, asyncpg.InternalClientError, asyncpg.PostgresConnectionError, OSError) as error:
        raise DatabaseUnreachable("the caller's own connection", str(error)) from error


async def in_own_transaction(engine: Engine) -> None:
    """Start in a transaction of the caller, with locks that end with the engine's."""
    connection = await asyncpg.connect(engine._dsn, server_settings={"idle_in_transaction_session_timeout": "10s"})
    try:
        async with connection.transaction():
            await engine.start(Leaf, {"n": 9}, key="key 9", key_scope="forever", if_exists="return",
                               connection=connection)
    finally:
        connection.terminate()


@opened
async def signal_or_start(engine: Engine) -> None:
    """Signal a sleeper that does not exist yet, and one with a key that is taken for ever."""
    if not await sql(engine, "select from stepwell.instances where key = 'new'"):
        await engine.signal_or_start(Sleeper, {}, key="new", signal="wake", dedup_key="once")
    first = await engine.start(Leaf, {"n": 1}, key="taken", key_scope="forever", if_exists="return")
    await first.wait()
    with suppress(Duplicate):
        await engine.signal_or_start(Sleeper, {}, key="taken", signal="wake")


@opened
async def complete(engine: Engine) -> None:
    """Complete interactions of two instances together, one with many, and one with a locked row."""
    for keys in (["x", "y"], ["batch"]):
        found = [one for key in keys for one in await asked(engine, key)]
        tokens = [await engine.interactions.token(one) for one in found]
        await asyncio.gather(*[answer(engine, *pair) for pair in zip(found, tokens, strict=True)])
    connection = await asyncpg.connect(engine._dsn)
    try:
        for one in await asked(engine, "z"):
            async with connection.transaction():
                await connection.execute("select from stepwell.instances where key = 'z' for update")
                token = await engine.interactions.token(one)
                answering = asyncio.create_task(answer(engine, one, token))
                await until(engine, "select from pg_stat_activity where datname = current_database()"
                            " and wait_event_type = 'Lock'")
            await answering
    finally:
        await connection.close()


async def asked(engine: Engine, key: str) -> list[str]:
    return [row["id"] for row in await sql(engine, OPEN, (await engine.get(key)).id)]


async def answer(engine: Engine, interaction: str, token: str) -> None:
    with suppress(CompletionRefused):
        await engine.complete(interaction=interaction, reply=1, token=token)


@opened
async def resume(engine: Engine) -> None:
    """Resume a queue, and pause it again."""
    await engine.queues.resume("other")
    await engine.queues.pause("other")


@opened
async def change_limits(engine: Engine) -> None:
    """Change, reset and declare limits that rows wait for."""
    await engine.limits.set("slow", n=3, kind="rate")
    await engine.limits.set("narrow", n=1)
    for name in ("slow", "narrow"):
        await engine.limits.reset(name)
    await limits.declare(_database(engine), [ConcurrencyLimit("narrow", 2), RateLimit("slow", 5, per=1)])
    await limits.declare(_database(engine), LIMITS)


@opened
async def look(engine: Engine) -> None:
    """Read lists, a tree, open interactions, and limits."""
    found = [one async for one in engine.insights.each()]
    await engine.insights.tree(found[0].id)
    await engine.interactions.pending()
    await engine.limits.list()


@opened
async def release(engine: Engine) -> None:
    """Claim, also by limits, and release all of it, as a worker does that stops."""
    database, labels = _database(engine), ["Leaf@1", "Narrow@1"]
    place = HostIdentity("another", "boot", 1, "process")
    worker_id = (await workers.register(database, place, "1", {"aside": 1}, labels, timedelta(seconds=10))).id
    claimed = await claim_full(database, request(worker_id, 10, labels, queue="aside"))
    admitted = await limits.admit(database, worker_id, "aside", [row.id for row in claimed.limited])
    claims = [*claimed.claims, *admitted.claims]
    await instances.release(database, worker_id, [(c.id, c.fence, c.concurrency_key) for c in claims])
    await workers.leave(database, [worker_id], by_itself=True)
    await await_units.free_apart(database, Dropped(["one"], ["narrow"]))


@opened
async def reconcile(engine: Engine) -> None:
    """Find a reply that did not continue, an end that was not counted, and a unit without a waiting instance."""
    if not await sql(engine, "select where to_regclass('public.broken') is not null"):
        await damage(engine)
    await await_units.reconcile(_database(engine), await_units.ReconcilePlace())
    await children.recount(_database(engine), [row["id"] for row in await sql(engine, KEYED)])
    for key in ("one", "two"):
        await engine.cancel(key)


async def damage(engine: Engine) -> None:
    """Make inconsistent rows, once."""
    lost, ended = await pipeline(engine, "one", HANGS), await pipeline(engine, "two", HANGS)
    for key in ("one", "two"):
        for question in await sql(engine, OPEN, (await engine.get(key)).id):
            with suppress(CompletionRefused):
                await engine.complete(interaction=question["id"], reply={"number": question["item"], "points": 1})
    await engine.start(Asker, {}, key="asker", key_scope="forever", if_exists="return")
    await until(engine, "select from stepwell.instances where key = 'asker' "
                "and status not in ('runnable', 'executing')")
    await sql(engine, "delete from stepwell.instances where id = $1", lost)
    await sql(engine, "delete from stepwell.instance_data where id = $1", lost)
    await sql(engine, "update stepwell.instance_data set result = '[]' where id = $1", ended)
    await sql(engine, "update stepwell.instances set status = 'done', finished_at = now(), worker_id = null"
              " where id = $1", ended)
    await sql(engine, "update stepwell.instances set await_unit_id = null, status = 'done', finished_at = now()"
              " where key = 'asker' and finished_at is null")
    await sql(engine, "create table public.broken ()")


def _database(engine: Engine) -> Database:
    assert engine._database is not None
    return engine._database


@opened
async def prune(engine: Engine) -> None:
    """Delete ended instances, one with an inbox of several pages."""
    await retention.prune(_database(engine))
