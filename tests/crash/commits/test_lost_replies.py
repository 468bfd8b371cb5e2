"""What a worker concludes about a commit with a lost reply, while another transaction takes the row away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from stepwell import Context, Done, Engine, Machine, Next, Spawn, Status, step
from stepwell._store.connection.sql_files import statement
from stepwell._worker.worker import Worker
from stepwell.testing import Harness, Point, armed
from tests.conftest import MakeHarness
from tests.support.proxy import Part, proxy_to
from tests.support.waiting import eventually

NEVER = timedelta(hours=1)
SOON = timedelta(seconds=0.1)
COMMIT_BARE = statement("instances/commit_fast")
CANCEL = "select stepwell.cancel(id => $1, notify => false)"
REAP = statement("instances/reap")


@dataclass
class Notes:
    begun: list[str] = field(default_factory=list)
    again: asyncio.Event = field(default_factory=asyncio.Event)
    told: list[str] = field(default_factory=list)


class Walk(Machine, initial="one"):
    """Writes into its state and continues; a second run of the first step waits until the test releases it."""

    @step
    async def one(self, ctx: Context[Any]) -> Next:
        notes: Notes = ctx.resources
        notes.begun.append("one")
        if notes.begun.count("one") > 1:
            await notes.again.wait()
        ctx.state["by"] = "one"
        return Next(self.two)

    @step
    async def two(self, ctx: Context[Any]) -> Done:
        ctx.resources.begun.append("two")
        return Done(ctx.state)


@dataclass
class Lost:
    """A worker that has lost the reply or the request of its first commit, before its committer checks again."""

    h: Harness
    worker: Worker
    walk: Any
    notes: Notes
    looking: Point

    async def has_committed(self) -> bool:
        return bool(await self.h.sql("select from stepwell.instances where committed_fence is not null"))


@asynccontextmanager
async def lost_commit(make_harness: MakeHarness, part: Part) -> AsyncIterator[Lost]:
    notes = Notes()
    times = {"lease": NEVER * 3, "heartbeat": NEVER, "reap": NEVER, "poll": SOON, "max_poll": SOON}
    h = await make_harness([Walk], resources=notes, **times)
    async with proxy_to(h.url) as proxy:
        engine = Engine(proxy.url, machines=[Walk], resources=notes, **times)  # type: ignore[arg-type]
        engine.on(["committed", "stale"], lambda event: notes.told.append(f"{event.name} {event.step}"))
        async with engine:
            walk = await h.engine.start(Walk)
            loss = proxy.lose(part, COMMIT_BARE)
            with armed("committer.before_commit", hold=True) as looking:
                async with engine.worker() as worker:
                    await looking.reached()
                    looking.release()
                    looking._gate.clear()  # so that the next check is held, too
                    await loss.happened.wait()
                    await looking.reached(2)
                    yield Lost(h, worker, walk, notes, looking)


async def test_an_outcome_cancelled_before_it_landed_is_not_reported_committed(
    make_harness: MakeHarness,
) -> None:
    async with lost_commit(make_harness, "request") as lost:
        await lost.h.sql(CANCEL, lost.walk.id)
        lost.looking.release()
        await eventually(lambda: lost.notes.told)

    assert (lost.worker.stats.committed, lost.worker.stats.stale) == (0, 1)
    assert lost.notes.told == ["stale one"]
    assert (await lost.walk.get()).status is Status.CANCELLED


async def test_an_outcome_that_landed_before_a_cancel_is_reported_committed(make_harness: MakeHarness) -> None:
    async with lost_commit(make_harness, "answer") as lost:
        await eventually(lost.has_committed)
        await lost.h.sql(CANCEL, lost.walk.id)
        lost.looking.release()
        await eventually(lambda: lost.notes.told)

    assert (lost.worker.stats.committed, lost.worker.stats.stale) == (1, 0)
    assert lost.notes.told == ["committed one"]


async def test_a_lost_commit_does_not_continue_with_a_newer_claim_of_its_worker(
    make_harness: MakeHarness,
) -> None:
    """Reaped and claimed again, the row executes on the same worker under the next fence, as after a run-ahead."""
    async with lost_commit(make_harness, "request") as lost:
        await lost.h.sql("update stepwell.workers set lease_until = '-infinity'")
        await lost.h.sql(REAP, [lost.walk.id], 10, "{}")
        await lost.h.sql("update stepwell.workers set lease_until = 'infinity'")
        await eventually(lambda: lost.notes.begun == ["one", "one"])
        lost.looking.release()
        await eventually(lambda: lost.worker.stats.stale + lost.worker.stats.committed)
        lost.notes.again.set()
        result = await lost.walk.result(timeout=30)
        await eventually(lambda: len(lost.notes.told) == 3)

    assert lost.notes.begun == ["one", "one", "two"]
    assert lost.notes.told == ["stale one", "committed one", "committed two"]
    assert (result, (await lost.walk.get()).state) == ({"by": "one"}, {"by": "one"})


class Child(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done()


class Split(Machine, initial="split"):
    """Spawns a child with a key: its outcome is committed apart from others."""

    @step
    async def split(self, ctx: Context[Any]) -> Spawn:
        ctx.resources.begun.append("split")
        return Spawn([Child.child(key="one")], then=self.join)

    @step
    async def join(self, ctx: Context[Any]) -> Done:
        return Done(len(ctx.children))


async def test_an_outcome_committed_apart_with_a_lost_reply_is_reported_committed(make_harness: MakeHarness) -> None:
    notes = Notes()
    h = await make_harness([Split, Child], resources=notes)
    async with proxy_to(h.url) as proxy, Engine(proxy.url, machines=[Split, Child], resources=notes) as engine:
        engine.on(["committed", "stale"], lambda event: notes.told.append(f"{event.name} {event.step}"))
        async with engine.worker() as worker:
            with armed("committer.before_commit", hold=True) as before:
                split = await h.engine.start(Split)
                await before.reached()
                loss = proxy.lose("answer", statement("instances/commit"), with_commit=True)
                before.release()
                async with asyncio.timeout(20):
                    await loss.happened.wait()
            result = await split.result(timeout=20)
            await eventually(lambda: len(notes.told) == 3)

    assert (result, notes.begun, worker.stats.stale) == (1, ["split"], 0)
    assert sorted(notes.told) == ["committed join", "committed split", "committed start"]
