"""A machine runs to its end."""

from dataclasses import dataclass

from stepwell import Context, Done, Machine, Next, step
from tests.conftest import MakeHarness


class Order(Machine):
    @dataclass
    class State:
        count: int = 0

    @step
    async def start(self, ctx: Context[State]) -> Next:
        ctx.state.count += 1
        return Next(self.ship)

    @step
    async def ship(self, ctx: Context[State]) -> Done:
        return Done({"count": ctx.state.count})


async def test_a_machine_runs_to_its_end(make_harness: MakeHarness) -> None:
    """Scenario 1."""
    h = await make_harness([Order])
    order = await h.engine.start(Order)

    async with h.engine.worker():
        assert await order.result(timeout=10) == {"count": 1}
