"""The time of the claim that ended an instance stays on its row."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

import pytest

from stepwell import Await, Context, Done, Machine, Outcome, step
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.support.waiting import eventually


class Errand(Machine):
    """Does what its state says."""

    @step
    async def start(self, ctx: Context[Any]) -> Outcome:
        match ctx.state["does"]:
            case "fails":
                raise ValueError("no")
            case "waits":
                return Await("go", then=self.start)
            case "runs":
                await asyncio.Event().wait()
        return Done()


async def claimed_at(h: Harness, id_: int) -> datetime | None:
    [row] = await h.sql("select claimed_at from stepwell.instances where id = $1", id_)
    found: datetime | None = row["claimed_at"]
    return found


@pytest.mark.parametrize(
    ("does", "is_kept"), [("ends", True), ("fails", True), ("waits", False), ("runs", True)]
)
async def test_a_row_that_ends_while_executing_keeps_its_claimed_at(
    make_harness: MakeHarness, does: str, is_kept: bool
) -> None:
    h = await make_harness([Errand])
    handle = await h.engine.start(Errand, {"does": does})

    async with h.engine.worker():
        await eventually(lambda: has_begun(h, handle.id))
        if does == "runs":
            await handle.cancel()
        ended = await handle.wait(timeout=20, until="settled")
        if does == "waits":
            await handle.cancel()

    kept = await claimed_at(h, handle.id)
    assert (kept is not None) is is_kept
    assert kept is None or ended.created_at <= kept <= ended.updated_at


async def test_a_retry_clears_claimed_at(make_harness: MakeHarness) -> None:
    h = await make_harness([Errand])
    handle = await h.engine.start(Errand, {"does": "fails"})
    await h.drain()
    failed = await claimed_at(h, handle.id)

    await h.engine.retry(handle.id)

    assert (failed is None, await claimed_at(h, handle.id)) == (False, None)


async def has_begun(h: Harness, id_: int) -> bool:
    [row] = await h.sql("select fence > 0 as has from stepwell.instances where id = $1", id_)
    return bool(row["has"])
