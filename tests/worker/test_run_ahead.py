"""Run-ahead: after a plain Next, the next step runs on the same claim, once its state is committed."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest

from stepwell import Await, ConcurrencyLimit, Context, Done, Machine, Next, Outcome, Retry, Spawn, Status, step
from stepwell._worker.worker import Worker
from stepwell.testing import Harness, armed
from tests.conftest import MakeHarness
from tests.support.waiting import eventually


class Walk(Machine, state=dict):
    """As many steps as its state says; notes the fence of each, and what the database knew when it ran."""

    @step
    async def start(self, ctx: Context[dict[str, Any]]) -> Outcome:
        ctx.resources["fences"].append(ctx.fence)
        if look := ctx.resources.get("look"):
            await look(ctx)
        if ctx.state["left"] == 0:
            return Done(ctx.state)
        ctx.state["left"] -= 1
        return Next(self.start, **ctx.resources.get("options", {}))


async def walking(make_harness: MakeHarness, machines: Any = (), **settings: Any) -> tuple[Harness, dict[str, Any]]:
    resources: dict[str, Any] = {"fences": []}
    return await make_harness([Walk, *machines], resources=resources, **{"run_ahead": 16, **settings}), resources


async def claims_of(h: Harness, resources: dict[str, Any], steps: int, **options: Any) -> int:
    """How many claims a walk of so many steps took: a claim raises the fence once, each commit once more."""
    async with h.engine.worker():
        handle = await h.engine.start(Walk, {"left": steps - 1}, **options)
        assert await handle.result(timeout=30) == {"left": 0}
    fence = (await handle.get()).fence
    assert len(resources["fences"]) == steps
    return fence - steps


async def test_steps_follow_on_one_claim(make_harness: MakeHarness) -> None:
    h, resources = await walking(make_harness)

    assert await claims_of(h, resources, 10) == 1


@pytest.mark.parametrize(("run_ahead", "claims"), [(0, 10), (1, 5), (4, 2), (9, 1)])
async def test_an_instance_returns_to_the_queue_after_a_number_of_steps_ahead(
    make_harness: MakeHarness, run_ahead: int, claims: int
) -> None:
    h, resources = await walking(make_harness, run_ahead=run_ahead)

    assert await claims_of(h, resources, 10) == claims


@pytest.mark.parametrize(
    "options",
    [{"delay": timedelta(milliseconds=1)}, {"queue": "default"}, {"priority": 3}, {"concurrency_key": None}],
    ids=lambda options: next(iter(options)),
)
async def test_a_next_that_changes_more_than_the_step_goes_through_the_queue(
    make_harness: MakeHarness, options: dict[str, Any]
) -> None:
    h, resources = await walking(make_harness)
    resources["options"] = options

    assert await claims_of(h, resources, 3) == 3


async def test_an_instance_releases_its_concurrency_key_between_steps(make_harness: MakeHarness) -> None:
    h, resources = await walking(make_harness)

    assert await claims_of(h, resources, 3, concurrency_key="acct:7") == 3


async def test_each_state_is_committed_before_the_next_step_runs(make_harness: MakeHarness) -> None:
    h, resources = await walking(make_harness)
    seen = []

    async def look(ctx: Context[dict[str, Any]]) -> None:
        [row] = await h.sql(
            "select i.status, i.fence, d.state ->> 'left' as left from stepwell.instances i "
            "join stepwell.instance_data d using (id) where id = $1", ctx.id
        )
        seen.append((row["status"], row["fence"] == ctx.fence, int(row["left"]) == ctx.state["left"]))

    resources["look"] = look
    await claims_of(h, resources, 4)

    assert seen == [("executing", True, True)] * 4


async def test_the_next_step_gets_the_state_as_the_database_keeps_it(make_harness: MakeHarness) -> None:
    class Order(Machine, state=dict):
        @step
        async def start(self, ctx: Context[dict[str, Any]]) -> Outcome:
            return Next(self.end, state={"longer": 1, "b": {"zz": 1e17, "z": -0.0}, "a": "1e5"})

        @step
        async def end(self, ctx: Context[dict[str, Any]]) -> Outcome:
            return Done(repr(ctx.state))

    results = []
    for run_ahead in (16, 0):
        h, _ = await walking(make_harness, [Order], run_ahead=run_ahead)
        async with h.engine.worker():
            results.append(await (await h.engine.start(Order)).result(timeout=30))

    assert results[0] == results[1]


async def test_a_signal_that_arrived_meanwhile_is_in_the_inbox_of_the_next_step(make_harness: MakeHarness) -> None:
    class Listening(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Outcome:
            await ctx.resources["engine"].signal(ctx.id, "news", 7)
            return Next(self.end)

        @step
        async def end(self, ctx: Context[Any]) -> Outcome:
            return Done([signal.payload for signal in ctx.inbox])

    h, resources = await walking(make_harness, [Listening])
    resources["engine"] = h.engine

    async with h.engine.worker():
        assert await (await h.engine.start(Listening)).result(timeout=30) == [7]


async def test_other_outcomes_after_a_step_ahead_have_their_usual_effect(make_harness: MakeHarness) -> None:
    class Varied(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Outcome:
            return Next(self.again)

        @step
        async def again(self, ctx: Context[Any]) -> Outcome:
            return Next(self.wait) if ctx.attempt else Retry(timedelta(0))

        @step
        async def wait(self, ctx: Context[Any]) -> Outcome:
            return Await("go", then=self.spawn)

        @step
        async def spawn(self, ctx: Context[Any]) -> Outcome:
            return Spawn([(Walk, {"left": 2})], then=self.joined)

        @step
        async def joined(self, ctx: Context[Any]) -> Outcome:
            return Next(self.end)

        @step
        async def end(self, ctx: Context[Any]) -> Outcome:
            return Done([child.result for child in ctx.children])

    h, _ = await walking(make_harness, [Varied])
    async with h.engine.worker():
        handle = await h.engine.start(Varied)
        await handle.signal("go")

        assert await handle.result(timeout=30) == [{"left": 0}]


class Gates:
    """Notes the keys of steps as they begin, and keeps each instance inside until its gate opens."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self._gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    async def pass_through(self, ctx: Context[dict[str, Any]]) -> None:
        self.order.append(str(ctx.key))
        await self._gates[str(ctx.key)].wait()

    def open(self, *keys: str) -> None:
        for key in keys:
            self._gates[key].set()

    async def has_begun(self, key: str) -> None:
        await eventually(lambda: key in self.order)


