"""An idle worker's claim is the beginning of what it claims, and brings all that it begins with."""

from __future__ import annotations

import asyncio
from hashlib import sha512
from typing import Any

import pytest

from stepwell import Await, Context, Done, Machine, Spawn, step
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.features.interactions.machines import Batch, Expense
from tests.store.wire_log import Tally
from tests.support.waiting import eventually

HEAVY = b"".join(sha512(b"%d" % n).digest() for n in range(2_000)).hex()  # it can not be compressed
LARGE = "select to_jsonb(string_agg(md5(signals.id || '/' || n), '')) from generate_series(1, 2500) n"


class Held(Machine):
    """Runs until its gate is open."""

    @step
    async def start(self, ctx: Context[Any]) -> Done:
        await ctx.resources.wait()
        return Done(ctx.attempt)


class Listening(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Await:
        return Await("go", then=self.heard)

    @step
    async def heard(self, ctx: Context[Any]) -> Done:
        return Done([[signal.name, signal.payload, signal.dedup_key] for signal in ctx.inbox])


class Parent(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Spawn:
        return Spawn([Held.child()], then=self.joined)

    @step
    async def joined(self, ctx: Context[Any]) -> Done:
        return Done([child.result for child in ctx.children])


@pytest.fixture
def gate() -> asyncio.Event:
    return asyncio.Event()


@pytest.fixture
async def h(make_harness: MakeHarness, gate: asyncio.Event) -> Harness:
    return await make_harness([Held, Listening, Parent, Expense, Batch], resources=gate)


async def begun(h: Harness, id_: int) -> bool:
    """Whether a crash now would be counted."""
    rows = await h.sql(
        "select i.claimed_at <= w.begun_at and not i.id = any (w.waiting) as begun "
        "from stepwell.instances i join stepwell.workers w on w.id = i.worker_id where i.id = $1", id_
    )  # fmt: skip
    return bool(rows and rows[0]["begun"])


async def test_a_claim_of_an_idle_worker_is_marked_started_by_the_claim(h: Harness, gate: asyncio.Event) -> None:
    """What comes while a claim is under way that has found nothing may begin the usual way: it is tried again then."""
    async with h.engine.worker() as worker:
        tally = Tally(worker._database)
        await tally.attach()

        async def begins_at_once() -> bool:
            tally.clear()
            gate.clear()
            held = await h.engine.start(Held)
            await eventually(lambda: begun(h, held.id))
            is_noted_apart = "workers/mark_started" in tally.sent
            gate.set()
            await held.result(timeout=20)
            return not is_noted_apart

        await eventually(begins_at_once)


async def test_a_claim_that_waits_for_a_slot_is_not_marked_started(
    make_harness: MakeHarness, gate: asyncio.Event
) -> None:
    h = await make_harness([Held], resources=gate, prefetch=1)
    first, second = await h.engine.start_many([Held] * 2)
    async with h.engine.worker({"default": 1}):
        await eventually(lambda: h.sql("select from stepwell.instances where id = $1 and fence = 1", second.id))

        await eventually(lambda: begun(h, first.id))
        assert not await begun(h, second.id)
        gate.set()
        assert [await one.result(timeout=20) for one in (first, second)] == [0, 0]


async def test_an_inbox_is_returned_with_the_claim(h: Harness) -> None:
    async with h.engine.worker():
        listening = await h.engine.start(Listening)
        await listening.wait(timeout=20, until="settled")
    await listening.signal("other", {"n": [1, "\N{SNOWMAN}"]})
    await listening.signal("go", None, dedup_key="once")

    async with h.engine.worker() as worker:
        result = await listening.result(timeout=20)

    assert worker.stats.steps == 1
    assert result == [["other", {"n": [1, "\N{SNOWMAN}"]}, None], ["go", None, "once"]]


@pytest.mark.parametrize(
    ("number", "change"),
    [(40, "sent_at = sent_at"), (3, "sent_at = 'infinity'"), (3, f"payload = ({LARGE})")],
    ids=["many", "unreadable", "large"],
)
async def test_an_inbox_the_claim_cannot_return_is_read_apart_and_delays_no_step(
    h: Harness, gate: asyncio.Event, number: int, change: str
) -> None:
    gate.set()
    async with h.engine.worker() as worker:
        listening = await h.engine.start(Listening)
        await listening.wait(timeout=20, until="settled")
        tally = Tally(worker._database)
        await tally.attach()
        await h.engine.queues.pause("default")
        await h.engine.signal_many([(listening.id, "go", n) for n in range(number)])
        await h.sql(f"update stepwell.signals set {change}")
        neighbour = await h.engine.start(Held)

        await h.engine.queues.resume("default")
        heard = await listening.result(timeout=20)
        await neighbour.result(timeout=20)

    assert len(heard) == number
    assert "signals/load" in tally.sent
    assert worker.stats.orphans == 0


@pytest.mark.parametrize(("note", "is_read"), [("", False), (HEAVY, True)])
async def test_the_reply_to_one_interaction_comes_with_the_claim_unless_large(
    h: Harness, note: str, *, is_read: bool
) -> None:
    async with h.engine.worker() as worker:
        expense = await h.engine.start(Expense, {"amount": 7})
        await expense.wait(timeout=20, until="settled")
        tally = Tally(worker._database)
        await tally.attach()
        [question] = (await h.engine.interactions.pending()).items

        await h.engine.complete(interaction=question.id, reply={"approved": True, "note": note}, actor="ana")
        result = await expense.result(timeout=20)

    assert result == {"status": "completed", "approved": True, "actor": "ana", "type": "Decision"}
    assert ["await_units/load" in tally.sent, "workers/mark_started" in tally.sent] == [is_read] * 2


async def test_many_replies_and_children_are_read_when_their_step_starts(h: Harness, gate: asyncio.Event) -> None:
    gate.set()
    async with h.engine.worker():
        batch = await h.engine.start(Batch, {"items": [1, 2]})
        await batch.wait(timeout=20, until="settled")
        for question in (await h.engine.interactions.pending()).items:
            await h.engine.complete(interaction=question.id, reply=1)
        parent = await h.engine.start(Parent)

        assert await parent.result(timeout=20) == [0]
        assert (await batch.wait(timeout=20)).status == "done"
