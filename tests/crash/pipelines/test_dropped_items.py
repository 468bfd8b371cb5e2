"""Items that are cancelled with their unit pass on at once what they held: a concurrency key, a slot of a limit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from stepwell import ConcurrencyLimit
from stepwell._core.instance import Claim
from stepwell._store import limits
from tests.crash.pipelines.test_item_races import cancel, items
from tests.support.asked import SOON, Asked, Asker
from tests.support.contest import Contestant, stopped
from tests.support.waiting import eventually

End = Callable[[Asked, Contestant, int, Claim], Awaitable[Any]]


async def fail_another(asked: Asked, by: Contestant, parent: int, other: Claim) -> None:
    await asked.flush(by, stopped(other))


async def crash_another(asked: Asked, by: Contestant, parent: int, other: Claim) -> None:
    await asked.end_lease(other)
    assert await asked.reap(by, [other], max_crashes=1) == [other.id]


async def cancel_another(asked: Asked, by: Contestant, parent: int, other: Claim) -> None:
    assert await cancel(asked, by, other.id)


async def cancel_parent(asked: Asked, by: Contestant, parent: int, other: Claim) -> None:
    assert await cancel(asked, by, parent, cascade=False)


async def restart_parent(asked: Asked, by: Contestant, parent: int, other: Claim) -> None:
    await asked.operating(by).restart(parent, "start", {}, None, by=None, tenant=None)


async def expire(asked: Asked, by: Contestant, parent: int, other: Claim) -> None:
    await asked.harness.advance(SOON)
    assert await asked.expire(by) == (1, 0)


ENDS: list[End] = [fail_another, crash_another, cancel_another, cancel_parent, restart_parent, expire]


async def with_one_behind(asked: Asked, by: Contestant, what: str) -> tuple[int, Claim, int]:
    """A parent; the claim of an item of it that holds nothing; and an instance that waits for what another item
    holds."""
    parent, _, [holder, other] = await items(asked, by, 2, 3, timeout=SOON, on_timeout="fail")
    behind = (await asked.harness.engine.start(Asker, {})).id
    if what == "key":
        await asked.sql("update stepwell.instances set concurrency_key = 'k' where id in ($1, $2)", holder.id, behind)
    else:
        await limits.declare_missing(by, [ConcurrencyLimit("few", 1)])
        both = holder.id, behind
        await asked.sql("update stepwell.instances set concurrency_limit = 'few' where id = any ($1)", both)
        await asked.sql("update stepwell.instances set slot = 1 where id = $1", holder.id)
    await asked.sql("update stepwell.instances set hold = $2 where id = $1", behind, what)
    return parent, other, behind


@pytest.mark.parametrize("what", ["key", "limit"])
@pytest.mark.parametrize("end", ENDS)
async def test_slots_of_a_cancelled_item_pass_to_the_next_row_at_once(asked: Asked, end: End, what: str) -> None:
    [by] = await asked.join(1)
    parent, other, behind = await with_one_behind(asked, by, what)

    await end(asked, by, parent, other)

    assert await asked.children(parent) == ["cancelled", {crash_another: "failed", fail_another: "failed"}.get(
        end, "cancelled")]  # fmt: skip
    assert await asked.row(behind, "status", "hold") == ("runnable", None)


@pytest.mark.parametrize("what", ["key", "limit"])
async def test_a_cancel_in_sql_leaves_the_slots_of_cancelled_items_to_the_reaper(asked: Asked, what: str) -> None:
    [by] = await asked.join(1)
    parent, _, behind = await with_one_behind(asked, by, what)
    heard: list[Any] = []
    await by.connection.add_listener("stepwell_idle", lambda *notice: heard.append(notice))
    caller = await asyncpg.connect(asked.harness.url)

    assert await caller.fetchval("select stepwell.try_cancel(id => $1, cascade => false)", parent)

    await eventually(lambda: _is_told(heard))
    assert await asked.row(behind, "hold") == what  # a caller's transaction does not wait for another's key
    await caller.close()


async def _is_told(heard: list[Any]) -> bool:
    return bool(heard)
