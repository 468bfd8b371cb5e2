"""Scenarios with a client process that is stopped in its acts; `acts` has these."""

from __future__ import annotations

from typing import Any

from stepwell._store import signals
from stepwell.testing import Harness
from stepwell.testing.stops.child_process import Reference
from stepwell.testing.stops.processes import Processes
from tests.crash.stops.looks import play
from tests.crash.stops.machines import PIPELINES, Asker, Batch, Family, Guardian, Leaf, Narrow, Nowhere, Sleeper
from tests.crash.stops.worker_plays import all_open, nothing_executes
from tests.support.waiting import eventually

ACTS = "tests.crash.stops.acts"
MACHINES = [Guardian, Family, Leaf, Sleeper, Narrow, Asker, Batch, *PIPELINES]


def act(name: str) -> Reference:
    return ACTS, name


async def endings(h: Harness) -> Any:
    """How everything ends."""
    await eventually(lambda: nothing_executes(h))
    rows = await h.sql(
        "select i.machine, i.key, i.status, count(*) from stepwell.instances i where i.machine <> 'StopProbe' "
        "group by 1, 2, 3 order by 1, 2, 3"
    )
    return [tuple(row) for row in rows]


async def standing(h: Harness) -> Any:
    """How everything stands once no step runs, without waiting for its end."""
    await eventually(lambda: nothing_runs(h))
    rows = await h.sql(
        "select i.machine, i.key, i.step, i.status, i.hold, count(*) from stepwell.instances i "
        "where i.machine <> 'StopProbe' group by 1, 2, 3, 4, 5 order by 1, 2, 3, 4, 5"
    )
    return [tuple(row) for row in rows]


async def nothing_runs(h: Harness) -> bool:
    return not await h.sql("select from stepwell.instances where status in ('runnable', 'executing') limit 1")


async def started(h: Harness) -> Any:
    """How many rows there are, by queue; those that a worker serves have ended."""
    await eventually(lambda: nothing_is_left(h, "default"))
    rows = await h.sql(
        "select queue, status, count(*) from stepwell.instances where machine <> 'StopProbe' "
        "group by 1, 2 order by 1, 2"
    )
    return [tuple(row) for row in rows]


async def nothing_is_left(h: Harness, queue: str) -> bool:
    return not await h.sql(
        "select from stepwell.instances where queue = $1 and finished_at is null limit 1", queue
    )


async def sleepers(h: Harness, _: Processes) -> None:
    for key in ("a", "b", "c"):
        await h.engine.start(Sleeper, {}, key=key)
    await eventually(lambda: are_parked(h, 3))


async def are_parked(h: Harness, number: int) -> bool:
    return len(await h.sql("select from stepwell.instances where status like 'awaiting%'")) == number


async def asking(h: Harness, _: Processes) -> None:
    """Interactions with tokens: three of one instance each, five of one instance."""
    runs = [await h.engine.start(Asker, {"token": True}, key=key) for key in ("x", "y", "z")]
    runs.append(await h.engine.start(Batch, {"upto": 5, "token": True}, key="batch"))
    for run, number in zip(runs, (1, 1, 1, 5), strict=True):
        await eventually(lambda run=run, number=number: all_open(h, run.id, number))


async def paused(h: Harness, _: Processes) -> None:
    await h.engine.start(Leaf, {"n": 1}, queue="other")
    await h.engine.queues.pause("other")
    await h.engine.start(Narrow, {"n": 1})


async def aside(h: Harness, _: Processes) -> None:
    """Rows that only the client claims, since no worker serves their queue."""
    for n in range(2):
        await h.engine.start(Leaf, {"n": n}, concurrency_key="one", queue="aside")
        await h.engine.start(Narrow, {"n": n}, queue="aside")


