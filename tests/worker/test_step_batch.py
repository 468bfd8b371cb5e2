"""Steps that begin together share a task while none of them waits: none notices anything of another by that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context as ContextVars
from contextvars import ContextVar, copy_context
from typing import Any

import pytest

from stepwell import Context, Done, Machine, Next, Spawn, step
from stepwell._worker.running import step_batch
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.support.waiting import eventually

MARK: ContextVar[str] = ContextVar("mark", default="nobody's")
CROWD = 40  # more than begin in one turn of the loop
MANY = 200  # enough that the first are over when the last begin
SLOTS = {"default": CROWD}


class Marking(Machine):
    """Says which mark it finds, and leaves its own."""

    @step
    async def start(self, ctx: Context[Any]) -> Next:
        found = MARK.get()
        MARK.set(f"of {ctx.id}")
        return Next(self.end, state={"found": found})

    @step
    async def end(self, ctx: Context[Any]) -> Done:
        return Done([ctx.state["found"], MARK.get()])


class Cancelling(Machine):
    """Every other one cancels the task it runs in, and goes on or raises; those between them wait for something."""

    @step
    async def start(self, ctx: Context[Any]) -> Done:
        task = asyncio.current_task()
        assert task is not None
        if ctx.id % 2 == 0:
            await asyncio.sleep(0)
            return Done("waited")
        task.cancel()
        if ctx.state["raises"]:
            raise asyncio.CancelledError
        return Done("went on")

    async def handle(self, error: BaseException, ctx: Context[Any]) -> Done:
        return Done(type(error).__name__)


class Revoking(Machine):
    """Cancels itself as an operator would, and goes on as if nothing were."""

    @step
    async def start(self, ctx: Context[Any]) -> Next:
        await ctx.resources[0].cancel(ctx.id)
        return Next(self.end)

    @step
    async def end(self, ctx: Context[Any]) -> Done:
        return Done()


class Gated(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        await ctx.resources.wait()
        return Done()


class Gates:
    """Two gates, and how many have come to each."""

    def __init__(self) -> None:
        self.first, self.second = asyncio.Event(), asyncio.Event()
        self.first_waits = self.second_waits = 0


class Passing(Machine):
    """Waits at one gate, and in its next step at the other."""

    @step
    async def start(self, ctx: Context[Any]) -> Next:
        ctx.resources.first_waits += 1
        await ctx.resources.first.wait()
        return Next(self.end)

    @step
    async def end(self, ctx: Context[Any]) -> Done:
        ctx.resources.second_waits += 1
        await ctx.resources.second.wait()
        return Done()


class Naming(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        task = asyncio.current_task()
        assert task is not None
        return Done(task.get_name() == f"Naming #{ctx.id}")


class Kept:
    """A task that a step has handed out, and who began to wait in which one."""

    def __init__(self) -> None:
        self.task: asyncio.Task[Any] | None = None
        self.begun: list[tuple[int, asyncio.Task[Any] | None]] = []
        self.gate = asyncio.Event()


class Keeping(Machine):
    """Hands out its task, or waits, and says how much it has changed of its state."""

    @step
    async def start(self, ctx: Context[Any]) -> Done:
        kept: Kept = ctx.resources
        if ctx.state["keeps"]:
            kept.task = asyncio.current_task()
            return Done("kept")
        ctx.state["runs"] = ctx.state.get("runs", 0) + 1
        kept.begun.append((ctx.id, asyncio.current_task()))
        await kept.gate.wait()
        return Done(["waited", ctx.state["runs"]])


class Spawning(Machine):
    """Notes that it runs, and when the loop turns to other things."""

    @step
    async def start(self, ctx: Context[Any]) -> Spawn:
        ctx.resources.append(ctx.id)
        asyncio.get_running_loop().call_soon(ctx.resources.append, "the loop")
        return Spawn([Naming.child()] * 3, then=self.end)

    @step
    async def end(self, ctx: Context[Any]) -> Done:
        return Done()


class Deep(Machine):
    """Goes on with a state of so many levels."""

    @step
    async def start(self, ctx: Context[Any]) -> Next:
        nested: dict[str, Any] = {}
        for _ in range(ctx.state["levels"]):
            nested = {"in": nested}
        return Next(self.end, state={"nested": nested})

    @step
    async def end(self, ctx: Context[Any]) -> Done:
        return Done("deep")


class Waiting(Machine):
    """The first one of all waits for the last one."""

    @step
    async def start(self, ctx: Context[Any]) -> Done:
        came, last = ctx.resources
        came.append(ctx.id)
        if len(came) == CROWD:
            last.set()
        if ctx.id == came[0]:
            await last.wait()
        return Done()


async def test_a_step_sees_no_context_variable_of_another(make_harness: MakeHarness) -> None:
    h = await make_harness([Marking])
    crowd = await h.engine.start_many([Marking] * CROWD)

    async with h.engine.worker(SLOTS):
        results = [await one.result(timeout=30) for one in crowd]

    assert results == [["nobody's", "nobody's"]] * CROWD


@pytest.mark.parametrize("around", [copy_context, ContextVars], ids=["as it is", "empty"])
async def test_no_context_variable_is_passed_on_with_a_slot(
    make_harness: MakeHarness, around: Callable[[], ContextVars]
) -> None:
    """Also in a process that has set none at all, where the context before all steps is empty."""
    h = await make_harness([Marking], run_ahead=0)

    async def run() -> list[Any]:
        async with h.engine.worker({"default": 1}, prefetch=5):
            crowd = await h.engine.start_many([Marking] * 6)
            results = [await one.result(timeout=30) for one in crowd]
            return [*results, await (await h.engine.start(Marking)).result(timeout=30)]

    assert await asyncio.create_task(run(), context=around()) == [["nobody's", "nobody's"]] * 7


async def test_a_late_cancel_of_a_steps_task_does_not_hit_a_later_step_in_it(make_harness: MakeHarness) -> None:
    """A step may hand out its task; a neighbour that is cancelled by it runs anew, in a task of its own."""
    kept = Kept()
    h = await make_harness([Keeping], resources=kept)
    crowd = await h.engine.start_many([Keeping.child({"keeps": True}), *[Keeping.child({"keeps": False})] * 2])

    async with h.engine.worker(SLOTS):
        await eventually(lambda: len(kept.begun) == 2)
        assert kept.task is not None
        kept.task.cancel()
        await eventually(lambda: len(kept.begun) == 3)
        kept.gate.set()
        results = [await one.result(timeout=30) for one in crowd]

    assert results == ["kept", ["waited", 1], ["waited", 1]]
    assert len({task for _, task in kept.begun}) == 3


async def test_a_state_too_deep_to_run_ahead_does_not_stop_other_steps(make_harness: MakeHarness) -> None:
    """Five hundred levels are allowed; to read them in the order of Postgres takes more of Python's stack."""
    h = await make_harness([Deep])
    crowd = await h.engine.start_many([Deep.child({"levels": 490 if n == 3 else 1}) for n in range(10)])

    async with h.engine.worker(SLOTS):
        assert [await one.result(timeout=30) for one in crowd] == ["deep"] * 10


