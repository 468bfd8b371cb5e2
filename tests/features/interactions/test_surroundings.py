"""Interactions beside everything else of an instance: signals, children, keys, fair queues, transactions, versions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell import Ask, Await, Context, Done, Engine, InvalidReply, Machine, Outcome, Spawn, step
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.features.interactions.askers import asker
from tests.features.interactions.kinds import Score
from tests.features.interactions.looks import SECRET, asked, interaction_rows, pending
from tests.support.waiting import eventually


class Listener(Machine):
    """Waits for a signal, then asks, then waits for a signal again."""

    @step
    async def start(self, ctx: Context[Any]) -> Outcome:
        return Await("go", then=self.ask)

    @step
    async def ask(self, ctx: Context[Any]) -> Outcome:
        return Ask("manual", [s.payload for s in ctx.awaited], reply=str, then=self.answered)

    @step
    async def answered(self, ctx: Context[Any]) -> Outcome:
        return Await("go", then=self.end, state={"seen": [ctx.reply.value, [s.payload for s in ctx.inbox]]})

    @step
    async def end(self, ctx: Context[Any]) -> Outcome:
        return Done([*ctx.state["seen"], [s.payload for s in ctx.awaited], ctx.reply])


class Asking(Machine):
    @step
    def start(self, ctx: Context[Any]) -> Outcome:
        return Ask("manual", ctx.state, reply=int, then=self.end)

    @step
    def end(self, ctx: Context[Any]) -> Outcome:
        return Done(ctx.reply.value)


class Family(Machine):
    """Its children ask; then it asks itself."""

    @step
    async def start(self, ctx: Context[Any]) -> Outcome:
        return Spawn([Asking.child({"n": n}) for n in range(2)], then=self.ask)

    @step
    async def ask(self, ctx: Context[Any]) -> Outcome:
        return Ask("manual", [child.result for child in ctx.children], reply=int, then=self.end)

    @step
    async def end(self, ctx: Context[Any]) -> Outcome:
        return Done([ctx.reply.value, len(ctx.children)])


class Booking(Machine):
    """Asks with its own writes in one transaction."""

    @step(transactional=True)
    async def start(self, ctx: Context[Any]) -> Outcome:
        await ctx.connection.execute("insert into public.bookings values ('asked')")
        if ctx.state["each"]:
            return Ask.each("manual", [1, 2], reply=int, then=self.end)
        if ctx.state["fails"]:
            return Ask("nowhere", {}, reply=int, then=self.end)
        return Ask("manual", {}, reply=int, then=self.end)

    @step(transactional=True)
    async def end(self, ctx: Context[Any]) -> Outcome:
        await ctx.connection.execute("insert into public.bookings values ($1)", f"answered {ctx.reply.value}")
        return Done(ctx.reply.value)


class Old(Machine, name="Moving"):
    @step
    async def start(self, ctx: Context[Any]) -> Outcome:
        return Ask("manual", {}, reply=list[Score], then=self.rate)

    @step
    async def rate(self, ctx: Context[Any]) -> Outcome:
        return Done("old")


class New(Machine, name="Moving", version=2):
    @step
    async def start(self, ctx: Context[Any]) -> Outcome:
        return Done("new")

    @step
    async def judge(self, ctx: Context[Any]) -> Outcome:
        return Done([score.name for score in ctx.reply.value])

    def upcast(self, state: Any, step: str, from_version: int) -> tuple[Any, str]:
        return state, "judge"


async def test_signals_wait_while_an_interaction_is_open_for_the_next_await(make_harness: MakeHarness) -> None:
    """An Ask consumes the signals of its step, as every park does; a later signal stays and wakes nothing."""
    h = await make_harness([Listener])
    listener = await h.engine.start(Listener)
    await h.drain()
    await listener.signal("go", 1)
    await h.drain()
    await listener.signal("go", 2)

    assert (await h.drain()).total == 0
    [interaction] = await pending(h)
    await h.engine.complete(interaction=interaction.id, reply="yes")
    await h.drain()

    assert interaction.request == [1]
    await h.assert_done(listener, ["yes", [2], [2], None])


async def test_children_may_ask_and_a_parent_after_them(make_harness: MakeHarness) -> None:
    """A join waits for children that wait for replies; sync steps ask as async ones do."""
    h = await make_harness([Family, Asking])
    family = await h.engine.start(Family)
    await h.drain()

    for interaction in await pending(h):
        await h.engine.complete(interaction=interaction.id, reply=interaction.request["n"] + 10)
    await h.drain()
    [interaction] = await pending(h)
    await h.engine.complete(interaction=interaction.id, reply=7)
    await h.drain()

    assert interaction.request == [10, 11]
    await h.assert_done(family, [7, 2])


async def test_an_instance_that_waits_for_a_reply_holds_no_key_and_says_why(make_harness: MakeHarness) -> None:
    """Rule 22: parked is parked; an operator sees the transport, and how many replies are missing."""
    h = await make_harness([Asking])
    first, interaction = await asked(h, Asking, {"n": 1}, concurrency_key="account:7")

    second, other = await asked(h, Asking, {"n": 2}, concurrency_key="account:7")

    waiting = await first.get()
    assert (waiting.asked_over, waiting.answers_pending) == ("manual", 1)
    for id_ in (other.id, interaction.id):
        await h.engine.complete(interaction=id_, reply=1)
    await h.drain()
    await h.assert_done(first)
    await h.assert_done(second)


async def test_instances_of_a_fair_queue_receive_replies_too() -> None:
    """A claim from a fair queue has the unit with it. (In a database of its own: a queue stays fair.)"""
    async with Harness([Asking], fair_by={"default": "tenant"}) as h, h.engine.worker():
        handle = await h.engine.start(Asking, {"n": 1}, tenant="acme")
        [interaction] = await eventually(lambda: pending(h, tenant="acme"))
        await h.engine.complete(interaction=interaction.id, reply=5, tenant="acme")
        assert await handle.result(30) == 5


async def test_a_transactional_step_asks_with_its_own_writes(make_harness: MakeHarness) -> None:
    """Both or neither: the interaction exists if the writes do; Ask.each, with its own transactions, is refused."""
    h = await make_harness([Booking])
    await h.sql("create table public.bookings (note text)")  # its database goes with the module
    asking = await h.engine.start(Booking, {"each": False, "fails": False})
    each = await h.engine.start(Booking, {"each": True, "fails": False})
    failing = await h.engine.start(Booking, {"each": False, "fails": True})
    await h.drain()

    [interaction] = await pending(h)
    await h.engine.complete(interaction=interaction.id, reply=3)
    await h.drain()

    await h.assert_done(asking, 3)
    await h.assert_failed(each, "a transactional step cannot return Ask.each")
    await h.assert_failed(failing, "no transport is called 'nowhere'")
    assert await interaction_rows(h, each.id) == await interaction_rows(h, failing.id) == []
    notes = [row["note"] for row in await h.sql("select note from public.bookings")]
    assert notes == ["asked", "answered 3"]


async def test_an_interaction_outlives_a_deploy(make_harness: MakeHarness) -> None:
    """Rule 29: asked by version 1, completed when only version 2 runs: its upcast's step has the typed reply."""
    h = await make_harness([Old])
    moving, interaction = await asked(h, Old)

    async with Engine(h.url, machines=[New]) as after, after.worker():
        await after.complete(interaction=interaction.id, reply=[{"name": "a"}, {"name": "b"}])

        assert await moving.result(30) == ["a", "b"]


