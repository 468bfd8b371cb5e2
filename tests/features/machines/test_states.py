"""States: every kind through a whole run, changed in place or replaced, and always decoded afresh."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

from stepwell import Context, Done, Machine, Next, step
from tests.conftest import MakeHarness


@dataclass
class AsDataclass:
    order: int
    lines: list[str] = field(default_factory=list)


class AsStruct(msgspec.Struct):
    order: int
    lines: list[str] = []


class AsTypedDict(TypedDict):
    order: int
    lines: list[str]


class AsModel(pydantic.BaseModel):
    order: int
    lines: list[str] = []


def machine_of(kind: Any, make: Any) -> type[Machine]:
    """A machine that changes its state in place, replaces it, and gives it back."""

    class Order(Machine, state=kind):
        @step
        async def start(self, ctx: Context[Any]) -> Next:
            _lines(ctx.state).append("in place")
            return Next(self.replace)

        @step
        def replace(self, ctx: Context[Any]) -> Next:
            return Next(self.end, state=make(order=2, lines=[*_lines(ctx.state), "replaced"]))

        @step
        async def end(self, ctx: Context[Any]) -> Done:
            assert type(ctx.state) is (kind if kind not in (None, AsTypedDict) else dict)
            return Done(ctx.state)

    return Order


def _lines(state: Any) -> list[str]:
    found: list[str] = state["lines"] if isinstance(state, dict) else state.lines
    return found


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        (AsDataclass, AsDataclass), (AsStruct, AsStruct), (AsTypedDict, dict), (AsModel, AsModel), (dict, dict),
        (None, dict),
    ],
    ids=["dataclass", "Struct", "TypedDict", "pydantic", "dict", "none declared"],
)
async def test_a_state_of_every_kind_survives_a_whole_run(
    make_harness: MakeHarness, kind: Any, make: Any
) -> None:
    """Scenarios 10 and 11."""
    machine = machine_of(kind, make)
    h = await make_harness([machine])
    from_mapping = await h.engine.start(machine, {"order": 1, "lines": []})
    from_object = await h.engine.start(machine, make(order=1, lines=["given"]))

    async with h.engine.worker():
        results = [await handle.result(timeout=30) for handle in (from_mapping, from_object)]

    assert results == [
        {"order": 2, "lines": ["in place", "replaced"]},
        {"order": 2, "lines": ["given", "in place", "replaced"]},
    ]


async def test_defaults_of_a_state_are_filled_at_the_start(make_harness: MakeHarness) -> None:
    """Scenario 10."""
    machine = machine_of(AsDataclass, AsDataclass)
    h = await make_harness([machine])

    handle = await h.engine.start(machine, {"order": 7})

    assert (await handle.get()).state == {"order": 7, "lines": []}


async def test_every_step_gets_a_freshly_decoded_state(make_harness: MakeHarness) -> None:
    kept: list[Any] = []

    class Order(Machine, state=AsDataclass):
        @step
        async def start(self, ctx: Context[AsDataclass]) -> Next:
            kept.append(ctx.state)
            return Next(self.end)

        @step
        async def end(self, ctx: Context[AsDataclass]) -> Done:
            kept[0].lines.append("too late")
            return Done([ctx.state is kept[0], ctx.state.lines])

    h = await make_harness([Order])
    order = await h.engine.start(Order, {"order": 1})
    async with h.engine.worker():
        assert await order.result(timeout=30) == [False, []]


async def test_two_instances_share_no_state(make_harness: MakeHarness) -> None:
    class Order(Machine, state=AsStruct):
        @step
        def start(self, ctx: Context[AsStruct]) -> Done:
            ctx.state.lines.append(str(ctx.id))
            return Done(ctx.state.lines)

    h = await make_harness([Order])
    handles = await h.engine.start_many([(Order, {"order": n}) for n in range(20)])
    async with h.engine.worker():
        results = [await handle.result(timeout=30) for handle in handles]

    assert results == [[str(handle.id)] for handle in handles]


async def test_a_step_knows_its_instance(make_harness: MakeHarness) -> None:
    class Order(Machine, name="order", version=4):
        @step
        async def start(self, ctx: Context[Any]) -> Done:
            identity = [ctx.id, ctx.machine, ctx.version, ctx.step, ctx.attempt, ctx.key, ctx.tenant, ctx.fence]
            return Done([*identity, ctx.worker_id])

    h = await make_harness([Order])
    order = await h.engine.start(Order, tenant="acme")
    async with h.engine.worker() as worker:
        told = await order.result(timeout=30)
        assert told == [order.id, "order", 4, "start", 0, None, "acme", 1, worker.id]
