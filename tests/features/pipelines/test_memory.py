"""Memory is bounded by what steps ask for, however many items there are: counted in items that are alive."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any, ClassVar

import msgspec
import pytest

from stepwell._worker.running.ask_each import CHUNK
from stepwell.pipelines import Pipeline, Rejected, await_, many_to_one, one_to_many, one_to_one, reject
from stepwell.pipelines.running.rejects import MOST_HELD
from stepwell.pipelines.running.stream import Stream
from stepwell.pipelines.running.threads import MOST
from tests.conftest import MakeHarness
from tests.support.waiting import eventually

ITEMS = 50_000
A_FEW = 20  # held by steps, or passed from one to the next
PATIENCE = 60


class Counted(msgspec.Struct):
    """An item that knows how many of its kind are alive."""

    number: int
    alive: ClassVar[int] = 0
    most: ClassVar[int] = 0
    _lock: ClassVar[Any] = threading.Lock()

    def __post_init__(self) -> None:
        with Counted._lock:
            Counted.alive += 1
            Counted.most = max(Counted.most, Counted.alive)

    def __del__(self) -> None:
        with Counted._lock:
            Counted.alive -= 1


@pytest.fixture(autouse=True)
def _from_zero() -> None:
    Counted.most = Counted.alive


@one_to_many
def plain(upto: int) -> Iterator[Counted]:
    for number in range(upto):
        yield Counted(number)


@one_to_many
async def awaited(upto: int) -> AsyncIterator[Counted]:
    for number in range(upto):
        yield Counted(number)


@one_to_one
async def again(item: Counted) -> Counted:
    return Counted(item.number)


@one_to_one
def again_in_thread(item: Counted) -> Counted:
    return Counted(item.number)


@many_to_one
async def add_up(items: AsyncIterator[Counted]) -> int:
    return sum([item.number async for item in items])


async def of(item: Any) -> AsyncIterator[Any]:
    yield item


@pytest.mark.parametrize(
    ("steps", "number", "most"),
    [
        ([awaited, again, add_up], ITEMS, A_FEW),
        ([plain, again, add_up], ITEMS, MOST + A_FEW),
        ([plain, again_in_thread, add_up], 1_000, MOST + A_FEW),
    ],
    ids=["async", "from a thread", "in a thread"],
)
async def test_a_segment_holds_a_few_items_of_very_many(steps: list[Any], number: int, most: int) -> None:
    out = [value async for value in Stream("p", 7, print).through(steps, of(number))]

    assert out == [sum(range(number))]
    assert Counted.most <= most


@pytest.mark.parametrize("sink", ["plain", "async"])
async def test_a_file_of_only_broken_rows_is_rejected_while_it_is_read(sink: str) -> None:
    kept: list[int] = []

    @one_to_many
    def broken(upto: int) -> Iterator[int]:
        for number in range(upto):
            reject(Counted(number), "broken", place=f"line {number}")
        yield from ()

    def keep(rejected: Rejected) -> None:
        kept.append(rejected.item.number)

    async def keep_async(rejected: Rejected) -> None:
        await asyncio.sleep(0)
        kept.append(rejected.item.number)

    number = 5 * MOST_HELD
    stream = Stream("p", 7, keep if sink == "plain" else keep_async)
    assert [out async for out in stream.through([broken], of(number))] == []

    assert kept == [*range(number)]
    assert Counted.most <= 2 * MOST_HELD + A_FEW


async def test_interactions_are_opened_in_chunks_and_outputs_read_one_by_one(make_harness: MakeHarness) -> None:
    """What is pulled for one chunk and the next batch of the source; later one item at a time of the stored ones."""

    @many_to_one
    async def add_up_fresh(items: AsyncIterator[Counted]) -> int:
        Counted.most = Counted.alive
        return await add_up.function(items)  # type: ignore[no-any-return]  # it is the step's own function

    number = 2 * CHUNK + 100
    ask = await_("Ask", over="manual", input=Counted, output=Counted, window=2 * number)
    pipeline = Pipeline("counted", [plain, again, ask, add_up_fresh])
    h = await make_harness(machines=[pipeline.machine])

    async with h.engine.worker():
        run = await h.engine.start(pipeline.machine, pipeline.state(number))
        await run.wait(timeout=PATIENCE, until="settled")
        ids = [row["id"] for row in await h.sql("select id::text from stepwell.interactions order by item")]
        most_while_asking = Counted.most
        await asyncio.gather(*(h.engine.complete(interaction=id_, reply={"number": n}) for n, id_ in enumerate(ids)))
        result = await run.result(timeout=PATIENCE)

    assert result == sum(range(number))
    assert most_while_asking <= CHUNK + MOST + A_FEW
    assert Counted.most <= A_FEW


async def test_a_pipeline_that_was_cancelled_leaves_no_item_behind(make_harness: MakeHarness) -> None:
    waits = asyncio.Event()

    @one_to_one
    async def wait(item: Counted) -> None:
        waits.set()
        await asyncio.Event().wait()

    pipeline = Pipeline("left", [plain, wait])
    h = await make_harness(machines=[pipeline.machine])

    async with h.engine.worker():
        run = await h.engine.start(pipeline.machine, pipeline.state(ITEMS))
        await waits.wait()
        await run.cancel()
        await eventually(lambda: Counted.alive == 0)