async def test_an_engine_without_the_machine_checks_replies_by_the_schema(make_harness: MakeHarness) -> None:
    """Scenario 65: the caller of complete need not know the machine; an invalid reply is refused all the same."""
    machine = asker(reply=Score)
    h = await make_harness([machine])
    handle, interaction = await asked(h, machine)
    async with Engine(h.url) as stranger:
        with pytest.raises(Exception, match=r"reply\.points: expected integer, got string"):
            await stranger.complete(interaction=interaction.id, reply={"name": "a", "points": "x"})

        await stranger.complete(interaction=interaction.id, reply={"name": "a", "points": 1})

    await h.drain()
    await h.assert_done(handle, "completed")


async def test_blocking_code_lists_and_completes(make_harness: MakeHarness) -> None:
    """Scenarios 14, 61, 81 from a thread without a loop: the same calls, the same refusals."""
    h = await make_harness([Asking], token_keys={"new": SECRET})
    handle, interaction = await asked(h, Asking, {"n": 1})

    def work() -> tuple[Any, Any]:
        sync = h.engine.sync
        [listed] = sync.interactions.pending(limit=5).items
        with pytest.raises(InvalidReply):
            sync.complete(interaction=listed.id, reply="five")
        return listed, sync.complete(token=sync.interactions.token(listed.id), reply=5)

    listed, completion = await asyncio.to_thread(work)

    assert listed == interaction
    assert (completion.interaction_id, completion.instance_id, completion.is_duplicate) == (
        interaction.id, handle.id, False,
    )  # fmt: skip
    await h.drain()
    await h.assert_done(handle, 5)