@pytest.mark.parametrize(("raises", "said"), [(False, "went on"), (True, "CancelledError")])
async def test_a_step_that_cancels_its_own_task_hits_no_other_step(
    make_harness: MakeHarness, *, raises: bool, said: str
) -> None:
    h = await make_harness([Cancelling])
    crowd = await h.engine.start_many([Cancelling.child({"raises": raises})] * CROWD)

    async with h.engine.worker(SLOTS):
        results = {one.id: await one.result(timeout=30) for one in crowd}

    assert results == {one.id: said if one.id % 2 else "waited" for one in crowd}


async def test_a_step_that_cancelled_its_own_instance_leaves_its_slot(make_harness: MakeHarness) -> None:
    engines: list[Any] = []
    h = await make_harness([Revoking, Naming], resources=engines)
    engines.append(h.engine)

    async with h.engine.worker({"default": 1}):
        await h.engine.start(Revoking)
        await eventually(lambda: h.sql("select from stepwell.instances where status = 'cancelled'"))

        assert await (await h.engine.start(Naming)).result(timeout=30)


async def test_a_row_deleted_before_it_starts_leaves_its_slot(make_harness: MakeHarness) -> None:
    gate = asyncio.Event()
    h = await make_harness([Gated], resources=gate)

    async with h.engine.worker({"default": 1}, prefetch=1) as worker:
        one, other = await h.engine.start_many([Gated] * 2)
        await eventually(lambda: worker.running == 2)
        await h.sql("delete from stepwell.instances where id = $1", other.id)
        gate.set()
        await one.result(timeout=30)

        await (await h.engine.start(Gated)).result(timeout=30)
        assert worker.stats.leases_lost == 0


