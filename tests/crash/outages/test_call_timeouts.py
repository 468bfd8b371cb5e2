"""Every call of an engine ends within its timeout, whatever the server does; a wait continues through a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any, Literal

import asyncpg
import pytest

from stepwell import CallTimeout, Context, DatabaseError, Done, Engine, Handle, InvalidInput, Machine, step
from stepwell._client import wait
from stepwell._client.call_timeout import Deadline
from stepwell.embedded import EmbeddedServer
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.support.own_server import frozen, own_server
from tests.support.waiting import eventually

TIMEOUT = 0.5
LEAST_LOOK = 0.25  # seconds that a read has, however short the timeout of its wait is
LOADED = 8.0  # seconds that a loaded machine may add; without a timeout it is ten seconds and more
SOMEBODY = "00000000-0000-4000-8000-000000000000"

Call = Callable[[Engine, Handle[Any], float | None], Awaitable[object]]


class Quick(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done("quick")


CALLS: dict[str, Call] = {
    "start": lambda e, _, t: e.start(Quick, timeout=t),
    "start with a key": lambda e, _, t: e.start(Quick, key="k", timeout=t),
    "start_many": lambda e, _, t: e.start_many([Quick] * 3, timeout=t or TIMEOUT),
    "signal": lambda e, h, t: e.signal(h.id, "go", timeout=t),
    "signal_many": lambda e, h, t: e.signal_many([(h.id, "go")], timeout=t or TIMEOUT),
    "signal_or_start": lambda e, _, t: e.signal_or_start(Quick, key="k", signal="go", timeout=t),
    "complete": lambda e, _, t: e.complete(interaction=SOMEBODY, reply=1, timeout=t),
    "cancel": lambda e, h, t: e.cancel(h.id, timeout=t),
    "retry": lambda e, h, t: e.retry(h.id, timeout=t),
    "restart": lambda e, h, t: e.restart(h.id, step="start", timeout=t),
    "get": lambda e, h, t: e.get(h.id, timeout=t),
    "check": lambda e, _, t: e.check(timeout=t),
    "migrate": lambda e, _, t: e.migrate(timeout=t or TIMEOUT),
    "handle.get": lambda _, h, t: h.get(timeout=t),
    "handle.signal": lambda _, h, t: h.signal("go", timeout=t),
    "handle.cancel": lambda _, h, t: h.cancel(timeout=t),
    "insights.list": lambda e, _, t: e.insights.list(timeout=t),
    "insights.each": lambda e, _, t: anext(e.insights.each(timeout=t)),
    "insights.tree": lambda e, h, t: e.insights.tree(h.id, timeout=t),
    "insights.inbox": lambda e, h, t: e.insights.inbox(h.id, timeout=t),
    "insights.workers": lambda e, _, t: e.insights.workers(timeout=t),
    "interactions.pending": lambda e, _, t: e.interactions.pending(timeout=t),
    "interactions.get": lambda e, _, t: e.interactions.get(SOMEBODY, timeout=t),
    "interactions.token": lambda e, _, t: e.interactions.token(SOMEBODY, timeout=t),
    "limits.list": lambda e, _, t: e.limits.list(timeout=t),
    "limits.set": lambda e, _, t: e.limits.set("x", n=1, timeout=t),
    "limits.reset": lambda e, _, t: e.limits.reset("x", timeout=t),
    "queues.pause": lambda e, _, t: e.queues.pause("default", timeout=t),
    "queues.resume": lambda e, _, t: e.queues.resume("default", timeout=t),
    "queues.list": lambda e, _, t: e.queues.list(timeout=t),
}


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with own_server() as server:
        yield server


@pytest.fixture
async def own(server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Harness]:
    monkeypatch.setenv("STEPWELL_TEST_DATABASE_URL", server.url())
    async with Harness([Quick], call_timeout=timedelta(seconds=TIMEOUT)) as harness:
        yield harness


@pytest.mark.parametrize("timeout", [TIMEOUT, None])
async def test_every_call_to_a_frozen_server_ends_within_its_timeout(
    own: Harness, server: EmbeddedServer, timeout: float | None
) -> None:
    handle = await own.engine.start(Quick)

    with frozen(server):
        async with asyncio.timeout(TIMEOUT + LOADED):
            ended = await asyncio.gather(
                *(call(own.engine, handle, timeout) for call in CALLS.values()), return_exceptions=True
            )

    assert {name: type(error) for name, error in zip(CALLS, ended, strict=True)} == dict.fromkeys(CALLS, CallTimeout)
    assert (await own.engine.get(handle.id, timeout=30)).id == handle.id


@pytest.mark.parametrize("how", ["frozen", "stopped"])
async def test_400_callers_of_a_pool_of_10_all_end_within_their_timeout(
    own: Harness, server: EmbeddedServer, how: str
) -> None:
    await own.engine.start(Quick)

    async def call_all() -> list[object]:
        async with asyncio.timeout(TIMEOUT + LOADED):
            return await asyncio.gather(
                *(own.engine.start(Quick, key=str(n), timeout=TIMEOUT) for n in range(400)), return_exceptions=True
            )

    if how == "frozen":
        with frozen(server):
            ended = await call_all()
    else:
        await asyncio.to_thread(server.stop, "immediate")
        ended = await call_all()
        await asyncio.to_thread(server.start)

    assert all(isinstance(error, DatabaseError) for error in ended)
    assert how == "stopped" or any(isinstance(error, CallTimeout) for error in ended)


async def test_a_blocking_call_to_a_frozen_server_ends_within_its_timeout(
    own: Harness, server: EmbeddedServer
) -> None:
    handle = await own.engine.start(Quick)
    await asyncio.to_thread(own.engine.sync.get, handle.id)

    with frozen(server):
        async with asyncio.timeout(TIMEOUT + LOADED):
            with pytest.raises(CallTimeout, match=r"get did not end within 0\.5 s") as caught:
                await asyncio.to_thread(own.engine.sync.get, handle.id, timeout=TIMEOUT)

    assert (caught.value.call, caught.value.seconds) == ("get", TIMEOUT)
    await asyncio.to_thread(own.engine.sync.close)


async def test_first_blocking_calls_to_a_frozen_server_end_within_their_timeout(
    own: Harness, server: EmbeddedServer
) -> None:
    handle = await own.engine.start(Quick)
    fresh = Engine(own.url, machines=[Quick])
    calls: list[Callable[[], object]] = [
        lambda: fresh.sync.get(handle.id, timeout=TIMEOUT),
        lambda: fresh.sync.wait(handle.id, TIMEOUT),
        lambda: fresh.sync.queues.list(timeout=timedelta(seconds=TIMEOUT)),
        lambda: fresh.sync.handle(handle.id).result(TIMEOUT),
        lambda: fresh.sync.check(timeout=TIMEOUT),
    ]

    with frozen(server):
        async with asyncio.timeout(TIMEOUT + LOADED):  # opening alone takes ten seconds
            ended = await asyncio.gather(*(asyncio.to_thread(call) for call in calls), return_exceptions=True)

    assert [type(error) for error in ended] == [CallTimeout] * len(calls)
    assert (await asyncio.to_thread(fresh.sync.get, handle.id)).id == handle.id
    await asyncio.to_thread(fresh.sync.close)


async def test_a_blocking_call_that_opens_the_engine_keeps_its_other_arguments(own: Harness) -> None:
    handle = await own.engine.start(Quick)

    def wait(*args: Any, **kwargs: Any) -> str:
        engine = Engine(own.url, machines=[Quick]).sync
        try:
            return engine.handle(handle.id).wait(*args, **kwargs).status
        finally:
            engine.close()

    assert await asyncio.to_thread(wait, 2, "settled") == "runnable"
    assert await asyncio.to_thread(wait, timeout=2, until="settled") == "runnable"


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_a_wait_continues_through_a_restart_of_the_server(
    own: Harness, server: EmbeddedServer, mode: Literal["fast", "immediate"]
) -> None:
    handle = await own.engine.start(Quick)
    waiting = asyncio.create_task(handle.wait())
    by_result = asyncio.create_task(handle.result(timeout=60))
    await eventually(lambda: is_watched(own, handle.id))

    await asyncio.to_thread(server.stop, mode)
    begun_meanwhile = asyncio.create_task(handle.wait())
    with pytest.raises(DatabaseError):  # a read now meets the outage
        await own.engine.get(handle.id)
    await asyncio.to_thread(server.start)
    async with own.engine.worker():
        ended = await asyncio.wait_for(waiting, 60)

    assert (ended.result, await by_result, (await begun_meanwhile).result) == ("quick", "quick", "quick")


async def test_a_wait_during_an_outage_ends_with_its_own_timeout(own: Harness, server: EmbeddedServer) -> None:
    handle = await own.engine.start(Quick)
    known = asyncio.create_task(handle.wait(timeout=3.0))
    await eventually(lambda: is_watched(own, handle.id))

    await asyncio.to_thread(server.stop, "fast")
    try:
        with pytest.raises(CallTimeout, match=r"wait did not end within 0\.2 s"):
            await handle.wait(timeout=0.2)
        with pytest.raises(TimeoutError):
            await handle.result(timeout=0.2)
        as_it_was = await known
    finally:
        await asyncio.to_thread(server.start)

    assert as_it_was.status == "runnable"


@pytest.mark.parametrize("timeout", [0, 0.2, 0.6])
async def test_each_read_of_a_wait_is_bounded_by_the_rest_of_its_timeout(
    own: Harness, server: EmbeddedServer, timeout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = await own.engine.start(Quick)
    given: list[float] = []

    class Noted(Deadline):
        def __init__(self, call: str, seconds: float) -> None:
            given.append(seconds)
            super().__init__(call, seconds)

    monkeypatch.setattr(wait, "Deadline", Noted)
    with frozen(server), pytest.raises(CallTimeout, match=f"wait did not end within {timeout:g} s"):
        await handle.wait(timeout=timeout)

    assert max(given) <= max(timeout, LEAST_LOOK)


async def test_a_wait_ends_with_its_timeout_when_its_connections_go_dark(
    own: Harness, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = await own.engine.start(Quick)
    given: list[float] = []

    class Frozen(Deadline):
        """The server is frozen after the first read."""

        def __init__(self, call: str, seconds: float) -> None:
            given.append(seconds)
            if len(given) == 2:
                stack.enter_context(frozen(server))
            super().__init__(call, seconds)

    monkeypatch.setattr(wait, "Deadline", Frozen)
    async with Engine(own.url, machines=[Quick]) as engine:
        with ExitStack() as stack:
            instance = await engine.wait(handle.id, timeout=TIMEOUT)

    assert instance.status == "runnable"
    assert sum(given[1:]) <= TIMEOUT + LEAST_LOOK


async def test_a_timeout_with_a_callers_connection_is_refused(make_harness: MakeHarness) -> None:
    h = await make_harness([Quick])
    connection = await asyncpg.connect(h.url)
    try:
        async with connection.transaction():
            with pytest.raises(InvalidInput, match="timeout: a call on your connection is part of your transaction"):
                await h.engine.start(Quick, connection=connection, timeout=5)
            handle = await h.engine.start(Quick, connection=connection)
    finally:
        await connection.close()

    assert (await handle.get(timeout=timedelta(seconds=30))).status == "runnable"


@pytest.mark.parametrize("timeout", [-1, "5", True, float("inf"), float("nan")])
async def test_an_invalid_timeout_is_refused(make_harness: MakeHarness, timeout: Any) -> None:
    h = await make_harness([Quick])

    with pytest.raises(InvalidInput, match=r"^timeout: "):
        await h.engine.start(Quick, timeout=timeout)


async def is_watched(h: Harness, instance: int) -> bool:
    return bool(await h.sql("select from stepwell.instances where id = $1 and watched", instance))