URGENT = [{"concurrency_limit": "bank"}, {}]


@pytest.mark.parametrize("first", URGENT, ids=["limited", "plain"])
async def test_running_ahead_yields_to_more_urgent_rows_that_a_claim_left(
    make_harness: MakeHarness, first: dict[str, Any]
) -> None:
    """Two slots: the patient one has one, and of two urgent ones, whose time comes together, the other has room for the
    first. Nobody tells of the second: the claim itself has. It waits for one step, not for sixteen."""
    rarely = timedelta(minutes=1)
    h, resources = await walking(make_harness, limits=[ConcurrencyLimit("bank", 1)], poll=rarely, max_poll=rarely)
    gates = Gates()
    resources["look"] = gates.pass_through

    async with h.engine.worker({"default": 2}):
        await h.engine.start(Walk, {"left": 16}, key="patient", priority=5)
        await gates.has_begun("patient")
        soon = timedelta(milliseconds=1)
        await h.engine.start_many([
            Walk.child({"left": 0}, key="urgent 1", delay=soon, **first),
            Walk.child({"left": 0}, key="urgent 2", delay=soon),
        ])  # fmt: skip
        await gates.has_begun("urgent 1")
        gates.open("patient")
        await gates.has_begun("urgent 2")
        gates.open("urgent 1", "urgent 2")
        await h.engine.wait("patient", timeout=30)

    assert gates.order[:4] == ["patient", "urgent 1", "urgent 2", "patient"]


@pytest.mark.parametrize("prefetch", [0, 2])
@pytest.mark.parametrize("slots", [1, 2])
async def test_running_ahead_yields_to_an_urgent_new_row_when_no_slot_is_free(
    make_harness: MakeHarness, slots: int, prefetch: int
) -> None:
    """One patient instance makes room when its step is over, and the claim takes the newcomer, or has taken it."""
    h, resources = await walking(make_harness, prefetch=prefetch)
    gates = Gates()
    resources["look"] = gates.pass_through
    patient = [f"patient {n}" for n in range(slots)]

    async with h.engine.worker({"default": slots}) as worker:
        for key in patient:
            await h.engine.start(Walk, {"left": 16}, key=key, priority=5)
            await gates.has_begun(key)
        await h.engine.start(Walk, {"left": 0}, key="urgent", priority=-5)
        await eventually(lambda: worker.running == slots + min(prefetch, 1))
        gates.open("patient 0", "urgent")
        await h.engine.wait("urgent", timeout=30)
        gates.open(*patient)
        await h.engine.wait("patient 0", timeout=30)

    assert gates.order[: slots + 1] == [*patient, "urgent"]


@asynccontextmanager
async def one_without_its_slot(h: Harness, gates: Gates) -> AsyncIterator[Worker]:
    """A worker of one slot, with steps that were short up to now: while one of "ahead" is being committed, "other"
    begins, and keeps the slot."""
    gates.open("ahead")
    await h.engine.start(Walk, {"left": 3}, key="ahead")
    with armed("committer.before_commit", hold=True) as committing, armed("committer.committed") as committed:
        async with h.engine.worker({"default": 1}) as worker:
            await committing.reached()
            worker._graph.all_queue_slots["default"].steps_are_short = True
            await h.engine.start(Walk, {"left": 0}, key="other")
            await gates.has_begun("other")
            committing.release()
            await committed.reached()
            assert gates.order == ["ahead", "other"]
            yield worker


