"""Waiting for an instance: in this process, in another, with and without patience."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from stepwell import Context, Done, InvalidInput, Machine, Next, NotFound, Status, step
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.support.waiting import eventually


class Gated(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        ctx.resources["entered"].set()
        await ctx.resources["gate"].wait()
        return Done("passed")

    @step
    async def quick(self, ctx: Context[Any]) -> Next:
        return Next(self.end)

    @step
    def end(self, ctx: Context[Any]) -> Done:
        return Done("quick")


async def gated_harness(make_harness: MakeHarness) -> tuple[Harness, dict[str, asyncio.Event]]:
    gates = {"entered": asyncio.Event(), "gate": asyncio.Event()}
    return await make_harness([Gated], resources=gates), gates


async def test_a_result_reaches_a_client_of_another_engine(make_harness: MakeHarness) -> None:
    """Scenarios 160 and 176."""
    h, gates = await gated_harness(make_harness)
    async with h.another_engine() as client, h.engine.worker():
        handle = await client.start(Gated)
        waiting = asyncio.create_task(handle.result(timeout=30))
        await gates["entered"].wait()
        gates["gate"].set()

        assert await waiting == "passed"


async def test_many_clients_wait_for_one_instance(make_harness: MakeHarness) -> None:
    h, gates = await gated_harness(make_harness)
    async with h.another_engine() as other, h.engine.worker():
        handle = await h.engine.start(Gated)
        waits = [asyncio.create_task(engine.wait(handle.id, timeout=30)) for engine in (h.engine, other) * 10]
        await gates["entered"].wait()
        gates["gate"].set()
        ended = await asyncio.gather(*waits)

    assert [snapshot.result for snapshot in ended] == ["passed"] * 20


async def test_a_result_of_an_ended_instance_returns_at_once(make_harness: MakeHarness) -> None:
    h, _ = await gated_harness(make_harness)
    handle = await h.engine.start(Gated, step="quick")
    async with h.engine.worker():
        await handle.result(timeout=30)

    assert (await handle.wait(timeout=0)).status is Status.DONE
    assert await handle.result(timeout=timedelta(0)) == "quick"


async def test_a_start_into_a_free_slot_of_a_busy_queue_runs_at_once(make_harness: MakeHarness) -> None:
    """Scenarios 155, 171 and 175: with polls of ten minutes, only notifications can have done it."""
    gates = {"entered": asyncio.Event(), "gate": asyncio.Event()}
    h = await make_harness([Gated], resources=gates, poll=timedelta(minutes=10), max_poll=timedelta(minutes=10))
    async with h.engine.worker({"default": 2}):
        busy = await h.engine.start(Gated)
        await gates["entered"].wait()
        quick = await h.engine.start(Gated, step="quick")
        result = await quick.result(timeout=30)
        gates["gate"].set()
        await busy.result(timeout=30)

    assert result == "quick"


async def test_a_wait_that_times_out_returns_the_current_snapshot(make_harness: MakeHarness) -> None:
    """Scenario 156."""
    h, _ = await gated_harness(make_harness)
    handle = await h.engine.start(Gated)

    snapshot = await handle.wait(timeout=0.02)

    assert (snapshot.id, snapshot.status) == (handle.id, Status.RUNNABLE)


async def test_a_result_that_times_out_shows_the_status_of_the_instance(make_harness: MakeHarness) -> None:
    h, _ = await gated_harness(make_harness)
    handle = await h.engine.start(Gated, delay=timedelta(hours=1))

    with pytest.raises(TimeoutError, match=r"Gated #1 is still runnable at step 'start', waiting for its time"):
        await handle.result(timeout=0.02)


async def test_waiting_until_settled_returns_at_the_end_too(make_harness: MakeHarness) -> None:
    h, _ = await gated_harness(make_harness)
    handle = await h.engine.start(Gated, step="quick")

    async with h.engine.worker():
        settled = await handle.wait(timeout=30, until="settled")

    assert settled.status is Status.DONE


async def test_waiting_until_settled_returns_for_a_parked_instance(make_harness: MakeHarness) -> None:
    h, _ = await gated_harness(make_harness)
    handle = await h.engine.start(Gated)
    await h.sql("update stepwell.instances set status = 'awaiting_signal', awaits = '{paid}'")

    settled = await handle.wait(until="settled")
    not_ended = await handle.wait(timeout=0.02)

    assert (settled.status, settled.waiting_for) == (Status.AWAITING_SIGNAL, "signal 'paid'")
    assert not_ended.status is Status.AWAITING_SIGNAL


async def test_a_wait_that_is_cancelled_leaves_nothing_behind(make_harness: MakeHarness) -> None:
    h, gates = await gated_harness(make_harness)
    handle = await h.engine.start(Gated)
    async with h.engine.worker():
        waiting = asyncio.create_task(handle.wait())
        await gates["entered"].wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        gates["gate"].set()

        assert await handle.result(timeout=30) == "passed"


async def test_a_waiting_client_survives_the_loss_of_its_connections(make_harness: MakeHarness) -> None:
    """Scenario 161."""
    h, gates = await gated_harness(make_harness)
    async with h.another_engine() as client, h.engine.worker():
        handle = await client.start(Gated)
        waiting = asyncio.create_task(handle.wait(timeout=30))
        await gates["entered"].wait()
        await eventually(lambda: h.sql("select from stepwell.instances where watched"))
        await h.sql(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where datname = current_database() and application_name = 'stepwell listener'"
        )
        gates["gate"].set()
        ended = await waiting

    assert ended.status is Status.DONE


@pytest.mark.parametrize("timeout", [-1, float("inf"), float("nan"), True, "5", timedelta(seconds=-1)])
async def test_an_invalid_timeout_is_refused(make_harness: MakeHarness, timeout: Any) -> None:
    h, _ = await gated_harness(make_harness)
    handle = await h.engine.start(Gated)

    with pytest.raises(InvalidInput, match=r"^timeout: "):
        await handle.wait(timeout=timeout)


async def test_an_invalid_end_condition_is_refused(make_harness: MakeHarness) -> None:
    h, _ = await gated_harness(make_harness)
    handle = await h.engine.start(Gated)

    with pytest.raises(InvalidInput, match="until: 'done' is neither 'terminal' nor 'settled'"):
        await handle.wait(until="done")  # type: ignore[arg-type]


@pytest.mark.parametrize("target", [999, 0, -1, 2**70, "nobody"])
async def test_an_unknown_target_is_not_found(make_harness: MakeHarness, target: int | str) -> None:
    """Scenario 159."""
    h, _ = await gated_harness(make_harness)

    with pytest.raises(NotFound) as got:
        await h.engine.get(target)
    with pytest.raises(NotFound):
        await h.engine.wait(target, timeout=5)

    assert got.value.target == target


@pytest.mark.parametrize("target", [None, True, 1.5, "", "a\x00", b"x"])
async def test_an_invalid_target_is_refused(make_harness: MakeHarness, target: Any) -> None:
    h, _ = await gated_harness(make_harness)

    with pytest.raises(InvalidInput):
        await h.engine.get(target)
