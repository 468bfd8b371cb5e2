"""Rules 2, 4, 6 and 12: what an await parks on, what its outcome consumes, and what stays."""

from __future__ import annotations

import asyncio
from typing import Any

from stepwell import Await, Context, Done, Machine, Next, Retry, Status, Stop, step
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.features.signals.looks import inbox
from tests.features.signals.machines import told
from tests.support.waiting import eventually


class Review(Machine, initial="ask"):
    """Awaits one of two names, and continues at another step."""

    @step
    async def ask(self, ctx: Context[Any]) -> Await:
        return Await("approve", "reject", then=self.decide)

    @step
    async def decide(self, ctx: Context[Any]) -> Next:
        if gate := ctx.resources:
            gate["entered"].set()
            await gate["open"].wait()
        return Next(self.tell, state={"decided": told(ctx.awaited), "attempt": ctx.attempt})

    @step
    async def tell(self, ctx: Context[Any]) -> Await:
        return Await("over", then=self.end)

    @step
    async def end(self, ctx: Context[Any]) -> Done:
        return Done({**ctx.state, "inbox": told(ctx.inbox)})


async def is_consumed(h: Harness, instance_id: int) -> bool:
    """Whether nothing is left in an inbox."""
    return not await inbox(h, instance_id)


async def test_rule_12_any_of_several_awaited_names_wakes(make_harness: MakeHarness) -> None:
    """Rule 12, Scenario 31: awaiting {approve, reject}, reject arrives: the step branches on its name."""
    h = await make_harness([Review])
    review = await h.engine.start(Review)

    async with h.engine.worker():
        await review.wait(30, until="settled")
        await review.signal("reject", "too dear")
        await review.signal("over")
        result = await review.result(30)

    assert result["decided"] == [["reject", "too dear"]]


async def test_rule_2_next_consumes_exactly_the_signals_of_its_step(make_harness: MakeHarness) -> None:
    """Rule 2, Scenarios 2 and 32: of approve and other, progress consumes approve only; awaits are cleared."""
    h = await make_harness([Review])
    review = await h.engine.start(Review)
    await h.engine.signal_many([(review.id, "other", 1), (review.id, "approve", 2)])

    async with h.engine.worker():
        parked = await review.wait(30, until="settled")
        left = await inbox(h, review.id)
        await review.signal("over")
        result = await review.result(30)

    assert (parked.awaits, left) == (("over",), [("other", False)])
    assert result["inbox"] == [["other", 1], ["over", None]]


async def test_rule_2_a_latecomer_of_the_awaited_name_survives(make_harness: MakeHarness) -> None:
    """Rule 2, Scenario 33: a second approve arrives during the step: progress does not consume it."""
    gate = {"entered": asyncio.Event(), "open": asyncio.Event()}
    h = await make_harness([Review], resources=gate)
    review = await h.engine.start(Review)
    await review.signal("approve", 1)

    async with h.engine.worker():
        await gate["entered"].wait()
        await review.signal("approve", 2)
        gate["open"].set()
        await review.wait(30, until="settled")
        await review.signal("over")
        result = await review.result(30)

    assert result == {"decided": [["approve", 1]], "attempt": 0, "inbox": [["approve", 2], ["over", None]]}


async def test_rule_6_done_drops_the_inbox(make_harness: MakeHarness) -> None:
    """Rule 6, Scenarios 5 and 34: terminal with leftovers: the inbox is empty."""
    h = await make_harness([Review])
    review = await h.engine.start(Review)
    await h.engine.signal_many(
        [(review.id, "other"), (review.id, "approve", 1, "evt-1"), (review.id, "approve"), (review.id, "over")]
    )

    async with h.engine.worker():
        ended = await review.wait(30)

    assert (ended.status, await inbox(h, review.id)) == (Status.DONE, [])


async def test_rule_6_done_drops_signals_that_came_while_its_step_ran(make_harness: MakeHarness) -> None:
    """Rule 6, Scenario 34: also the inbox of an instance that had none when its last step began."""
    entered, gate = asyncio.Event(), asyncio.Event()

    class Plain(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Done:
            entered.set()
            await gate.wait()
            return Done()

    h = await make_harness([Plain])
    plain = await h.engine.start(Plain)

    async with h.engine.worker():
        await entered.wait()
        await plain.signal("late")
        gate.set()
        await plain.result(30)

    assert await inbox(h, plain.id) == []


async def test_rule_6_a_failed_instance_keeps_its_inbox_closed(make_harness: MakeHarness) -> None:
    """Rule 6: a failed instance keeps its inbox, for a retry (Scenario 6 of the reference empties it)."""

    class Failing(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Await:
            return Await("go", then=self.fail)

        @step
        async def fail(self, ctx: Context[Any]) -> Stop:
            return Stop("no luck")

    h = await make_harness([Failing])
    failing = await h.engine.start(Failing)
    await h.engine.signal_many([(failing.id, "go"), (failing.id, "other")])

    async with h.engine.worker():
        ended = await failing.wait(30)

    assert (ended.status, ended.awaits) == (Status.FAILED, ("go",))
    assert await inbox(h, failing.id) == [("go", False), ("other", False)]


async def test_rule_4_an_await_saves_the_state_and_starts_attempts_again(make_harness: MakeHarness) -> None:
    """Rule 4: Await commits the state, its own or one given with it; the attempt is 0 again."""

    class Saving(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Await:
            if ctx.attempt < 2:
                raise LookupError
            ctx.state["changed"] = True
            return Await("go", then="middle")

        @step
        async def middle(self, ctx: Context[Any]) -> Await:
            return Await("go", then=self.end, state={"seen": dict(ctx.state), "attempt": ctx.attempt}, consume=True)

        @step
        async def end(self, ctx: Context[Any]) -> Done:
            return Done(ctx.state)

        async def handle(self, error: Exception, ctx: Context[Any]) -> Retry:
            return Retry()

    h = await make_harness([Saving])
    saving = await h.engine.start(Saving, {"given": 1})

    async with h.engine.worker():
        parked = await saving.wait(30, until="settled")
        await saving.signal("go")
        await eventually(lambda: is_consumed(h, saving.id))
        await saving.signal("go")
        result = await saving.result(30)

    assert (parked.attempt, parked.state, parked.error) == (0, {"given": 1, "changed": True}, None)
    assert result == {"seen": {"given": 1, "changed": True}, "attempt": 0}


async def test_rule_4_a_name_given_twice_is_awaited_once(make_harness: MakeHarness) -> None:
    """Rule 4: the names are a set, in the order they were given."""

    class Twice(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Await:
            return Await("b", "a", "b", then=self.start)

    h = await make_harness([Twice])
    twice = await h.engine.start(Twice)

    async with h.engine.worker():
        parked = await twice.wait(30, until="settled")

    assert parked.awaits == ("b", "a")


async def test_rule_4_a_sync_step_awaits_the_same(make_harness: MakeHarness) -> None:
    """Rule 4: a plain def step may park, and be woken."""

    class Sync(Machine):
        @step
        def start(self, ctx: Context[Any]) -> Await:
            return Await("go", then=self.woken)

        @step
        def woken(self, ctx: Context[Any]) -> Done:
            return Done(told(ctx.awaited))

    h = await make_harness([Sync])
    sync = await h.engine.start(Sync)

    async with h.engine.worker():
        await sync.wait(30, until="settled")
        await sync.signal("go", 5)
        result = await sync.result(30)

    assert result == [["go", 5]]
