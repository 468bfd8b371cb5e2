"""Notifications are hints: they are coalesced, and without them polling finds the work."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from datetime import timedelta

import asyncpg
import pytest

from stepwell import Context, Done, Engine, EngineClosed, Machine, SettingError, step
from stepwell._notify import notifier
from stepwell._store.connection import notifications
from tests.conftest import MakeHarness
from tests.support.proxy import proxy_to
from tests.support.waiting import eventually

NOWHERE = "postgresql://postgres@127.0.0.1:1/nowhere"
SOON, NEVER = timedelta(milliseconds=50), timedelta(hours=1)


class Quick(Machine):
    @step
    async def start(self, ctx: Context[None]) -> Done:
        return Done("quick")


async def test_simultaneous_wake_ups_of_one_queue_are_one_notification(make_harness: MakeHarness) -> None:
    """Scenario 173."""
    h = await make_harness([Quick])
    heard: list[str] = []
    listener = await asyncpg.connect(h.url)
    last = asyncio.Event()

    def hear(_connection: object, _pid: object, _channel: object, queue: object) -> None:
        heard.append(str(queue))
        if queue == "last":
            last.set()

    await listener.add_listener(f"stepwell_{notifications.WORK}", hear)
    notifier = h.engine._notifier
    assert notifier is not None
    for _ in range(10):
        notifier.notify_work("default")
    notifier.notify_work("last")
    await asyncio.wait_for(last.wait(), 30)
    await listener.close()

    assert heard == ["default", "last"]


async def test_polling_finds_the_work_of_another_process_without_a_listener(make_harness: MakeHarness) -> None:
    """Scenario 174."""
    h = await make_harness([Quick], listener_dsn=NOWHERE, poll=SOON, max_poll=SOON)

    async with h.another_engine() as elsewhere, h.engine.worker():
        quick = await elsewhere.start(Quick)
        result = await quick.result(timeout=30)

    assert result == "quick"


async def test_work_of_this_process_needs_neither_a_listener_nor_a_poll(make_harness: MakeHarness) -> None:
    """Scenario 174."""
    h = await make_harness([Quick], listener_dsn=NOWHERE, poll=NEVER, max_poll=NEVER)

    async with h.engine.worker():
        quick = await h.engine.start(Quick)
        result = await quick.result(timeout=30)

    assert result == "quick"


async def test_lost_notifications_are_logged_once_and_polling_finds_the_work(
    make_harness: MakeHarness, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(notifier, "PROBE_TIMEOUT", 0.05)
    monkeypatch.setattr(notifier, "PROBE_EVERY", 0.01)
    h = await make_harness([Quick])
    probes: list[str] = []

    async with proxy_to(h.url) as proxy:
        proxy.swallows_notices = True
        async with Engine(proxy.url, machines=[Quick], poll=SOON, max_poll=SOON) as engine, engine.worker():
            await eventually(lambda: _has_probed(engine, probes, times=3))
            quick = await h.engine.start(Quick)
            result = await quick.result(timeout=30)

    said = [record.message for record in caplog.records if "notifications do not arrive" in record.message]
    assert (result, len(said)) == ("quick", 1)


async def test_a_listener_with_its_own_dsn_bypasses_a_proxy_that_drops_notify(
    make_harness: MakeHarness,
) -> None:
    h = await make_harness([Quick])

    async with proxy_to(h.url) as proxy:
        proxy.swallows_notices = True
        aside = Engine(proxy.url, machines=[Quick], listener_dsn=h.url, poll=NEVER, max_poll=NEVER)
        async with aside as engine, engine.worker():
            quick = await h.engine.start(Quick)
            result = await quick.result(timeout=30)

    assert result == "quick"


async def test_a_listener_that_loses_its_connection_listens_again(make_harness: MakeHarness) -> None:
    """Scenario 173: a worker that never polls has no other way to find another process's work."""
    h = await make_harness([Quick], poll=NEVER, max_poll=NEVER)

    async with h.another_engine() as elsewhere, h.engine.worker():
        before = _last_probe(h.engine)
        await h.sql(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where datname = current_database() and application_name = 'stepwell listener'"
        )
        await eventually(lambda: _last_probe(h.engine) != before and _is_listening(h.engine))
        quick = await elsewhere.start(Quick)
        result = await quick.result(timeout=30)

    assert result == "quick"


def _has_probed(engine: Engine, seen: list[str], *, times: int) -> bool:
    if _last_probe(engine) not in seen:
        seen.append(_last_probe(engine))
    return len(seen) >= times


def _last_probe(engine: Engine) -> str:
    assert engine._notifier is not None
    return engine._notifier._listener._probe_id


def _is_listening(engine: Engine) -> bool:
    assert engine._notifier is not None
    return engine._notifier.is_listening


async def test_a_client_that_waits_when_its_engine_closes_gets_an_error(make_harness: MakeHarness) -> None:
    """Scenario 161."""
    h = await make_harness([Quick])
    quick = await h.engine.start(Quick)

    async with h.another_engine() as closing:
        waiting = asyncio.create_task(closing.handle(quick.id).result(timeout=60))
        await eventually(lambda: closing._operations.waiting._waiters._events)

    with pytest.raises(EngineClosed):
        await waiting


async def test_a_worker_without_queues_is_refused_and_its_engine_still_works(make_harness: MakeHarness) -> None:
    """Scenario 176."""
    h = await make_harness([Quick])

    with pytest.raises(SettingError, match="names no queue"):
        await AsyncExitStack().enter_async_context(h.engine.worker({}))
    async with h.engine.worker():
        quick = await h.engine.start(Quick)
        result = await quick.result(timeout=30)

    assert result == "quick"
