"""A parked instance holds no concurrency key."""

from __future__ import annotations

from stepwell import Await, Context, Done, Machine, Status, step
from tests.conftest import MakeHarness


class Guarded(Machine):
    @step
    async def start(self, ctx: Context[None]) -> Await:
        return Await("go", then=self.end)

    @step
    async def end(self, ctx: Context[None]) -> Done:
        return Done(ctx.awaited[0].payload)


async def test_rule_22_an_instance_parked_for_a_signal_frees_its_key(make_harness: MakeHarness) -> None:
    """Rule 22, Scenario 93: while the first waits for its signal, the second of the key runs to its end."""
    h = await make_harness([Guarded])
    first = await h.engine.start(Guarded, concurrency_key="account:7")

    async with h.engine.worker():
        await first.wait(30, until="settled")
        second = await h.engine.start(Guarded, concurrency_key="account:7")
        await second.signal("go", 2)
        ended = await second.result(30)
        still = await first.get()
        await first.signal("go", 1)
        at_last = await first.result(30)

    assert (ended, still.status, at_last) == (2, Status.AWAITING_SIGNAL, 1)