async def test_an_instance_that_runs_ahead_keeps_its_slot_where_steps_are_long(make_harness: MakeHarness) -> None:
    h, resources = await walking(make_harness)
    gates = Gates()
    resources["look"] = gates.pass_through
    await h.engine.start(Walk, {"left": 1}, key="ahead")

    async with h.engine.worker({"default": 1}) as worker:
        await gates.has_begun("ahead")
        with armed("committer.before_commit", hold=True) as committing:
            gates.open("ahead", "other")
            await committing.reached()
            assert worker._graph.all_queue_slots.free("default") == 0
            committing.release()
            await h.engine.wait("ahead", timeout=30)


async def test_a_continuing_instance_gets_the_next_slot_before_later_claims(make_harness: MakeHarness) -> None:
    h, resources = await walking(make_harness)
    gates = Gates()
    resources["look"] = gates.pass_through

    async with one_without_its_slot(h, gates):
        await h.engine.start(Walk, {"left": 0}, key="later")
        gates.open("other", "later")
        await h.engine.wait("ahead", timeout=30)
        await h.engine.wait("later", timeout=30)

    assert gates.order[:3] == ["ahead", "other", "ahead"]


async def test_a_continuing_instance_that_waits_long_for_a_slot_is_released(make_harness: MakeHarness) -> None:
    h, resources = await walking(make_harness)
    gates = Gates()
    resources["look"] = gates.pass_through

    async with one_without_its_slot(h, gates) as worker:
        await eventually(lambda: worker.running == 1)
        async with h.engine.worker({"default": 1}):
            await h.engine.wait("ahead", timeout=30)
        gates.open("other")

    assert gates.order[:3] == ["ahead", "other", "ahead"]


async def test_a_continuing_instance_that_waits_for_a_slot_can_be_cancelled(make_harness: MakeHarness) -> None:
    h, resources = await walking(make_harness)
    gates = Gates()
    resources["look"] = gates.pass_through

    async with one_without_its_slot(h, gates) as worker:
        assert await h.engine.cancel("ahead")
        await eventually(lambda: worker.running == 1)
        gates.open("other")
        await eventually(lambda: worker.running == 0)

    assert gates.order == ["ahead", "other"]


async def test_a_continuing_instance_that_waits_is_released_when_the_worker_stops(make_harness: MakeHarness) -> None:
    h, resources = await walking(make_harness)
    gates = Gates()
    resources["look"] = gates.pass_through

    async with one_without_its_slot(h, gates) as worker:
        asyncio.get_running_loop().call_later(0.05, gates.open, "other")
        await worker.stop()

    left = await h.engine.get("ahead")
    assert (left.status, left.state, left.attempt) == (Status.RUNNABLE, {"left": 2}, 0)
    assert gates.order == ["ahead", "other"]


async def test_a_draining_worker_does_not_run_ahead(make_harness: MakeHarness) -> None:
    h, resources = await walking(make_harness)
    gate = asyncio.Event()

    async def look(_: object) -> None:
        await gate.wait()

    resources["look"] = look
    handle = await h.engine.start(Walk, {"left": 5})
    async with h.engine.worker() as worker:
        await eventually(lambda: len(resources["fences"]) == 1)
        asyncio.get_running_loop().call_later(0.05, gate.set)
        await worker.stop()

    left = await handle.get()
    assert (left.status, left.state) == (Status.RUNNABLE, {"left": 4})


async def test_an_instance_cancelled_between_two_steps_runs_no_further(make_harness: MakeHarness) -> None:
    h, resources = await walking(make_harness)
    handle = await h.engine.start(Walk, {"left": 5})

    with armed("committer.committed", hold=True) as committed:
        async with h.engine.worker() as worker:
            await committed.reached()
            assert await handle.cancel()
            committed.release()
            await eventually(lambda: worker.running == 0)

    assert len(resources["fences"]) == 1
    assert (await handle.get()).status is Status.CANCELLED


async def test_the_heartbeat_does_not_release_a_claim_between_two_steps(make_harness: MakeHarness) -> None:
    """The row is one fence further than the hand that holds it, and older than a beat: still it is no stray."""
    beat = timedelta(milliseconds=100)
    h, resources = await walking(make_harness, heartbeat=beat, lease=timedelta(seconds=60))
    handle = await h.engine.start(Walk, {"left": 2})

    with armed("committer.committed", hold=True) as committed, armed("heartbeat.beaten") as beaten:
        async with h.engine.worker() as worker:
            await committed.reached()
            await beaten.reached(len(beaten.facts) + 4)
            committed.release()

            assert await handle.result(timeout=30) == {"left": 0}
            assert _strays(worker) == 0

    assert len(resources["fences"]) == 3


def _strays(worker: Worker) -> int:
    return worker.stats.orphans
