"""Rule 29: old and new versions of a machine coexist; an upcast moves forward."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from stepwell import Context, Done, Engine, Hold, Machine, Next, Retry, Status, step
from tests.conftest import MakeHarness
from tests.support.waiting import held


class First(Machine, name="Order", version=1):
    @step
    async def start(self, ctx: Context[Any]) -> Next:
        return Next(self.end)

    @step
    async def end(self, ctx: Context[Any]) -> Done:
        return Done(["version 1", ctx.version])


class Second(Machine, name="Order", version=2):
    """Does without an upcast."""

    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done(["version 2", ctx.version])


class Upcasting(Machine, name="Order", version=3, initial="begin"):
    """Has none of the old steps, and knows the new step of each."""

    @step
    async def begin(self, ctx: Context[Any]) -> Next:
        return Next(self.finish)

    @step
    async def finish(self, ctx: Context[Any]) -> Done:
        return Done(["version 3", ctx.version, ctx.state])

    def upcast(self, state: dict[str, Any], step: str, from_version: int) -> tuple[dict[str, Any], str]:
        return {**state, "from": [step, from_version]}, "begin"


class Broken(Machine, name="Order", version=3):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done()

    def upcast(self, state: dict[str, Any], step: str, from_version: int) -> tuple[dict[str, Any], str]:
        raise KeyError("colour")


class Lost(Machine, name="Order", version=3):
    """Its upcast names a step that it does not have."""

    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done()

    def upcast(self, state: dict[str, Any], step: str, from_version: int) -> tuple[dict[str, Any], str]:
        return state, "nowhere"


async def test_rule_29_an_instance_finishes_on_the_version_it_started(make_harness: MakeHarness) -> None:
    """Rule 29: old and new versions coexist, in one worker. Scenario 162."""
    h = await make_harness([First, Second])
    old, new, newest = [await h.engine.start(machine) for machine in (First, Second, "Order")]

    async with h.engine.worker():
        results = [await handle.result(timeout=30) for handle in (old, new, newest)]

    assert results == [["version 1", 1], ["version 2", 2], ["version 2", 2]]


async def test_rule_29_two_workers_with_a_version_each_share_a_queue(make_harness: MakeHarness) -> None:
    """Rule 29: during a deploy each worker runs its own version, whichever claims the rows first. Scenario 162."""
    h = await make_harness([First])
    async with Engine(h.url, machines=[Second]) as later, h.engine.worker(), later.worker():
        handles = [await (h.engine.start(First) if n % 2 else later.start(Second)) for n in range(20)]
        results = [await handle.result(timeout=30) for handle in handles]

    assert [version for _, version in results] == [2, 1] * 10


async def test_rule_29_an_upcast_runs_if_no_worker_registers_the_old_version(
    make_harness: MakeHarness,
) -> None:
    """Rule 29: then a worker that does not register the old version moves it forward at the claim."""
    h = await make_harness([First])
    old = await h.engine.start(First, {"order": 7})

    async with Engine(h.url, machines=[Upcasting]) as later, later.worker():
        ended = await old.wait(timeout=30)

    assert ended.result == ["version 3", 3, {"order": 7, "from": ["start", 1]}]
    assert (ended.version, ended.step) == (3, "finish")


@pytest.mark.parametrize("error", [None, "raise", "raise twice"])
async def test_rule_29_the_first_outcome_after_an_upcast_commits_all_of_it(
    make_harness: MakeHarness, error: str | None
) -> None:
    """Rule 29: whatever the outcome is, no row has the step or state of one version and the number of another."""

    class Third(Machine, name="Order", version=3, initial="begin"):
        @step
        async def begin(self, ctx: Context[Any]) -> Retry:
            if error is not None:
                raise ValueError
            return Retry(timedelta(hours=1))

        async def handle(self, raised: BaseException, ctx: Context[Any]) -> Retry:
            if error == "raise twice":
                raise ValueError
            return Retry(timedelta(hours=1))

        def upcast(self, state: dict[str, Any], step: str, from_version: int) -> tuple[dict[str, Any], Any]:
            return {"order": str(state["order"])}, self.begin

    h = await make_harness([First])
    old = await h.engine.start(First, {"order": 7})
    async with Engine(h.url, machines=[Third]) as later, later.worker():
        if error == "raise twice":
            moved = await old.wait(timeout=30)
        else:
            moved = await held(old)

    assert (moved.version, moved.step, moved.state) == (3, "begin", {"order": "7"})


async def test_rule_29_an_upcast_leaves_versions_that_a_live_worker_registers(make_harness: MakeHarness) -> None:
    """Rule 29: … if no live worker registers it."""
    h = await make_harness([First])
    async with Engine(h.url, machines=[Upcasting]) as later, h.engine.worker(), later.worker():
        handles = await h.engine.start_many([First] * 20)
        results = [await handle.result(timeout=30) for handle in handles]

    assert results == [["version 1", 1]] * 20


async def test_rule_29_a_worker_that_registers_both_leaves_the_old_version_alone(make_harness: MakeHarness) -> None:
    """Rule 29: an instance finishes on the version it started."""
    h = await make_harness([First, Upcasting])
    old = await h.engine.start(First)

    async with h.engine.worker():
        assert await old.result(timeout=30) == ["version 1", 1]


async def test_rule_29_a_row_held_for_its_version_is_upcast_later(
    make_harness: MakeHarness,
) -> None:
    """Rules 9a and 29: a row held for its version is run by the deploy that brings an upcast."""
    h = await make_harness([First])
    old = await h.engine.start(First)
    async with Engine(h.url, machines=[Second]) as second, second.worker():
        waiting = await held(old)

    async with Engine(h.url, machines=[Upcasting]) as third, third.worker():
        ended = await old.wait(timeout=30)

    assert (waiting.hold, ended.status, ended.version) == (Hold.VERSION, Status.DONE, 3)


async def test_rule_29_a_failing_upcast_holds_the_row_until_a_fixed_one_runs(
    make_harness: MakeHarness,
) -> None:
    """Rules 9a and 29: an upcast that fails ends no order; nothing of the row has changed."""
    h = await make_harness([First])
    old = await h.engine.start(First, {"order": 7})
    async with Engine(h.url, machines=[Broken]) as broken, broken.worker():
        waiting = await held(old)

    async with Engine(h.url, machines=[Upcasting]) as fixed, fixed.worker():
        ended = await old.wait(timeout=30)

    assert waiting.waiting_for == "upcast from version 1 failed: KeyError: 'colour'"
    assert (waiting.hold, waiting.version, waiting.step, waiting.state) == (Hold.UNFIT, 1, "start", {"order": 7})
    assert ended.status is Status.DONE


async def test_rule_29_an_upcast_to_an_unknown_step_holds_the_row_with_the_reason(make_harness: MakeHarness) -> None:
    """Rules 9a and 29: what an upcast returns is checked like a stored row."""
    h = await make_harness([First])
    old = await h.engine.start(First)

    async with Engine(h.url, machines=[Lost]) as lost, lost.worker():
        waiting = await held(old)

    assert (waiting.hold, waiting.version) == (Hold.UNFIT, 1)
    assert "machine 'Order' has no step 'nowhere'" in str(waiting.waiting_for)
