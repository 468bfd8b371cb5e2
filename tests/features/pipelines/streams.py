"""A pipeline with items that the tests let fail, and helpers that ask, complete and read."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from stepwell import Cancel, Handle
from stepwell.pipelines import Pipeline, await_, many_to_many, one_to_many
from stepwell.testing import Harness
from tests.features.pipelines.examples import Item, Numbers

MINUTE = timedelta(minutes=1)
FAILS, NONE, TWICE = -1, -2, -3
"""Answers with which an item fails for good, gives nothing, or gives two."""


@dataclass
class Score:
    number: int
    points: int


class Seen:
    """What the steps were given since the test began."""

    def __init__(self) -> None:
        self.counted = 0
        self.items: Counter[int] = Counter()
        self.ends: list[list[int]] = []
        self.failing: set[int] = set()  # numbers for which a step raises
        self.breaks_at: int | None = None  # where the source does
        self.hanging: set[int] = set()  # numbers for which a step does not end
        self.stopped: list[int] = []  # and numbers that were stopped

    def forget(self) -> None:
        self.__init__()  # type: ignore[misc]  # as new


seen = Seen()


@one_to_many
async def count(numbers: Numbers) -> AsyncIterator[Item]:
    seen.counted += 1
    for number in range(numbers.upto):
        if number == seen.breaks_at:
            raise ValueError("the source is broken")
        yield Item(number)


async def hang(number: int) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        seen.stopped.append(number)


@one_to_many(retries=0)
async def judge(score: Score) -> AsyncIterator[Score]:
    seen.items[score.number] += 1
    if score.number in seen.failing:
        raise ValueError(f"item {score.number} does not work")
    if score.number in seen.hanging:
        await hang(score.number)
    if score.points == FAILS:
        raise Cancel(f"item {score.number} is hopeless")
    for _ in range({NONE: 0, TWICE: 2}.get(score.points, 1)):
        yield score


@many_to_many(retries=0)
async def rank(scores: AsyncIterator[Score]) -> AsyncIterator[list[int]]:
    got = [score.number async for score in scores]
    seen.ends.append(got)
    if -1 in seen.failing:
        raise ValueError("can not rank")
    for number in got:
        yield [number]


def scored(name: str, over: str = "manual", **options: Any) -> Pipeline:
    """Count, ask about each, judge each reply, rank all."""
    version = options.pop("version", 1)
    asks = await_("Ask scores", over=over, input=Item, output=Score, **options)
    return Pipeline(name, [count, asks, judge, rank], version=version)


scores = scored("scores")
narrow = scored("narrow", window=2)
timed = scored("timed", timeout=MINUTE)
wakes = scored("wakes", timeout=MINUTE, on_timeout="wake")
sent = scored("sent", over="there", window=2)
PIPELINES = [scores, narrow, timed, wakes, sent]


async def begun(h: Harness, pipeline: Pipeline, upto: int, **options: Any) -> Handle[Any]:
    """An instance that has asked about this many items."""
    handle = await h.engine.start(pipeline, Numbers(upto), **options)
    await h.drain()
    return handle


async def open_items(h: Harness, handle: Handle[Any]) -> dict[int, str]:
    """The dispatched interactions, by their item."""
    rows = await h.sql(
        "select item, id::text from stepwell.interactions where instance_id = $1 "
        "and status in ('waiting', 'dispatching', 'dispatched') order by unit_id, item", handle.id,
    )  # fmt: skip
    return {row["item"]: row["id"] for row in rows}


async def answer(h: Harness, handle: Handle[Any], *items: int, points: int = 1) -> None:
    """Complete these items, in this order; no step runs by it yet."""
    asked = await open_items(h, handle)
    for item in items:
        await h.engine.complete(interaction=asked[item], reply={"number": item, "points": points})


async def answer_all(h: Harness, handle: Handle[Any], order: random.Random | None = None) -> None:
    """Complete everything that is dispatched, and run what is runnable, until nothing is."""
    while asked := list(await open_items(h, handle)):
        if order is not None:
            order.shuffle(asked)
        await answer(h, handle, *asked)
        await h.drain()


async def unit(h: Harness, handle: Handle[Any]) -> tuple[Any, ...]:
    """Status of its last unit, interactions, resolved ones, and running continuations."""
    [row, *_] = await h.sql(
        "select status, opened, resolved, continuing from stepwell.await_units where instance_id = $1 "
        "order by id desc", handle.id,
    )  # fmt: skip
    return tuple(row)


async def items(h: Harness, handle: Handle[Any]) -> dict[int, str]:
    """Continuations, by their item, with their status; of its last unit."""
    rows = await h.sql(
        "select child_index, status from stepwell.instances i where parent_id = $1 and continues_unit_id = "
        "(select max(id) from stepwell.await_units where instance_id = $1) order by child_index", handle.id,
    )  # fmt: skip
    assert len({row["child_index"] for row in rows}) == len(rows)
    return {row["child_index"]: row["status"] for row in rows}


async def item_id(h: Harness, handle: Handle[Any], item: int) -> int:
    [row] = await h.sql(
        "select id from stepwell.instances where parent_id = $1 and child_index = $2 and continues_unit_id = "
        "(select max(id) from stepwell.await_units where instance_id = $1)", handle.id, item,
    )  # fmt: skip
    return int(row["id"])


async def interaction_statuses(h: Harness, handle: Handle[Any]) -> list[str]:
    """The statuses of all its interactions."""
    rows = await h.sql(
        "select status from stepwell.interactions where instance_id = $1 order by unit_id, item", handle.id
    )
    return [row["status"] for row in rows]


BROKEN = """
select 'unit ' || u.id || ' is ' || u.status || ', counts ' || u.continuing || ' items and has ' || c.live as problem
from stepwell.await_units u
cross join lateral (select count(*) filter (where i.status not in ('done', 'failed', 'cancelled') and not i.joined)
                    from stepwell.instances i where i.continues_unit_id = u.id) c(live)
where u.continuing <> case when u.status = 'waiting' then c.live else 0 end
union all
select 'unit ' || u.id || ' is complete without all of its items'
from stepwell.await_units u
where u.status = 'completed' and u.item_step is not null
  and (select count(*) from stepwell.interactions q where q.unit_id = u.id and q.status = 'completed')
   <> (select count(*) from stepwell.instances i where i.continues_unit_id = u.id and i.status = 'done')
union all
select 'item ' || q.item || ' of unit ' || u.id || ' continues ' || c.number || ' times'
from stepwell.await_units u
join stepwell.interactions q on q.unit_id = u.id
cross join lateral (select count(*) from stepwell.instances i
                    where i.continues_unit_id = u.id and i.child_index = q.item) c(number)
where u.item_step is not null and c.number <> (q.status = 'completed')::integer
union all
select 'unit ' || u.id || ' waits, and an item of it has ' || i.status
from stepwell.await_units u join stepwell.instances i on i.continues_unit_id = u.id
where u.status = 'waiting' and i.status in ('failed', 'cancelled')
union all
select 'unit ' || u.id || ' waits for nothing'
from stepwell.await_units u
where u.status = 'waiting' and u.is_filled and u.resolved = u.opened and u.continuing = 0
"""
"""What must never be, beside tests.support.asked.BROKEN."""
