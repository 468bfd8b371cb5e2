"""Notices are hints: they are coalesced, and without them polling finds the work."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from stepwell import Context, Done, EngineClosed, Machine, Status, step
from stepwell._store import notices
from tests.conftest import MakeHarness
from tests.support.waiting import eventually

NOWHERE = "postgresql://postgres@127.0.0.1:1/nowhere"
SOON, NEVER = timedelta(milliseconds=50), timedelta(hours=1)


class Quick(Machine):
    @step
    async def start(self, ctx: Context[None]) -> Done:
        return Done("quick")


async def test_announcements_of_one_queue_in_one_moment_are_one_notice(make_harness: MakeHarness) -> None:
    """Scenario 173."""
    h = await make_harness([Quick])
    heard: list[str] = []
    listener = await asyncpg.connect(h.url)
    last = asyncio.Event()

    def hear(_connection: object, _pid: object, _channel: object, queue: object) -> None:
        heard.append(str(queue))
        if queue == "last":
            last.set()

    await listener.add_listener(notices.WORK, hear)
    notifier = h.engine._notifier
    assert notifier is not None
    for _ in range(10):
        notifier.announce_work("default")
    notifier.announce_work("last")
    await asyncio.wait_for(last.wait(), 30)
    await listener.close()

    assert heard == ["default", "last"]


async def test_without_a_listener_polling_finds_the_work_of_another_process(make_harness: MakeHarness) -> None:
    """Scenario 174."""
    h = await make_harness([Quick], listener_dsn=NOWHERE, poll=SOON, max_poll=SOON)

    async with h.another_engine() as elsewhere, h.engine.worker():
        quick = await elsewhere.start(Quick)
        result = await quick.result(timeout=30)

    assert result == "quick"


async def test_without_a_listener_the_work_of_this_process_needs_no_poll(make_harness: MakeHarness) -> None:
    """Scenario 174."""
    h = await make_harness([Quick], listener_dsn=NOWHERE, poll=NEVER, max_poll=NEVER)

    async with h.engine.worker():
        quick = await h.engine.start(Quick)
        result = await quick.result(timeout=30)

    assert result == "quick"


async def test_a_client_that_waits_when_its_engine_is_closed_is_told(make_harness: MakeHarness) -> None:
    """Scenario 161."""
    h = await make_harness([Quick])
    quick = await h.engine.start(Quick)

    async with h.another_engine() as closing:
        waiting = asyncio.create_task(closing.handle(quick.id).result(timeout=60))
        await eventually(lambda: closing._doors.waiting._waiters._events)

    with pytest.raises(EngineClosed):
        await waiting


async def test_a_worker_without_queues_runs_nothing_and_its_engine_works_on(make_harness: MakeHarness) -> None:
    """Scenario 176."""
    h = await make_harness([Quick])

    async with h.engine.worker({}) as worker:
        quick = await h.engine.start(Quick)
        idle = await quick.wait(timeout=0)
    async with h.engine.worker():
        result = await quick.result(timeout=30)

    assert (idle.status, worker.tally.claimed, result) == (Status.RUNNABLE, 0, "quick")