async def test_a_task_has_the_name_of_the_instance_it_runs(make_harness: MakeHarness) -> None:
    h = await make_harness([Naming])
    crowd = await h.engine.start_many([Naming] * CROWD)

    async with h.engine.worker(SLOTS):
        assert all([await one.result(timeout=30) for one in crowd])


@pytest.mark.parametrize(("heavy", "in_a_row"), [(3, 1), (6, 2), (100, 5)])
async def test_between_steps_with_large_spawns_the_loop_runs_and_order_is_kept(
    make_harness: MakeHarness, monkeypatch: pytest.MonkeyPatch, heavy: int, in_a_row: int
) -> None:
    monkeypatch.setattr(step_batch, "HEAVY", heavy)
    noted: list[object] = []
    h = await make_harness([Spawning, Naming], resources=noted, queues=SLOTS)
    handles = await h.engine.start_many([Spawning] * 5)
    ids: list[object] = [handle.id for handle in handles]

    async with h.engine.worker():  # a handle's wait would mark a row, and the claim pass it over
        await eventually(lambda: len(noted) == 2 * len(ids))

    rows = [ids[first : first + in_a_row] for first in range(0, 5, in_a_row)]
    assert noted == [each for row in rows for each in [*row, *["the loop"] * len(row)]]


async def test_waiting_steps_are_not_taken_for_short_ones_before_they_start(
    make_harness: MakeHarness,
) -> None:
    """More of them than begin with their claim. They keep their slots for their next steps."""
    gates = Gates()
    h = await make_harness([Passing], resources=gates)
    await h.engine.start_many([Passing] * MANY)

    async with h.engine.worker({"default": 60}) as worker:
        await eventually(lambda: gates.first_waits == 60)
        gates.first.set()
        await eventually(lambda: gates.second_waits >= 60 and worker.running == 60)
        claimed = worker.stats.claimed
        gates.second.set()

    assert claimed == 60


async def test_a_step_that_waits_does_not_delay_steps_started_beside_it(make_harness: MakeHarness) -> None:
    h = await make_harness([Waiting], resources=([], asyncio.Event()))
    crowd = await h.engine.start_many([Waiting] * CROWD)

    async with h.engine.worker(SLOTS):
        results = [await one.result(timeout=30) for one in crowd]

    assert results == [None] * CROWD


class Slowing(Machine):
    """Is over at once, until it is told to take its time."""

    @step
    async def start(self, ctx: Context[Any]) -> Done:
        ctx.resources.begun += 1
        if ctx.resources.begun > ctx.resources.swift:
            await ctx.resources.gate.wait()
        return Done()


class Pace:
    """How many are over at once, and what the others wait for."""

    def __init__(self, swift: int) -> None:
        self.swift = swift
        self.begun = 0
        self.gate = asyncio.Event()


async def test_claims_prefetched_behind_long_steps_are_released(make_harness: MakeHarness) -> None:
    """With quick steps, the next ones are claimed while the last ones begin; if those take longer, others get them."""
    pace = Pace(2 * MANY)
    h = await make_harness([Slowing], resources=pace)
    await h.engine.start_many([Slowing] * (8 * MANY))

    async with h.engine.worker({"default": MANY}) as worker:
        await eventually(lambda: pace.begun == pace.swift + MANY)
        await eventually(lambda: _held(h, MANY))
        assert worker.stats.claimed > pace.begun
        pace.gate.set()
        await eventually(lambda: pace.begun == 8 * MANY)


async def _held(h: Harness, number: int) -> bool:
    [row] = await h.sql("select count(*) as n from stepwell.instances where status = 'executing'")
    return bool(row["n"] == number)
