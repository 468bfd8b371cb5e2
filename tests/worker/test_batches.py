"""What goes into one commit: outcomes that came together, as long as they are not too much for one statement."""

from __future__ import annotations

from typing import Any

from stepwell import Context, Done, Machine, Outcome, Spawn, step
from stepwell.testing import armed
from tests.conftest import MakeHarness
from tests.support.waiting import eventually


class Leaf(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done()


class Tree(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Outcome:
        return Spawn([Leaf.child()] * 600, then=self.end)

    @step
    async def end(self, ctx: Context[Any]) -> Done:
        return Done()


async def test_large_spawns_that_arrive_together_are_committed_separately(
    make_harness: MakeHarness,
) -> None:
    """So the children of the first begin while those of the next are inserted."""
    h = await make_harness([Tree, Leaf])
    handles = await h.engine.start_many([Tree] * 3)
    trees = {handle.id for handle in handles}

    with armed("committer.before_commit") as committing:
        async with h.engine.worker({"default": 50}) as worker:
            await eventually(lambda: worker.stats.committed == 3 * 602)

    spawning = [ids for flushed in committing.facts if (ids := trees.intersection(flushed["ids"]))]
    assert [len(ids) for ids in spawning[:3]] == [1, 1, 1]
