"""A network that forgets connections: a call soon has its result or its error, and a slow one is waited for."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from stepwell._process import probes
from stepwell.errors import DatabaseUnavailable
from tests.crash.dark_connections.site import ANSWER, MARGIN, Site, Walk


async def test_a_client_has_its_result_or_its_error_within_half_a_lease(site: Site) -> None:
    await asyncio.gather(*(site.engine.start(Walk) for _ in range(5)))

    site.proxy.forget()
    async with asyncio.timeout(ANSWER + MARGIN):
        with pytest.raises(DatabaseUnavailable):
            await site.engine.start(Walk)
    async with asyncio.timeout(ANSWER):
        after = await asyncio.gather(*(site.engine.start(Walk) for _ in range(5)))

    assert len({walk.id for walk in after}) == 5


async def test_after_a_call_that_met_darkness_no_other_call_meets_it(site: Site) -> None:
    async def ask() -> None:
        await asyncio.gather(*(site.engine.insights.list() for _ in range(8)))

    await ask()
    assert site.proxy.forget() >= 4  # connections that lie idle in the pool

    with pytest.raises(DatabaseUnavailable):
        await site.engine.insights.list()

    await ask()


async def test_a_cancelled_call_does_not_wait_for_a_dark_connection(site: Site) -> None:
    await site.engine.start(Walk)

    site.proxy.forget()
    began = asyncio.get_running_loop().time()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await site.engine.start(Walk)

    assert asyncio.get_running_loop().time() - began < ANSWER - 1.0


async def test_a_copy_of_wide_states_notices_darkness_within_half_a_lease(site: Site) -> None:
    await site.engine.start(Walk)
    forgotten = []

    async def forget(gap: dict[str, Any]) -> None:
        if str(gap["before"]).startswith("copy"):
            forgotten.append(site.proxy.forget())

    probes.hooks[probes.GAP] = forget
    try:
        async with asyncio.timeout(ANSWER + MARGIN):
            with pytest.raises(DatabaseUnavailable):
                await site.engine.start_many([Walk.child({"wide": "w" * 1000}) for _ in range(5_001)])
    finally:
        del probes.hooks[probes.GAP]

    assert any(forgotten)


async def test_a_copy_over_a_slow_connection_is_waited_for(site: Site) -> None:
    """The server waits longer for data than it may wait for nothing."""
    states = [{"wide": "w" * 10_000}] * 400 + [{"wide": "w" * 300}] * 4_601

    site.proxy.bytes_per_second = 4_000_000 / (ANSWER * 1.5)
    started = await site.engine.start_many([Walk.child(state) for state in states])

    assert len(started) == len(states)


@pytest.mark.parametrize("call", ["start_many", "retry"])
async def test_a_call_with_a_timeout_of_a_minute_notices_darkness_in_half_a_lease(site: Site, call: str) -> None:
    waiting = await site.engine.start(Walk, delay=timedelta(hours=1))
    calls = {
        "start_many": lambda: site.engine.start_many([Walk.child(key=f"k{n}") for n in range(1_001)]),
        "retry": lambda: site.engine.retry(waiting.id),
    }
    forgotten = []

    async def forget(gap: dict[str, Any]) -> None:
        if gap["before"] not in {None, "commit"} and gap["after"] is not None:
            forgotten.append(site.proxy.forget())

    probes.hooks[probes.GAP] = forget
    try:
        async with asyncio.timeout(ANSWER + MARGIN):
            with pytest.raises(DatabaseUnavailable):
                await calls[call]()
    finally:
        del probes.hooks[probes.GAP]

    assert any(forgotten)
