"""Transactional steps: what the author writes and what the step returns are committed together."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from stepwell import Await, Context, Done, Machine, Next, Retry, Spawn, Status, Stop, job, step
from stepwell.testing import armed
from tests.conftest import MakeHarness
from tests.features.transactional_steps.ledger import SESSIONS, note, notes, run


class Base(DeclarativeBase):
    pass


class Entry(Base):
    __tablename__ = "ledger"
    note: Mapped[str] = mapped_column(primary_key=True)


class Item(Machine):
    @step(transactional=True)
    async def start(self, ctx: Context[Any]) -> Done:
        await note(ctx.connection, f"item {ctx.state['number']}")
        return Done(ctx.state["number"])


class Order(Machine):
    """Every outcome, from a transactional step."""

    @step(transactional=True)
    async def start(self, ctx: Context[Any]) -> Next:
        await note(ctx.connection, "started")
        ctx.state["seen"] = ["start"]
        return Next(self.repeat)

    @step(transactional=True)
    async def repeat(self, ctx: Context[Any]) -> Any:
        await note(ctx.connection, f"attempt {ctx.attempt}")
        return Next(self.park) if ctx.attempt else Retry(timedelta(0))

    @step(transactional=True)
    async def park(self, ctx: Context[Any]) -> Await:
        await note(ctx.connection, "parked")
        return Await("paid", then=self.spread)

    @step(transactional=True)
    async def spread(self, ctx: Context[Any]) -> Spawn:
        await note(ctx.connection, f"paid {ctx.awaited[0].payload}")
        children = [Item.child({"number": n}, key=f"item:{n}", concurrency_key=f"item {n}") for n in range(3)]
        return Spawn(children, then=self.join)

    @step(transactional=True)
    async def join(self, ctx: Context[Any]) -> Done:
        await note(ctx.connection, "joined")
        return Done([ctx.state["seen"], [child.result for child in ctx.children]])

    @step(transactional=True)
    async def stop(self, ctx: Context[Any]) -> Stop:
        await note(ctx.connection, "stopped")
        return Stop("enough")


@pytest.mark.parametrize("session", SESSIONS)
async def test_every_outcome_is_committed_with_the_writes_of_its_step(make: MakeHarness, session: str) -> None:
    """Rules 2 to 6 hold as for other steps: retries, parks, signals, keyed children and joins."""
    h = await make([Order, Item], transactional_session=session)
    order = await h.engine.start(Order, {}, key="order:1", concurrency_key="account")
    stopped = await h.engine.start(Order, step="stop", concurrency_key="account")

    async with h.engine.worker() as worker:
        await order.wait(until="settled", timeout=30)
        await order.signal("paid", 100)
        result = await order.result(timeout=30)
        ended = await stopped.wait(timeout=30)

    assert result == [["start"], [0, 1, 2]]
    assert (ended.status, ended.error and ended.error.message) == (Status.FAILED, "enough")
    assert await notes(h) == [
        "attempt 0", "attempt 1", "item 0", "item 1", "item 2", "joined", "paid 100", "parked", "started", "stopped",
    ]  # fmt: skip
    assert (worker.stats.committed, worker.stats.stale, worker.stats.refused) == (10, 0, 0)


async def test_a_signal_that_came_while_the_step_ran_wakes_its_park(make: MakeHarness) -> None:
    """Rule 11: the park rechecks its inbox in the same transaction."""
    h = await make([Order, Item])
    order = await h.engine.start(Order, {}, step="park")

    with armed("transactional.returned", hold=True) as returned:
        async with h.engine.worker():
            await returned.reached()
            await order.signal("paid", 7)
            returned.release()
            await order.wait(timeout=30)

    assert "paid 7" in await notes(h)


@pytest.mark.parametrize("session", SESSIONS)
async def test_nothing_is_visible_before_the_commit_and_all_of_it_after(make: MakeHarness, session: str) -> None:
    h = await make([Order, Item], transactional_session=session)
    order = await h.engine.start(Order, {"seen": []}, step="join")

    with armed("transactional.written", hold=True) as written, armed("transactional.committed", hold=True) as committed:
        async with h.engine.worker():
            await written.reached()
            before = (await notes(h), (await order.get()).status)
            written.release()
            await committed.reached()
            after = (await notes(h), (await order.get()).status)
            committed.release()

    assert before == ([], Status.EXECUTING)
    assert after == (["joined"], Status.DONE)


async def test_a_job_can_be_transactional(make: MakeHarness) -> None:
    @job(transactional=True, max_attempts=2, backoff=lambda _: timedelta(0))
    async def pay(amount: int, ctx: Context[Any]) -> int:
        await note(ctx.connection, f"paid {amount}, attempt {ctx.attempt}")
        if not ctx.attempt:
            raise OSError("the bank is closed")
        return amount

    h = await make([pay])
    paid = await h.engine.start(pay, {"amount": 5})
    async with h.engine.worker():
        assert await paid.result(timeout=30) == 5

    assert await notes(h) == ["paid 5, attempt 1"]


async def test_the_step_receives_a_driver_connection_or_a_session_by_setting(make: MakeHarness) -> None:
    class Which(Machine):
        @step(transactional=True)
        async def start(self, ctx: Context[Any]) -> Done:
            if isinstance(ctx.connection, AsyncSession):
                ctx.connection.add(Entry(note="an object, flushed with the outcome"))
            async with asyncio.timeout(5):
                isolation = await run(ctx.connection, "show transaction_isolation")
            mark = await run(ctx.connection, "select current_setting('stepwell.step')")
            kinds = (asyncpg.Connection, AsyncSession)
            return Done([[isinstance(ctx.connection, kind) for kind in kinds], isolation, mark == f"{ctx.id}:1"])

    results = []
    for session in SESSIONS:
        h = await make([Which], transactional_session=session)
        which = await h.engine.start(Which)
        async with h.engine.worker():
            results.append(await which.result(timeout=30))

    assert results == [[[True, False], "read committed", True], [[False, True], "read committed", True]]
    assert await notes(h) == ["an object, flushed with the outcome"]
