"""Lists for operators: filters, pages, workers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stepwell import Context, Done, InvalidInput, Machine, Status, Stop, step
from stepwell.testing import Harness
from tests.conftest import MakeHarness


class Order(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done()

    @step
    async def fail(self, ctx: Context[Any]) -> Stop:
        return Stop("no")


class Parcel(Machine, version=2, queue="post"):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done()


async def stocked(make_harness: MakeHarness) -> Harness:
    """1 done and 2 failed orders; 3 and 4 parcels, the last of another tenant and key; 5 a delayed order."""
    h = await make_harness([Order, Parcel])
    ended = await h.engine.start_many([Order, Order.child(step="fail")])
    async with h.engine.worker():
        for handle in ended:
            await handle.wait(timeout=30)
    await h.engine.start_many([Parcel, Parcel.child(tenant="acme"), Order.child(delay=timedelta(hours=1))])
    await h.sql("update stepwell.instances set key = 'p:4', key_scope = 'live' where id = 4")
    await h.sql("update stepwell.instances set created_at = '2020-01-01Z' where id = 3")
    return h


@pytest.mark.parametrize(
    ("filters", "ids"),
    [
        ({}, [5, 4, 3, 2, 1]),
        ({"status": "done"}, [1]),
        ({"status": Status.RUNNABLE}, [5, 4, 3]),
        ({"status": ["done", Status.FAILED]}, [2, 1]),
        ({"status": []}, []),
        ({"machine": "Parcel"}, [4, 3]),
        ({"machine": "Nobody"}, []),
        ({"version": 2}, [4, 3]),
        ({"step": "fail"}, [2]),
        ({"queue": "post"}, [4, 3]),
        ({"tenant": "acme"}, [4]),
        ({"tenant": ""}, [5, 3, 2, 1]),
        ({"key": "p:4"}, [4]),
        ({"created_before": datetime(2021, 1, 1, tzinfo=UTC)}, [3]),
        ({"created_from": datetime(2021, 1, 1, tzinfo=UTC)}, [5, 4, 2, 1]),
        ({"machine": "Order", "status": "runnable"}, [5]),
    ],
)
async def test_a_list_holds_rows_that_fit_every_filter_newest_first(
    make_harness: MakeHarness, filters: dict[str, Any], ids: list[int]
) -> None:
    h = await stocked(make_harness)

    page = await h.engine.insights.list(**filters)

    assert [instance.id for instance in page.items] == ids
    assert page.next is None


async def test_pages_follow_one_another_without_gap_or_repeat(make_harness: MakeHarness) -> None:
    h = await make_harness([Order])
    handles = await h.engine.start_many([Order] * 25)
    insights = h.engine.insights

    pages, after = [], None
    while True:
        page = await insights.list(limit=10, after=after)
        pages.append([instance.id for instance in page.items])
        await h.engine.start(Order)  # newcomers do not shift the pages
        after = page.next
        if after is None:
            break

    assert [len(page) for page in pages] == [10, 10, 5]
    assert [id_ for page in pages for id_ in page] == [handle.id for handle in reversed(handles)]


async def test_a_page_that_is_just_full_is_the_last(make_harness: MakeHarness) -> None:
    h = await make_harness([Order])
    await h.engine.start_many([Order] * 10)

    assert (await h.engine.insights.list(limit=10)).next is None
    assert (await h.engine.insights.list(limit=9)).next is not None


async def test_each_walks_through_all_pages(make_harness: MakeHarness) -> None:
    h = await make_harness([Order, Parcel])
    await h.engine.start_many([*[Order] * 1_200, Parcel])

    walked = [instance.id async for instance in h.engine.insights.each(machine="Order")]

    assert len(walked) == 1_200
    assert walked == sorted(walked, reverse=True)


@pytest.mark.parametrize(
    ("filters", "field"),
    [
        ({"status": "finished"}, "status"),
        ({"limit": 0}, "limit"),
        ({"limit": 1_001}, "limit"),
        ({"limit": True}, "limit"),
        ({"machine": "a\x00"}, "machine"),
        ({"queue": 5}, "queue"),
        ({"created_from": datetime(2021, 1, 1)}, "created_from"),  # noqa: DTZ001 - naive on purpose
        ({"version": "two"}, "version"),
        ({"version": 2**40}, "version"),
        ({"after": "x"}, "after"),
        ({"after": 2**70}, "after"),
    ],
)
async def test_a_filter_out_of_range_is_refused_by_field(
    make_harness: MakeHarness, filters: dict[str, Any], field: str
) -> None:
    h = await make_harness([Order])

    with pytest.raises(InvalidInput) as caught:
        await h.engine.insights.list(**filters)

    assert caught.value.field == field


async def test_workers_are_listed_while_they_live(make_harness: MakeHarness) -> None:
    h = await make_harness([Order, Parcel])
    async with h.engine.worker({"default": 2, "post": 3}) as worker:
        [listed] = await h.engine.insights.workers()
        expected_id = worker.id

    assert (listed.id, listed.alive, listed.queues) == (expected_id, True, {"default": 2, "post": 3})
    assert listed.machines == ["Order@1", "Parcel@2"]
    assert not any(row.alive for row in await h.engine.insights.workers())


async def test_one_unreadable_state_does_not_hide_the_others(make_harness: MakeHarness) -> None:
    """A person wrote it into the table, past all checks."""
    h = await make_harness([Order])
    broken = await h.engine.start(Order)
    await h.engine.start(Order)
    await h.sql("update stepwell.instance_data set state = jsonb_build_object('x', repeat('9', 6000)::numeric) "
                "where id = $1", broken.id)

    page = await h.engine.insights.list()

    assert len(page.items) == 2
    assert str((await broken.get()).state).startswith('{"x": 999')
