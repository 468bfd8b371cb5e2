"""Raw JSON of an author: errors in it are refused, and never change another instance's data."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec
import pytest

from stepwell import Await, Context, Done, Machine, Outcome, Spawn, StepwellError, Stop, step
from stepwell.testing import Harness
from tests.conftest import MakeHarness


class Wrapped(msgspec.Struct):
    """Encoded exactly as the test passed it."""

    inner: msgspec.Raw


TWO_IN_ONE = Wrapped(msgspec.Raw(b'1}\x1e{"inner":2'))  # the separators of texts that are sent together


class Telling(Machine):
    """Gives what its state says, and says what became of that."""

    class State(msgspec.Struct):
        is_evil: bool = False

    @step
    async def start(self, ctx: Context[State]) -> Outcome:
        return Done(TWO_IN_ONE if ctx.state.is_evil else "mine")

    async def handle(self, error: Exception, ctx: Context[State]) -> Outcome:
        return Stop(error)


class Waiting(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Await:
        return Await("go", then=self.heard)

    @step
    async def heard(self, ctx: Context[Any]) -> Done:
        return Done([signal.payload for signal in ctx.inbox])


class Holding(Machine):
    """Its state is passed raw."""

    class State(msgspec.Struct):
        inner: msgspec.Raw

    @step
    async def start(self, ctx: Context[State]) -> Done:
        return Done("held")


class Family(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Outcome:
        states = [Holding.State(msgspec.Raw(raw)) for raw in (TWO_IN_ONE.inner, b"1")]
        return Spawn([Holding.child(state) for state in states], then=self.joined)

    @step
    async def joined(self, ctx: Context[Any]) -> Done:
        return Done(len(ctx.children))


@pytest.fixture
async def h(make_harness: MakeHarness) -> Harness:
    return await make_harness([Telling, Waiting, Holding, Family])


async def test_a_raw_result_of_two_values_fails_only_its_own_instance(h: Harness) -> None:
    started = await h.engine.start_many([Telling.child({"is_evil": n == 0}) for n in range(3)])

    async with h.engine.worker({"default": 9}):
        ended = [await handle.wait(timeout=10) for handle in started]  # type: ignore[union-attr]

    assert [(row.status, row.result) for row in ended] == [("failed", None), ("done", "mine"), ("done", "mine")]


async def test_a_raw_payload_of_two_values_is_refused_and_not_delivered(h: Harness) -> None:
    first, second = [await h.engine.start(Waiting) for _ in range(2)]

    with pytest.raises(StepwellError):
        await h.engine.signal_many([(first.id, "go", TWO_IN_ONE), (second.id, "go", 3)])

    assert await h.sql("select from stepwell.signals") == []


async def test_a_raw_state_of_two_values_is_refused_and_starts_nothing(h: Harness) -> None:
    states = [Holding.State(msgspec.Raw(raw)) for raw in (TWO_IN_ONE.inner, b"1")]

    with pytest.raises(StepwellError):
        await h.engine.start_many([Holding.child(state) for state in states])

    assert await h.sql("select from stepwell.instances") == []


async def test_a_raw_child_state_of_two_values_fails_the_spawn(h: Harness) -> None:
    family = await h.engine.start(Family)

    async with h.engine.worker():
        ended = await family.wait(timeout=10)

    assert ended.status == "failed"
    assert await h.sql("select from stepwell.instances where parent_id is not null") == []


async def test_an_id_may_be_any_kind_of_int(h: Harness) -> None:
    waiting = await h.engine.start(Waiting)
    target = IntEnum("Target", {"IT": waiting.id}).IT  # type: ignore[misc]

    await h.engine.signal(target, "go", 7)

    async with h.engine.worker():
        assert await waiting.result(timeout=10) == [7]
