"""Await steps of each shape in a pipeline: in a row, at its end, about nothing, about too much, with early replies.

Numbers are those of the scenarios in the digest of the pipeline framework's await units.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from stepwell import CompletionRefused, ConcurrencyLimit, Handle
from stepwell.pipelines import Pipeline, await_, many_to_many, many_to_one, one_to_one
from stepwell.testing import Harness, armed
from tests.conftest import MakeHarness
from tests.features.interactions.conftest import LookingHarness
from tests.features.pipelines.examples import Item, Numbers, cheaper
from tests.features.pipelines.examples import Priced as Price
from tests.features.pipelines.streams import (
    BROKEN,
    Score,
    answer,
    answer_all,
    begun,
    count,
    interaction_statuses,
    items,
    judge,
    open_items,
    rank,
    scores,
    seen,
    unit,
)
from tests.support.waiting import eventually

told: list[Any] = []  # the inputs of steps after an await step, in their order


@one_to_one(retries=0)
async def tell(price: Price) -> Price:
    told.append(price.price)
    if price.price == 13 and told.count(13) == 1:
        raise ValueError("half way")
    return price


@many_to_one
async def add(prices: AsyncIterator[Price]) -> Item:
    return Item(sum([price.price async for price in prices]))


@many_to_many
async def counted(all_: AsyncIterator[Item]) -> AsyncIterator[Item]:
    async for item in all_:
        yield item


@one_to_one
async def made(value: dict[str, Any]) -> Any:
    """An item, if its number is there: whatever that is."""
    return Item(value["number"]) if "number" in value else value


@one_to_one
async def at(second: int) -> datetime:
    return datetime.fromtimestamp(second, UTC)


def asks(name: str, cardinality: str = "ONE_TO_ONE", **options: Any) -> Any:
    return await_(name, over="manual", input=Item, output=Price, cardinality=cardinality, **options)


single = Pipeline("single", [asks("Ask one"), tell])
last = Pipeline("last", [asks("Ask one")])
last_each = Pipeline("last_each", [count, asks("Ask each")])
unfold = Pipeline("unfold", [asks("Ask for many", "ONE_TO_MANY"), tell])
fold = Pipeline("fold", [count, asks("Ask about all", "MANY_TO_ONE", max_items=5), tell])
every = Pipeline("every", [count, asks("Ask about every", "MANY_TO_MANY", max_items=5), tell])
twice = Pipeline("twice", [count, asks("Ask first"), cheaper, add, asks("Ask second"), tell])
rounds = Pipeline(
    "rounds",
    [count, await_("First", over="manual", input=Item, output=Item), counted,
     await_("Second", over="manual", input=Item, output=Score), judge, rank],
)  # fmt: skip
made_one = Pipeline("made_one", [made, asks("Ask one")])
made_each = Pipeline("made_each", [made, asks("Ask each")], takes_many=True)
made_unfold = Pipeline("made_unfold", [made, asks("Ask for many", "ONE_TO_MANY")])
made_fold = Pipeline("made_fold", [made, asks("Ask about all", "MANY_TO_ONE")], takes_many=True)
made_every = Pipeline("made_every", [made, asks("Ask about every", "MANY_TO_MANY")], takes_many=True)
moments = Pipeline("moments", [at, await_("Ask when", over="manual", input=datetime, output=Price)], takes_many=True)
SHAPES = [single, last, last_each, unfold, fold, every, twice, rounds, scores, made_one, made_each, made_unfold,
          made_fold, made_every, moments]  # fmt: skip


@pytest.fixture
async def h() -> AsyncIterator[Harness]:
    seen.forget()
    told.clear()
    async with LookingHarness(SHAPES) as harness:
        yield harness
        assert await harness.sql(BROKEN) == []


async def started(h: Harness, pipeline: Pipeline, given: Any) -> Handle[Any]:
    handle: Handle[Any] = await h.engine.start(pipeline, given)
    await h.drain()
    return handle


async def only_interaction(h: Harness) -> Any:
    """The one that is open, whole."""
    [interaction] = (await h.engine.interactions.pending()).items
    return interaction


async def reply(h: Harness, value: Any) -> None:
    await h.engine.complete(interaction=(await only_interaction(h)).id, reply=value)
    await h.drain()


def price(number: int) -> dict[str, int]:
    return {"number": number, "price": 10 + number}


async def test_a_step_that_fails_after_an_await_step_is_retried_with_its_reply(h: Harness) -> None:
    """Scenario 24: the provider is not asked again."""
    run = await started(h, single, Item(3))

    await reply(h, price(3))
    await h.drain(with_scheduled=True)

    assert ((await run.get()).result, told) == (price(3), [13, 13])
    assert await interaction_statuses(h, run) == ["completed"]


async def test_an_await_step_at_the_end_gives_its_reply_as_the_result(h: Harness) -> None:
    """Scenario 25, of one value and of a stream."""
    one, each = await started(h, last, Item(1)), await started(h, last_each, Numbers(2))
    for interaction in reversed((await h.engine.interactions.pending()).items):
        await h.engine.complete(interaction=interaction.id, reply=price(interaction.request["number"]))
    await h.drain()

    assert (await one.get()).result == price(1)
    assert (await each.get()).result == [price(0), price(1)]


async def test_two_await_steps_in_a_row_park_and_continue_in_order(h: Harness) -> None:
    """Scenario 26, with another worker in each part: items, then one value."""
    run = await started(h, twice, Numbers(2))
    for item, id_ in (await open_items(h, run)).items():
        await h.engine.complete(interaction=id_, reply=price(item))
    await h.drain()
    interaction = await only_interaction(h)
    assert (interaction.step, interaction.request) == ("Ask second", {"number": 19})

    await reply(h, price(9))

    assert (await run.get()).result == price(9)
    [row] = await h.sql("select visit from stepwell.instances where id = $1", run.id)
    assert row["visit"] == 2


async def test_items_of_two_await_steps_are_kept_apart(h: Harness) -> None:
    """Scenarios 26, 31: the same numbers, at two units; each step over all gets its own."""
    run = await started(h, rounds, Numbers(3))
    for item, id_ in reversed((await open_items(h, run)).items()):
        await h.engine.complete(interaction=id_, reply={"number": 10 * item})
    await h.drain()
    again = (await h.engine.interactions.pending()).items
    assert sorted((q.index, q.request["number"]) for q in again) == [(0, 0), (1, 10), (2, 20)]

    await answer_all(h, run)

    assert (seen.ends, await items(h, run)) == ([[0, 1, 2]], dict.fromkeys(range(3), "done"))


async def test_a_reply_before_the_end_of_the_source_continues_at_once(
    h: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenarios 21, 33: before the park; it is through before its parent has asked about all."""
    monkeypatch.setattr("stepwell._worker.running.ask_each.CHUNK", 2)
    run = await h.engine.start(scores, Numbers(5))
    with armed("ask_each.appended", hold=True) as point:
        async with h.engine.worker():
            await point.reached()
            await answer(h, run, 0, 1)
            await eventually(lambda: len(seen.items) == 2)
            await eventually(lambda: h.sql("select from stepwell.await_units where continuing = 0 and resolved = 2"))
            assert ((await run.get()).status, (await unit(h, run))[0]) == ("executing", "waiting")
            point.release()
            await run.wait(until="settled", timeout=30)

    await answer_all(h, run)
    assert seen.ends == [[0, 1, 2, 3, 4]]


