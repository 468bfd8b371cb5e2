"""Children that the worker has slots for are born in its hands: they need no claim, and nothing else is different."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from stepwell import Context, Done, Engine, Machine, Next, Spawn, step
from stepwell._store.connection.sql_files import statement
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.support.idle import is_idle
from tests.support.proxy import proxy_to
from tests.support.waiting import eventually

SPAWN = statement("children/start_fast")
BEAT = timedelta(seconds=0.3)
BORN_CLAIMED = """
select i.id, i.status, i.worker_id, i.fence, i.attempt, i.crashes, i.xmin = d.xmin as is_as_inserted
from stepwell.instances i join stepwell.instance_data d using (id) where i.parent_id is not null order by i.id
"""


class Runs:
    """Lets children end, and counts them."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.begun: Counter[int] = Counter()


class Leaf(Machine):
    @dataclass
    class State:
        number: int

    @step
    async def start(self, ctx: Context[State]) -> Done:
        ctx.resources.begun[ctx.id] += 1
        await ctx.resources.gate.wait()
        return Done(ctx.state.number)


class Tree(Machine):
    """As many children as its state says."""

    @dataclass
    class State:
        leaves: int

    @step
    async def start(self, ctx: Context[State]) -> Spawn:
        return Spawn([Leaf.child({"number": n}) for n in range(ctx.state.leaves)], then=self.joined)

    @step
    async def joined(self, ctx: Context[State]) -> Done:
        return Done([child.result for child in ctx.children])


@pytest.fixture
def runs() -> Runs:
    return Runs()


@pytest.fixture
async def h(make_harness: MakeHarness, runs: Runs) -> Harness:
    return await make_harness([Tree, Leaf], resources=runs, fair_by={"fair": "tenant"})


async def children(h: Harness) -> list[dict[str, Any]]:
    return [dict(row) for row in await h.sql(BORN_CLAIMED)]


async def test_children_are_inserted_claimed_by_a_worker_that_has_slots_for_them(h: Harness, runs: Runs) -> None:
    async with h.engine.worker({"default": 4}) as worker:
        tree = await h.engine.start(Tree, {"leaves": 3})
        await eventually(lambda: len(runs.begun) == 3)

        born = await children(h)
        runs.gate.set()
        result = await tree.result(timeout=10)

    found = [(c["status"], c["worker_id"], c["fence"], c["is_as_inserted"]) for c in born]
    assert found == [("executing", worker.id or born[0]["worker_id"], 1, True)] * 3
    assert result == [0, 1, 2]
    assert set(runs.begun.values()) == {1}


async def test_no_more_children_are_inserted_claimed_than_there_are_slots(
    h: Harness, runs: Runs
) -> None:
    async with h.engine.worker({"default": 2}) as worker:
        await eventually(lambda: is_idle(worker))  # a claim under way would bring one more, to wait for a slot
        tree = await h.engine.start(Tree, {"leaves": 5})
        await eventually(lambda: len(runs.begun) == 2)
        first = await children(h)

        async with h.engine.worker({"default": 3}):
            await eventually(lambda: len(runs.begun) == 5)
            runs.gate.set()
            result = await tree.result(timeout=10)

    assert [c["status"] for c in first] == ["executing"] * 2 + ["runnable"] * 3
    assert result == [0, 1, 2, 3, 4]
    assert set(runs.begun.values()) == {1}


