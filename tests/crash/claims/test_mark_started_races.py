"""Marking claims started, against what takes a claim away: cancel, restart and the reaper."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from stepwell import Context, Done, Machine, Status, step
from stepwell._core.limits.requirement import LimitRequirement
from stepwell._store import operators
from stepwell.testing import Harness, armed
from tests.conftest import MakeHarness
from tests.support.race import Plain, Race
from tests.support.waiting import eventually

NEVER = timedelta(hours=1)
CANCEL = "select stepwell.cancel(id => $1, notify => false)"


class Paying(Machine, initial="charge"):
    """Notes the state with which it starts, and waits for its gate if its state says so."""

    @step
    async def charge(self, ctx: Context[Any]) -> Done:
        return await self._note(ctx, "charge")

    @step
    async def confirm(self, ctx: Context[Any]) -> Done:
        return await self._note(ctx, "confirm")

    async def _note(self, ctx: Context[Any], name: str) -> Done:
        ctx.resources["begun"].append((name, ctx.state["account"]))
        if ctx.state["account"] == "first":
            await ctx.resources["gate"].wait()
        return Done()


@pytest.fixture
def resources() -> dict[str, Any]:
    return {"begun": [], "gate": asyncio.Event()}


async def harness(make_harness: MakeHarness, resources: dict[str, Any], heartbeat: timedelta = NEVER) -> Harness:
    """An engine with workers that claim one instance more than they have slots for."""
    times = {"lease": NEVER * 3, "heartbeat": heartbeat, "poll": NEVER, "max_poll": NEVER}
    return await make_harness([Paying], resources=resources, prefetch=1, **times)


async def start(h: Harness, account: str) -> Any:
    return await h.engine.start(Paying, {"account": account})


async def restart_without_a_notice(h: Harness, instance_id: int) -> None:
    """What `engine.restart` does in the database."""
    await operators.restart(
        h.engine._opened, instance_id, None, "confirm", '{"account": "new"}', None, LimitRequirement(), reason=None,
        by=None
    )


async def test_a_claim_cancelled_without_a_notification_does_not_start(
    make_harness: MakeHarness, resources: dict[str, Any]
) -> None:
    h = await harness(make_harness, resources)

    async with h.engine.worker({"default": 1}) as worker:
        await start(h, "first")
        await eventually(lambda: resources["begun"])
        second = await start(h, "second")
        await eventually(lambda: worker.running == 2)

        await h.sql(CANCEL, second.id)
        resources["gate"].set()
        await eventually(lambda: worker.running == 0)
        third = await start(h, "third")  # the slot is free
        await third.result(timeout=30)

    assert resources["begun"] == [("charge", "first"), ("charge", "third")]
    assert ((await second.get()).status, worker.stats.stale) == (Status.CANCELLED, 0)


async def test_a_claim_from_before_a_restart_does_not_start_with_the_new_state(
    make_harness: MakeHarness, resources: dict[str, Any]
) -> None:
    h = await harness(make_harness, resources)

    async with h.engine.worker({"default": 1}) as worker:
        await start(h, "first")
        await eventually(lambda: resources["begun"])
        second = await start(h, "second")
        await eventually(lambda: worker.running == 2)

        with armed("claimer.before_claim", hold=True) as claiming:
            await restart_without_a_notice(h, second.id)
            resources["gate"].set()
            await eventually(lambda: worker.running == 0)
            claiming.release()
        await second.result(timeout=30)

    assert resources["begun"] == [("charge", "first"), ("confirm", "new")]
    assert worker.stats.stale == 0


@pytest.mark.parametrize(
    "lose",
    [CANCEL, "update stepwell.instances set fence = fence + 1 where id = $1"],
    ids=["cancelled", "claimed again by the same worker"],
)
async def test_of_claims_marked_started_together_only_valid_ones_start(race: Race, lose: str) -> None:
    """A claim is lost even if its worker holds other rows, or the same row by a later fence."""
    for _ in range(2):
        await race.harness.engine.start(Plain, {"by": "start"})
    session = await race.session()
    lost, held = (await race.claim(session, await race.worker(session))).claims

    await race.harness.sql(lose, lost.id)
    begun = await race.begin(session, [lost, held])

    assert begun is not None
    assert begun.states == {held.id: '{"by": "start"}'}


async def test_the_heartbeat_drops_a_buffered_claim_that_was_cancelled(
    make_harness: MakeHarness, resources: dict[str, Any]
) -> None:
    h = await harness(make_harness, resources, timedelta(milliseconds=20))

    async with h.engine.worker({"default": 1}) as worker:
        await start(h, "first")
        await eventually(lambda: resources["begun"])
        second = await start(h, "second")
        await eventually(lambda: worker.running == 2)

        await h.sql(CANCEL, second.id)
        await eventually(lambda: worker.running == 1)
        third = await start(h, "third")  # its place in the buffer is free
        await eventually(lambda: worker.running == 2)
        resources["gate"].set()
        await third.result(timeout=30)

    assert resources["begun"] == [("charge", "first"), ("charge", "third")]