async def test_a_pipeline_continues_at_once_if_all_items_end_before_the_park(
    h: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario 34."""
    monkeypatch.setattr("stepwell._worker.running.ask_each.CHUNK", 3)
    run = await h.engine.start(scores, Numbers(2))
    with armed("ask_each.appended", hold=True) as point:
        async with h.engine.worker():
            await point.reached()
            await answer(h, run, 1, 0)
            await eventually(lambda: h.sql("select from stepwell.await_units where continuing = 0 and resolved = 2"))
            point.release()
            ended = await run.wait(timeout=30)

    assert (ended.result, seen.ends) == ([[0], [1]], [[0, 1]])


async def test_many_to_many_is_one_interaction_about_the_list_with_a_stream_reply(h: Harness) -> None:
    """Scenario 50."""
    run = await started(h, every, Numbers(3))
    assert (await only_interaction(h)).request == [{"number": n} for n in range(3)]

    await reply(h, [price(7), price(1)])

    assert ((await run.get()).result, told) == ([price(7), price(1)], [17, 11])


async def test_many_to_one_asks_once_after_the_last_item_and_passes_one_value(h: Harness) -> None:
    """Scenario 51."""
    run = await started(h, fold, Numbers(2))
    assert (await only_interaction(h)).request == [{"number": 0}, {"number": 1}]

    await reply(h, price(5))

    assert ((await run.get()).result, told) == (price(5), [15])


async def test_one_to_many_has_a_list_reply_that_streams_in_order(h: Harness) -> None:
    """Scenarios 52, 55, 56: a step fails half way, and the whole list comes again; nothing is asked again."""
    run = await started(h, unfold, Item(1))

    await reply(h, [price(2), price(3), price(1)])
    await h.drain(with_scheduled=True)

    assert (await run.get()).result == [price(2), price(3), price(1)]
    assert told == [12, 13, 12, 13, 11]
    assert await interaction_statuses(h, run) == ["completed"]


@pytest.mark.parametrize("pipeline", [fold, every], ids=["many to one", "many to many"])
async def test_a_list_above_the_limit_opens_no_interaction_and_names_the_limit(h: Harness, pipeline: Pipeline) -> None:
    """Scenario 53; at the limit it is asked about."""
    over, at = await started(h, pipeline, Numbers(6)), await started(h, pipeline, Numbers(5))

    failed = await over.get()
    assert (failed.status, "more than 5 items" in str(failed.error), "max_items" in str(failed.error)) == (
        "failed", True, True,
    )  # fmt: skip
    assert (await interaction_statuses(h, over), await interaction_statuses(h, at)) == ([], ["dispatched"])


async def test_a_reply_with_too_many_values_leaves_the_interaction_open(h: Harness) -> None:
    """Scenario 54."""
    run = await started(h, every, Numbers(1))

    with pytest.raises(CompletionRefused, match="10001 items"):
        await reply(h, [price(0)] * 10_001)

    assert await interaction_statuses(h, run) == ["dispatched"]


async def test_only_many_to_one_asks_if_there_are_no_items(h: Harness) -> None:
    """Scenario 57; Scenario 44 is in test_items."""
    nothing, empty = await started(h, every, Numbers(0)), await started(h, fold, Numbers(0))

    assert ((await nothing.get()).result, await interaction_statuses(h, nothing)) == ([], [])
    assert (await only_interaction(h)).request == []
    await reply(h, price(1))
    assert (await empty.get()).result == price(1)


@pytest.mark.parametrize("pipeline", [unfold, every], ids=["one to many", "many to many"])
async def test_each_element_of_a_list_reply_is_checked(h: Harness, pipeline: Pipeline) -> None:
    """Scenario 58: the element is named, nothing is taken."""
    run = await started(h, pipeline, Item(1) if pipeline is unfold else Numbers(1))

    with pytest.raises(CompletionRefused, match=r"\[1\]\.price"):
        await reply(h, [price(1), {"number": 1, "price": "much"}])

    assert await interaction_statuses(h, run) == ["dispatched"]


WRONG = {
    ".number: expected int, got str": {"number": "many"},
    ": required field 'number' is missing": {"other": 1},
}


@pytest.mark.parametrize("says", WRONG)
async def test_each_item_is_checked_before_it_is_asked_about(
    h: Harness, monkeypatch: pytest.MonkeyPatch, says: str
) -> None:
    """Scenario 58: the item is named; its chunk is not asked, earlier items are closed, other runs continue."""
    monkeypatch.setattr("stepwell._worker.running.ask_each.CHUNK", 2)
    beside = await h.engine.start(made_each, [{"number": 0}])
    run = await started(h, made_each, [{"number": 0}, {"number": 1}, {"number": 2}, WRONG[says], {"number": 4}])

    failed = await run.get()
    assert failed.error is not None
    assert (failed.status, failed.attempt, failed.error.type) == ("failed", 0, "InvalidOutcome")
    assert failed.error.message == f"items[3]{says}; 'Ask each' asks about Item"
    assert await interaction_statuses(h, run) == ["cancelled", "cancelled"]
    await reply(h, price(0))
    assert (await beside.get()).result == [price(0)]


@pytest.mark.parametrize("says", WRONG)
@pytest.mark.parametrize(
    ("pipeline", "place", "kind"),
    [(made_one, "", "Item"), (made_unfold, "", "Item"), (made_fold, "[1]", "list[Item]"),
     (made_every, "[1]", "list[Item]")],
    ids=["one to one", "one to many", "many to one", "many to many"],
)  # fmt: skip
async def test_each_element_of_a_request_is_checked_before_it_is_asked(
    h: Harness, pipeline: Pipeline, place: str, kind: str, says: str
) -> None:
    """Scenario 58, Gap 7: the element is named, nothing is asked; other runs ask."""
    right, wrong = {"number": 0}, WRONG[says]
    beside = await h.engine.start(pipeline, [right, right] if place else right)
    run = await started(h, pipeline, [right, wrong] if place else wrong)

    failed = await run.get()
    assert failed.error is not None
    assert (failed.status, failed.attempt, failed.error.type) == ("failed", 0, "InvalidOutcome")
    assert failed.error.message == f"request{place}{says}; {pipeline.parts[-1].name!r} asks about {kind}"
    assert (await interaction_statuses(h, run), await interaction_statuses(h, beside)) == ([], ["dispatched"])


async def test_a_request_that_only_its_type_can_encode_is_sent(h: Harness) -> None:
    """Scenario 58: plain JSON has no moments, what asks about them has."""
    run = await started(h, moments, [0, 60])

    asked = (await h.engine.interactions.pending()).items
    assert sorted(interaction.request for interaction in asked) == ["1970-01-01T00:00:00Z", "1970-01-01T00:01:00Z"]
    assert await interaction_statuses(h, run) == ["dispatched", "dispatched"]


async def test_an_invalid_reply_to_an_item_starts_nothing(h: Harness) -> None:
    """Scenario 65."""
    run = await begun(h, scores, 1)

    with pytest.raises(CompletionRefused):
        await h.engine.complete(interaction=(await open_items(h, run))[0], reply={"number": "x", "points": 1})

    assert (await items(h, run), await unit(h, run)) == ({}, ("waiting", 1, 0, 0))


async def test_a_limit_on_executing_instances_does_not_bound_waiting_items(make_harness: MakeHarness) -> None:
    """A run that waits holds no slot: the guide says that a concurrency limit does not bound open interactions."""
    h = await make_harness(machines=[twice], limits=[ConcurrencyLimit("provider", 1)])

    for _ in range(3):
        await h.engine.start(twice, Numbers(1), concurrency_limit="provider")
    await h.drain()

    assert len((await h.engine.interactions.pending()).items) == 3
