"""Limits at run time: changed without a deploy, and kept until the code itself changes."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from stepwell import (
    ConcurrencyLimit,
    Context,
    Done,
    Hold,
    InvalidInput,
    Machine,
    RateLimit,
    Status,
    UnknownLimit,
    step,
)
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.support.waiting import eventually

LIMITS = [
    ConcurrencyLimit("bank", 1),
    RateLimit("mail", 1, per=timedelta(days=1), burst=3),
    ConcurrencyLimit("both", 2),
    RateLimit("both", 2),
]


class Wait(Machine, initial="wait"):
    @step
    async def wait(self, ctx: Context[Any]) -> Done:
        await ctx.resources.wait()
        return Done()


@pytest.fixture
async def h(make_harness: MakeHarness) -> Harness:
    h = await make_harness([Wait], limits=LIMITS, resources=asyncio.Event())
    await h.engine.migrate()
    return h


async def count(h: Harness, status: str, hold: str | None = None) -> int:
    sql = "select count(*) from stepwell.instances where status = $1 and hold is not distinct from $2"
    [(number,)] = await h.sql(sql, status, hold)
    return int(number)


async def until(h: Harness, number: int, status: str, hold: str | None = None) -> None:
    async def look() -> bool:
        return await count(h, status, hold) == number

    await eventually(look)


async def another(h: Harness, *limits: Any) -> Any:
    """The engine of a later deploy, with other limits."""
    engine = h.another_engine()
    engine._registry = type(engine._registry)([Wait], limits)
    return engine


async def test_a_raised_limit_admits_its_wait_queue_at_once(h: Harness) -> None:
    await h.engine.start_many([Wait.child({}, concurrency_limit="bank")] * 6)

    async with h.engine.worker():
        await until(h, 5, "runnable", "limit")
        await h.engine.limits.set("bank", n=4)
        await until(h, 4, "executing")
        assert await count(h, "runnable", "limit") == 2
        h.resources.set()


async def test_a_limit_that_is_raised_by_thousands_admits_thousands(h: Harness) -> None:
    await h.engine.start_many([Wait.child({}, concurrency_limit="bank")] * 2_600)
    await h.sql("update stepwell.instances set hold = 'limit'")

    await h.engine.limits.set("bank", n=2_500)

    assert await count(h, "runnable") == 2_500
    assert await count(h, "runnable", "limit") == 100


async def test_a_lowered_limit_admits_nothing_before_fewer_than_n_run(h: Harness) -> None:
    gates = h.resources
    await h.engine.limits.set("bank", n=5)
    await h.engine.start_many([Wait.child({}, concurrency_limit="bank")] * 8)

    async with h.engine.worker():
        await until(h, 5, "executing")
        await h.engine.limits.set("bank", n=2)
        rows = await h.sql("select id from stepwell.instances where status = 'executing' order by id")
        for ended, row in enumerate(rows[:3]):
            await h.engine.cancel(row["id"])
            assert await count(h, "executing") == 4 - ended
        await until(h, 3, "runnable", "limit")
        await h.engine.cancel(rows[3]["id"])
        await until(h, 2, "runnable", "limit")
        await until(h, 2, "executing")
        slots = await h.sql("select slot from stepwell.instances where status = 'executing' order by slot")
        gates.set()

    assert slots[0]["slot"] <= 2


async def test_a_limit_of_zero_admits_nothing_until_it_is_reset(h: Harness) -> None:
    h.resources.set()
    await h.engine.limits.set("bank", n=0)
    one = await h.engine.start(Wait, concurrency_limit="bank")

    await h.drain()
    before = await one.get()
    await h.engine.limits.reset("bank")
    await h.drain()

    assert before.hold is Hold.LIMIT
    await h.assert_done(one)


async def test_a_faster_rate_admits_its_wait_queue_at_once(h: Harness) -> None:
    h.resources.set()
    await h.engine.start_many([Wait.child({}, rate_limit="mail")] * 6)

    async with h.engine.worker():
        await until(h, 3, "runnable", "rate")
        await h.engine.limits.set("mail", n=1_000, per=1, burst=10)
        await until(h, 6, "done")


async def test_a_burst_below_a_waiting_weight_holds_its_row_and_no_other(
    h: Harness,
) -> None:
    h.resources.set()
    await h.engine.start_many([Wait.child({}, rate_limit="mail")] * 3)
    heavy = await h.engine.start(Wait, rate_limit="mail", weight=3)
    light = await h.engine.start(Wait, rate_limit="mail")
    await h.drain(concurrency=5)

    await h.engine.limits.set("mail", burst=2)
    await h.advance(timedelta(days=2))
    await h.drain(concurrency=5)
    aside = await heavy.get()
    await h.engine.limits.set("mail", burst=3)
    await h.advance(timedelta(days=5))
    await h.drain()

    await h.assert_done(light)
    assert aside.waiting_for == "its weight 3 is above the burst 2 of rate limit 'mail'"
    await h.assert_done(heavy)


async def test_a_row_with_an_undeclared_limit_is_held_until_a_worker_declares_it(h: Harness) -> None:
    h.resources.set()
    engine = await another(h, ConcurrencyLimit("new", 1))
    async with engine:
        one = await engine.start(Wait, concurrency_limit="new")
        await h.drain()
        aside = await one.get()
        async with engine.worker():
            await one.result(10)

    assert (aside.hold, aside.waiting_for) == (Hold.LIMIT, "no concurrency limit is called 'new'")


async def test_a_change_stays_until_the_declaration_itself_changes(h: Harness) -> None:
    await h.engine.limits.set("bank", n=7, by="ann")

    await h.engine.migrate()
    kept = await h.engine.limits.set("bank", n=8, by="bob")
    async with await another(h, ConcurrencyLimit("bank", 3)) as later:
        await later.migrate()
        [changed] = [row for row in await later.limits.list() if row.name == "bank"]

    assert (kept.n, kept.declared_n, kept.changed_by, kept.version, kept.is_changed) == (8, 1, "bob", 3, True)
    assert (changed.n, changed.declared_n, changed.changed_by, changed.version) == (3, 3, None, 4)


async def test_a_reset_limit_is_what_the_code_declares(h: Harness) -> None:
    await h.engine.limits.set("mail", n=5, per=timedelta(hours=1), burst=9)

    row = await h.engine.limits.reset("mail")

    assert (row.n, row.per, row.burst, row.is_changed) == (1, timedelta(days=1), 3, False)


async def test_a_list_of_limits_counts_running_and_waiting_rows_of_all_parts(h: Harness) -> None:
    await h.engine.start_many([Wait.child({}, concurrency_limit=("bank", n % 2)) for n in range(6)])
    await h.engine.start_many([Wait.child({}, rate_limit="mail")] * 5)

    async with h.engine.worker():
        await until(h, 4, "runnable", "limit")
        await until(h, 2, "runnable", "rate")
        rows = {(row.kind, row.name): (row.executing, row.waiting) for row in await h.engine.limits.list()}
        h.resources.set()

    assert rows["concurrency", "bank"] == (2, 4)
    assert rows["rate", "mail"] == (None, 2)
    assert rows["concurrency", "both"] == (0, 0)


async def test_a_rate_and_a_concurrency_limit_of_one_name_are_changed_by_kind(h: Harness) -> None:
    with pytest.raises(InvalidInput, match="kind"):
        await h.engine.limits.set("both", n=5)
    slots = await h.engine.limits.set("both", n=5, kind="concurrency")
    tokens = await h.engine.limits.set("both", burst=9)

    assert (slots.kind, slots.n, tokens.kind, tokens.n, tokens.burst) == ("concurrency", 5, "rate", 2, 9)


@pytest.mark.parametrize(
    ("name", "changes", "field"),
    [
        ("nobody", {"n": 1}, "name"),
        ("bank", {}, "n"),
        ("bank", {"n": -1}, "n"),
        ("bank", {"n": 1, "burst": 2, "kind": "concurrency"}, "burst"),
        ("mail", {"n": 0}, "n"),
        ("mail", {"per": 0}, "per"),
        ("mail", {"burst": 1.5}, "burst"),
        ("mail", {"n": 1, "kind": "daily"}, "kind"),
    ],
)
async def test_an_invalid_change_is_refused_with_the_field(
    h: Harness, name: str, changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        await h.engine.limits.set(name, **changes)

    assert refused.value.field == field
    assert isinstance(refused.value, UnknownLimit) is (field == "name")


def test_the_blocking_engine_changes_limits_too(h: Harness) -> None:
    row = h.engine.sync.limits.set("bank", n=3)

    assert row.n == 3
    assert [one.n for one in h.engine.sync.limits.list() if one.name == "bank"] == [3]
    assert h.engine.sync.limits.reset("bank").n == 1
    h.engine.sync.close()


async def test_a_full_wait_queue_shows_in_the_status_of_no_other_limit(h: Harness) -> None:
    h.resources.set()
    await h.engine.limits.set("bank", n=0)
    await h.engine.start_many([Wait.child({}, concurrency_limit="bank")] * 3)
    free = await h.engine.start(Wait)

    tally = await h.drain(concurrency=5)

    assert tally.ended[Status.DONE] == 1
    await h.assert_done(free)