async def signalled(h: Harness, _: Processes) -> None:
    """An instance that was cancelled long ago, with a very large inbox."""
    sleeper = await h.engine.start(Sleeper, {}, key="signalled")
    await h.sql("insert into stepwell.signals (instance_id, name, payload, sent_at) "
                "select $1, 'go', '1', now() from generate_series(1, $2::integer)", sleeper.id, 2 * signals.PAGE)
    await sleeper.cancel()
    await h.sql("update stepwell.instances set finished_at = now() - interval '1 year' where id = $1", sleeper.id)


async def pruned(h: Harness) -> Any:
    """The rows left of it: all of it, or none."""
    await eventually(lambda: nothing_executes(h))
    rows = await h.sql(
        "select (select count(*) from stepwell.instances where key = 'signalled') as instances, "
        "(select count(*) from stepwell.signals where name = 'go') as signals"
    )
    return [tuple(row) for row in rows]


async def done_aside(h: Harness) -> Any:
    async with h.engine.worker({"aside": 5}):
        return await endings(h)


async def in_line(h: Harness, _: Processes) -> None:
    """Rows that wait for a limit of 0, and for a slow one."""
    await h.engine.limits.set("narrow", n=0)
    for n in range(2):
        await h.engine.start(Narrow, {"n": n})
    await eventually(lambda: h.sql("select from stepwell.instances where hold = 'limit' offset 1"))


OPERATORS = "stepwell._store.operators."
LIMITS = "stepwell._store.limits."
PLAYS = [
    play("cancel", standing, MACHINES, of=[OPERATORS + "cancel"], act=act("cancel"), transports=[Nowhere()]),
    play("retry", endings, MACHINES, of=[OPERATORS + "retry"], act=act("retry"), transports=[Nowhere()]),
    play("restart", endings, MACHINES, of=[OPERATORS + "restart",
                                           "stepwell._client.control.ControlOperations._duplicate"],
         act=act("restart"), transports=[Nowhere()]),
    play("starts", started, MACHINES, of=[
        "stepwell._client.start.StartOperations._insert_together", "stepwell._client.start.StartOperations.stream",
        "stepwell._store.registrations.machines.register_missing",
    ], act=act("start"), transports=[Nowhere()]),
    play("signal or start", endings, MACHINES, of=[
        "stepwell._client.signal.SignalOperations._signal_or_start_once",
        "stepwell._client.signal.SignalOperations.signal_or_start",
    ], act=act("signal_or_start"), transports=[Nowhere()]),
    play("answers", endings, MACHINES, of=[
        "stepwell._store.operations.complete._complete_full", "stepwell._store.operations.complete._complete_waiting",
    ], prepare=asking, act=act("complete"), transports=[Nowhere()]),
    play("resume", started, MACHINES, of=["stepwell._store.registrations.queues.resume"], prepare=paused,
         act=act("resume"),
         transports=[Nowhere()]),
    play("limits", endings, MACHINES, of=[
        LIMITS + "_admit_next", LIMITS + "_hasten", LIMITS + "_wait_queues", LIMITS + "declare",
    ], prepare=in_line, act=act("change_limits"), transports=[Nowhere()]),
    play("looks", standing, MACHINES, of=[
        "stepwell._store.instance_lists.list_page", "stepwell._store.instance_lists.tree",
        "stepwell._store.interactions.pending",
        LIMITS + "list_all",
    ], prepare=sleepers, act=act("look"), transports=[Nowhere()]),
    play("released", done_aside, MACHINES, of=[
        "stepwell._store.instances.release", "stepwell._store.await_units.free_apart",
    ], prepare=aside, act=act("release"),
         transports=[Nowhere()]),
    play("pruned", pruned, MACHINES, of=["stepwell._store.retention.prune"], prepare=signalled, act=act("prune"),
         transports=[Nowhere()]),
    play("orphans", endings, MACHINES, of=["stepwell._store.await_units._repair", "stepwell._store.children.recount"],
         act=act("reconcile"),
         transports=[Nowhere()]),
]  # fmt: skip
