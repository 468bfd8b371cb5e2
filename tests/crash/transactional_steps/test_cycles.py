"""Transactional steps that hold one another's instances: Postgres sees the cycle, and one of them runs again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from stepwell import Await, Context, Done, Engine, Machine, Retry, Spawn, step
from stepwell.testing import armed
from tests.conftest import MakeHarness
from tests.support.waiting import eventually

WAITS = """
select from pg_stat_activity
where application_name like 'stepwell step%' and datname = current_database() and wait_event_type = 'Lock'
"""


@dataclass
class Meeting:
    """Where first runs wait until all of them have signalled, and what they saw."""

    engine: Engine | None = None
    arrived: asyncio.Barrier = field(default_factory=lambda: asyncio.Barrier(2))
    attempts: list[int] = field(default_factory=list)
    handled: list[str] = field(default_factory=list)


class Peer(Machine):
    """Signals another instance in its transaction, and awaits the other's signal."""

    @step(transactional=True)
    async def start(self, ctx: Context[Any]) -> Await:
        meeting: Meeting = ctx.resources
        assert meeting.engine is not None
        meeting.attempts.append(ctx.attempt)
        await meeting.engine.signal(ctx.state["peer"], "hello", ctx.id, connection=ctx.connection)
        if not ctx.attempt:
            await meeting.arrived.wait()
        return Await("hello", then=self.end)

    @step
    async def end(self, ctx: Context[Any]) -> Done:
        return Done([signal.payload for signal in ctx.awaited])

    async def handle(self, error: Exception, ctx: Context[Any]) -> Retry:
        ctx.resources.handled.append(repr(error))
        return Retry()


@pytest.mark.parametrize(
    ("session", "lease", "deadlock_timeout"),
    [("asyncpg", 60, "1s"), ("sqlalchemy", 60, "1s"), ("asyncpg", 3, "1s"), ("asyncpg", 60, "5s")],
)
async def test_two_transactional_steps_that_signal_each_other_both_commit(
    make_harness: MakeHarness, session: str, lease: int, deadlock_timeout: str
) -> None:
    """Whatever the lease is: a wait ends after the deadlock check, not before it."""
    meeting = Meeting()
    h = await make_harness(
        [Peer], resources=meeting, transactional_session=session, lease=timedelta(seconds=lease)
    )
    meeting.engine = h.engine
    [[database]] = await h.sql("select current_database()")
    await h.sql(f"alter database {database} set deadlock_timeout = '{deadlock_timeout}'")
    one = await h.engine.start(Peer, {"peer": 2})
    two = await h.engine.start(Peer, {"peer": 1})

    async with h.engine.worker() as worker:
        results = [await one.result(timeout=20), await two.result(timeout=20)]

    assert (one.id, two.id, results) == (1, 2, [[2], [1]])
    assert (sorted(meeting.attempts), meeting.handled) == ([0, 0, 1], [])
    assert worker.stats.stale == 0


class Parent(Machine):
    """Starts an instance with a key in its transaction, and spawns a child with the key that another one starts."""

    @step(transactional=True)
    async def start(self, ctx: Context[Any]) -> Spawn:
        meeting: Meeting = ctx.resources
        assert meeting.engine is not None
        meeting.attempts.append(ctx.attempt)
        await meeting.engine.start(
            Child, key=ctx.state["own"], key_scope="forever", if_exists="return", connection=ctx.connection
        )
        if not ctx.attempt:
            await meeting.arrived.wait()
        return Spawn([Child.child(key=ctx.state["other"], key_scope="forever")], then=self.end)

    @step
    async def end(self, ctx: Context[Any]) -> Done:
        return Done("ended")

    async def handle(self, error: Exception, ctx: Context[Any]) -> Retry:
        ctx.resources.handled.append(repr(error))
        return Retry()


class Child(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done()


async def test_transactional_steps_that_hold_each_others_child_keys_both_commit(
    make_harness: MakeHarness,
) -> None:
    meeting = Meeting()
    h = await make_harness([Parent, Child], resources=meeting)
    meeting.engine = h.engine
    one = await h.engine.start(Parent, {"own": "a", "other": "b"})
    two = await h.engine.start(Parent, {"own": "b", "other": "a"})

    async with h.engine.worker():
        results = [await one.result(timeout=20), await two.result(timeout=20)]

    assert results == ["ended"] * 2
    assert (sorted(meeting.attempts), meeting.handled) == ([0, 0, 1], [])


async def test_a_step_with_a_row_that_a_caller_locked_commits_once_the_row_is_free(make_harness: MakeHarness) -> None:
    """It waits for the caller, and keeps what its author wrote."""
    meeting = Meeting(arrived=asyncio.Barrier(1))
    h = await make_harness([Peer], resources=meeting)
    meeting.engine = h.engine
    other = await h.engine.start(Peer, {"peer": 1}, queue="nowhere")
    peer = await h.engine.start(Peer, {"peer": other.id})
    foreign = await asyncpg.connect(h.url)

    with armed("transactional.returned", hold=True) as returned:
        async with h.engine.worker():
            await returned.reached()
            async with foreign.transaction():
                await foreign.execute("select from stepwell.instances where id = $1 for no key update", peer.id)
                returned.release()
                await eventually(lambda: h.sql(WAITS))
            await peer.signal("hello", 7)
            result = await peer.result(timeout=15)
    await foreign.close()

    assert (result, meeting.attempts, meeting.handled) == ([7], [0], [])
    assert (await h.sql("select count(*) from stepwell.signals where instance_id = $1", other.id))[0][0] == 1