@pytest.mark.parametrize(
    ("options", "queues"),
    [
        ({"queue": "elsewhere"}, {"default": 9}),
        ({"queue": "paused"}, {"default": 9, "paused": 9}),
        ({"queue": "fair"}, {"default": 9, "fair": 9}),
        ({"delay": timedelta(hours=1)}, {"default": 9}),
        ({"concurrency_key": "k"}, {"default": 9}),
    ],
    ids=["of a queue of others", "of a paused queue", "of a fair queue", "later", "with a key"],
)
async def test_a_child_that_a_claim_would_skip_is_not_inserted_claimed(
    h: Harness, runs: Runs, options: dict[str, Any], queues: dict[str, int]
) -> None:
    class Other(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Spawn:
            return Spawn([Leaf.child({"number": n}, **options) for n in range(2)], then=self.joined)

        @step
        async def joined(self, ctx: Context[Any]) -> Done:
            return Done()

    settings: dict[str, Any] = dict.fromkeys(("poll", "max_poll"), timedelta(hours=1))  # it is not to see the pause
    engine = Engine(h.url, machines=[Other, Leaf], resources=runs, fair_by={"fair": "tenant"}, **settings)
    async with engine, engine.worker(queues):
        await h.sql("insert into stepwell.queues (name, paused_at, changed_at) values ('paused', now(), now())")
        await engine.start(Other)
        await eventually(lambda: has_children(h))
        found = await children(h)
        runs.gate.set()

    assert not any(c["is_as_inserted"] and c["status"] == "executing" for c in found)


async def has_children(h: Harness) -> bool:
    return len(await children(h)) == 2


async def test_children_with_a_late_commit_reply_are_released_and_run_once(
    h: Harness, runs: Runs
) -> None:
    runs.gate.set()
    settings = dict.fromkeys(("heartbeat", "poll", "max_poll"), BEAT)
    async with proxy_to(h.url) as proxy, Engine(proxy.url, machines=[Tree, Leaf], resources=runs, **settings) as engine:
        lost = proxy.lose("answer", SPAWN, with_commit=True)
        async with engine.worker({"default": 9}) as worker:
            tree = await engine.start(Tree, {"leaves": 3})
            result = await tree.result(timeout=20)

    assert lost.happened.is_set()
    assert result == [0, 1, 2]
    assert set(runs.begun.values()) == {1}
    assert (worker.stats.orphans, worker.stats.stale) == (3, 0)
    assert {(c["attempt"], c["crashes"]) for c in await children(h)} == {(0, 0)}


async def test_children_inserted_while_a_worker_stops_are_released_before_it_ends(
    h: Harness, runs: Runs
) -> None:
    async with proxy_to(h.url) as proxy, Engine(proxy.url, machines=[Tree, Leaf], resources=runs) as engine:
        late = proxy.hold("answer", SPAWN)
        async with engine.worker({"default": 9}) as worker:
            slow = await engine.start(Leaf, {"number": 0})
            await eventually(lambda: runs.begun)
            await engine.start(Tree, {"leaves": 3})
            await late.happened.wait()
            stopping = asyncio.create_task(worker.stop())
            await eventually(lambda: worker._graph.all_queue_slots["default"].is_closed)
            late.release()
            await eventually(lambda: are_given_back(h))
            runs.gate.set()
            await stopping
            found = await children(h)

    assert [(c["status"], c["attempt"]) for c in found] == [("runnable", 0)] * 3
    assert runs.begun == {slow.id: 1}


async def are_given_back(h: Harness) -> bool:
    return [c["worker_id"] for c in await children(h)] == [None] * 3


class Lingering(Machine, queue="leaves"):
    """Its first step is over at once, its second one is not."""

    @step
    async def start(self, ctx: Context[Any]) -> Next:
        return Next(self.linger)

    @step
    async def linger(self, ctx: Context[Any]) -> Done:
        ctx.resources.begun[ctx.id] += 1
        await ctx.resources.gate.wait()
        return Done()


class Grove(Machine):
    """So many children in another queue, of one kind or the other."""

    @dataclass
    class State:
        leaves: int
        linger: bool

    @step
    async def start(self, ctx: Context[State]) -> Spawn:
        quick = [Leaf.child({"number": n}, queue="leaves") for n in range(ctx.state.leaves)]
        return Spawn([Lingering.child()] * ctx.state.leaves if ctx.state.linger else quick, then=self.joined)

    @step
    async def joined(self, ctx: Context[State]) -> Done:
        return Done(len(ctx.children))


async def test_children_inserted_claimed_are_released_where_steps_take_long(
    make_harness: MakeHarness, runs: Runs
) -> None:
    h = await make_harness([Grove, Lingering, Leaf], resources=runs)
    async with h.engine.worker({"default": 9, "leaves": 20}) as worker:
        queue_slots = worker._graph.all_queue_slots["leaves"]
        await eventually(lambda: not queue_slots.backlog.ready)
        await h.engine.start(Grove, {"leaves": 20, "linger": True})
        await eventually(lambda: len(runs.begun) == 20)
        queue_slots.steps_are_short = True  # as its first steps were
        await h.engine.start(Grove, {"leaves": 10, "linger": False})
        await eventually(lambda: queue_slots.backlog.reserved_since_claim == 30)

        async with h.engine.worker({"leaves": 20}):
            await eventually(lambda: len(runs.begun) == 30)
            runs.gate.set()

    assert set(runs.begun.values()) == {1}


class Mixed(Machine):
    """One child without a key, one with."""

    @step
    async def start(self, ctx: Context[Any]) -> Spawn:
        return Spawn([Leaf.child({"number": 0}), Leaf.child({"number": 1}, key="k")], then=self.joined)

    @step
    async def joined(self, ctx: Context[Any]) -> Done:
        return Done(len(ctx.children))


async def test_no_slots_are_kept_for_children_that_have_keys(make_harness: MakeHarness, runs: Runs) -> None:
    """Their insert may wait for somebody's transaction."""
    h = await make_harness([Mixed, Leaf], resources=runs)
    runs.gate.set()
    async with proxy_to(h.url) as proxy, Engine(proxy.url, machines=[Mixed, Leaf], resources=runs) as engine:
        held = proxy.hold("request", statement("instances/start"))
        async with engine.worker({"default": 2}) as worker:
            mixed = await engine.start(Mixed)
            await held.happened.wait()
            kept = worker._graph.all_queue_slots["default"].reserved
            held.release()
            result = await mixed.result(timeout=10)

    assert (kept, result) == (0, 2)
