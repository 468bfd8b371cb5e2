"""One interaction per item: in order, in chunks, in a window; nothing is asked twice, nothing is left open."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import pytest

from stepwell import (
    Ask,
    Completion,
    CompletionConflict,
    Context,
    Done,
    Machine,
    Outcome,
    Retry,
    Stop,
    step,
)
from stepwell._client.completions.complete import LARGEST_GROUP
from stepwell._worker.running.ask_each import CHUNK
from stepwell.testing import Harness, armed
from tests.conftest import MakeHarness
from tests.features.interactions.askers import each_asker
from tests.features.interactions.looks import asked, interaction_rows, pending
from tests.features.interactions.machines import Batch
from tests.store.wire_log import Tally
from tests.support.transports import Recording
from tests.support.waiting import eventually

SOON = timedelta(milliseconds=50)


def completed(values: list[Any]) -> list[list[Any]]:
    return [[index, "completed", value] for index, value in enumerate(values)]


async def answer_all(h: Harness, instance_id: int) -> None:
    """Complete everything that is open, each item with its number."""
    rows = [row for row in await interaction_rows(h, instance_id) if row["finished_at"] is None]
    await asyncio.gather(*(h.engine.complete(interaction=str(row["id"]), reply=row["item"]) for row in rows))


class Sources(Machine):
    """Asks about items that come from one kind of source or another."""

    pulled: list[int] = []  # noqa: RUF012 - what this process has pulled

    def numbers(self, upto: int) -> Iterator[int]:
        for number in range(upto):
            self.pulled.append(number)
            yield number

    async def awaited(self, upto: int) -> AsyncIterator[int]:
        for number in range(upto):
            await asyncio.sleep(0)
            self.pulled.append(number)
            yield number

    @step
    async def start(self, ctx: Context[Any]) -> Outcome:
        items = {"list": [*range(3)], "generator": self.numbers(3), "async": self.awaited(3), "none": [],
                 "none async": self.awaited(0)}[ctx.state["how"]]  # fmt: skip
        return Ask.each("manual", items, reply=int, then=self.collect)

    @step
    def in_a_thread(self, ctx: Context[Any]) -> Outcome:
        return Ask.each("manual", self.numbers(3), reply=int, then=self.collect)

    @step
    async def collect(self, ctx: Context[Any]) -> Outcome:
        return Done([r.value for r in ctx.replies])


class Breaking(Machine):
    """Its source breaks after the first chunk was asked."""

    @step
    async def start(self, ctx: Context[Any]) -> Outcome:
        def items() -> Iterator[int]:
            yield from range(CHUNK + 1)
            if ctx.attempt == 0 or ctx.state["handle"] != "retry":
                raise RuntimeError("the file ends here")

        return Ask.each("manual", items(), reply=int, then=self.collect, window=100)

    @step
    async def collect(self, ctx: Context[Any]) -> Outcome:
        return Done(len(ctx.replies))

    async def handle(self, error: Exception, ctx: Context[Any]) -> Outcome:
        match ctx.state["handle"]:
            case "ask":
                return Ask("manual", {"error": str(error)}, reply=int, then=self.collect)
            case "each":
                return Ask.each("manual", [1], reply=int, then=self.collect)
            case "retry" if isinstance(error, RuntimeError):
                return Retry()
        return Stop(error)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no items": ({"items": 5}, "items: expected items to ask about, got int"),
    "a text": ({"items": "abc"}, "items: expected items to ask about, got str"),
    "no window": ({"window": 0}, "window"),
    "half a window": ({"window": 1.5}, "window"),
    "a wrong item": ({"items": [1, float("nan")]}, "items[1]"),
    "a large item": ({"items": [1, 2, "x" * 3_000_000]}, "items[2]"),
    "an item without the field": ({"items": [{"a": 1}, {"b": 1}], "idempotency": ("a",)}, "no field 'a'"),
    "a token": ({"token": True}, "token: this engine has no keys"),
    "a transport": ({"transport": "inbx"}, "transport"),
    "a then": ({"then": "nowhere"}, "no step 'nowhere'"),
}


class Wrong(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Outcome:
        options: dict[str, Any] = {"transport": "manual", "items": [1], "then": self.collect}
        return Ask.each(**{**options, **WRONG[ctx.state["how"]][0]})

    @step
    async def collect(self, ctx: Context[Any]) -> Outcome:
        return Done()


async def test_items_are_asked_in_order_and_completed_in_any_order(h: Harness) -> None:
    """Scenarios 30, 31, 32: one unit, indexes 0 to 2; completed 2, 0, 1 the replies are 0, 1, 2; it waits for all."""
    batch = await h.engine.start(Batch, {"items": [10, 11, 12]})
    await h.drain()
    rows = await interaction_rows(h, batch.id)
    shown = await h.engine.interactions.get(str(rows[2]["id"]))

    for place in (2, 0):
        await h.engine.complete(interaction=str(rows[place]["id"]), reply=100 + place)
        assert (await h.drain()).total == 0
    await h.engine.complete(correlation=str(rows[1]["correlation"]), reply=101)
    await h.drain()

    await h.assert_done(batch, completed([100, 101, 102]))
    assert [(row["item"], row["opened"], row["is_filled"]) for row in rows] == [(n, 3, True) for n in range(3)]
    assert len({row["unit_id"] for row in rows}) == 1
    assert (shown.index, shown.request) == (2, {"number": 12})


async def test_an_item_completed_twice_counts_once(h: Harness) -> None:
    """Scenario 35."""
    batch = await h.engine.start(Batch, {"items": [10, 11]})
    await h.drain()
    first = (await pending(h))[0]

    for _ in range(3):
        await h.engine.complete(interaction=first.id, reply=1)

    assert (await h.drain()).total == 0
    assert [row["resolved"] for row in await interaction_rows(h, batch.id)] == [1, 1]


async def test_items_come_from_lists_and_generators_of_both_kinds(make_harness: MakeHarness) -> None:
    """Scenario 30: whatever gives the items is read once; the generator of a sync step runs in its thread."""
    h = await make_harness([Sources])
    Sources.pulled.clear()
    kinds = ["list", "generator", "async"]
    handles = [await h.engine.start(Sources, {"how": how}) for how in kinds]
    handles.append(await h.engine.start(Sources, step=Sources.in_a_thread))
    await h.drain()

    for handle in handles:
        await answer_all(h, handle.id)
    await h.drain()

    for handle in handles:
        await h.assert_done(handle, [0, 1, 2])
    assert sorted(Sources.pulled) == [0, 0, 0, 1, 1, 1, 2, 2, 2]


async def test_an_empty_stream_asks_nothing_and_continues(make_harness: MakeHarness) -> None:
    """Scenarios 44, 57: no unit, no interaction, no park; the step sees no replies."""
    h = await make_harness([Sources])
    handles = [await h.engine.start(Sources, {"how": how}) for how in ("none", "none async")]

    await h.drain()

    for handle in handles:
        await h.assert_done(handle, [])
    assert await h.sql("select from stepwell.await_units union all select from stepwell.interactions") == []


async def test_an_invalid_ask_goes_to_handle_and_leaves_no_interaction(make_harness: MakeHarness) -> None:
    """Scenarios 29, 45; Gap 14: each wrong Ask.each is an error with its field; earlier ones are closed."""
    h = await make_harness([Wrong])
    handles = await h.engine.start_many([Wrong.child({"how": how}) for how in WRONG])

    await h.drain()

    for (_, said), handle in zip(WRONG.values(), handles, strict=True):
        await h.assert_failed(handle.id, said)
    assert await h.sql("select from stepwell.interactions") == []


async def test_no_more_items_are_dispatched_than_the_window(h: Harness) -> None:
    """Scenarios 46, 47: the next is sent when one is resolved, in their order; an item's time begins then."""
    batch = await h.engine.start(Batch, {"items": [*range(5)], "window": 2, "seconds": 60})
    await h.drain()
    out: list[list[int | None]] = []

    for place in (1, 0, 2, 3, 4):
        rows = await interaction_rows(h, batch.id)
        found = await pending(h)
        out.append([q.index for q in found])
        assert all((row["deadline"] is None) == (row["status"] == "queued") for row in rows)
        assert rows[0]["in_flight"] == len(found)
        await h.advance(timedelta(seconds=25))
        await h.engine.complete(interaction=str(rows[place]["id"]), reply=place)
    await h.drain()

    assert out == [[0, 1], [0, 2], [2, 3], [3, 4], [4]]
    await h.assert_done(batch, completed([*range(5)]))


async def test_a_queued_item_may_be_completed_before_it_is_dispatched(h: Harness) -> None:
    """Scenario 33: a completion is accepted in any status that is not an end; it takes no place of the window."""
    batch = await h.engine.start(Batch, {"items": [*range(4)], "window": 1})
    await h.drain()
    rows = await interaction_rows(h, batch.id)

    await h.engine.complete(interaction=str(rows[1]["id"]), reply=1)

    assert [q.index for q in await pending(h)] == [0]
    await h.engine.complete(interaction=str(rows[0]["id"]), reply=0)
    assert [q.index for q in await pending(h)] == [2]
    await answer_all(h, batch.id)
    await h.drain()
    await h.assert_done(batch, completed([0, 1, 2, 3]))


async def test_a_window_holds_across_two_workers(make_harness: MakeHarness) -> None:
    """Scenario 46: it is a number on the unit's row; two workers of one cluster never have more out together.

    Each sends one at a time, and keeps its first until the other has one too: so both of them send.
    """
    both_have_one = asyncio.Event()
    first, second = (Recording(acts=[both_have_one], max_in_flight=1) for _ in range(2))
    h = await make_harness([Batch], transports=[first], poll=SOON, max_poll=SOON)
    batch = await h.engine.start(Batch, {"items": [*range(12)], "window": 3, "transport": "there"})
    most = 0
    async with h.engine.worker(), h.another_engine(transports=[second]) as other, other.worker():
        await eventually(lambda: first.sent and second.sent)
        both_have_one.set()
        for answered in range(12):
            await eventually(lambda n=answered: len(first.sent) + len(second.sent) >= min(n + 3, 12))
            sent = {d.index: d for d in (*first.sent, *second.sent)}
            most = max(most, len(sent) - answered)
            await other.complete(interaction=sent[answered].interaction_id, reply=answered)
        result = await batch.result(30)

    assert result == completed([*range(12)])
    assert most == 3
    assert first.sent
    assert second.sent
    assert sorted(d.index or 0 for d in (*first.sent, *second.sent)) == [*range(12)]


async def test_completions_during_the_filling_wake_the_instance_after_its_end(make_harness: MakeHarness) -> None:
    """Scenarios 21, 33, 34: completions before the park count; if all are there, the step continues at once."""
    machine = each_asker(lambda: range(CHUNK + 2), reply=int, window=1_000)
    h = await make_harness([machine])
    handle = await h.engine.start(machine)

    with armed("ask_each.appended", hold=True) as appended:
        async with h.engine.worker():
            await appended.reached()
            await answer_all(h, handle.id)
            held = await handle.get()
            appended.release()
            await eventually(lambda: pending(h))
            await answer_all(h, handle.id)
            result = await handle.result(30)

    assert held.status == "executing"
    assert [value for _, _, value in result] == [*range(CHUNK + 2)]


async def test_a_killed_filling_resumes_at_its_last_chunk(make_harness: MakeHarness) -> None:
    """Scenarios 23, 48; Gap 16: asked items are skipped. (A source that gives other items: test_sources.)"""
    calls: list[int] = []

    def items() -> Iterator[str]:
        calls.append(1)
        yield from (f"item {n}" for n in range(CHUNK + 3))

    machine = each_asker(items, window=2)
    h = await make_harness([machine])
    h.crash("ask_each.appended")
    handle = await h.engine.start(machine)

    assert (await h.drain()).crashes == 1

    rows = await interaction_rows(h, handle.id)
    assert len(calls) == 2
    assert [row["item"] for row in rows] == [*range(CHUNK + 3)]
    assert [row["request"] for row in rows] == [f'"item {n}"' for n in range(CHUNK + 3)]
    assert (rows[0]["opened"], rows[0]["in_flight"], len({row["unit_id"] for row in rows})) == (CHUNK + 3, 2, 1)


async def test_a_source_that_raises_leaves_no_interaction_open(make_harness: MakeHarness) -> None:
    """Gap 14: interactions opened before the source raised are closed with the failure, and completions are refused."""
    h = await make_harness([Breaking])
    broken = await h.engine.start(Breaking, {"handle": "stop"})

    await h.drain()

    await h.assert_failed(broken, "the file ends here")
    rows = await interaction_rows(h, broken.id)
    assert len(rows) == CHUNK
    assert {row["status"] for row in rows} | {row["unit_status"] for row in rows} == {"cancelled"}


async def test_handle_may_ask_or_retry_after_a_source_raised(make_harness: MakeHarness) -> None:
    """Gap 14, Scenario 48: another ask is a unit of its own; a retry asks the rest; Ask.each is refused there."""
    h = await make_harness([Breaking])
    asking, retrying, each = [await h.engine.start(Breaking, {"handle": how}) for how in ("ask", "retry", "each")]

    await h.drain()

    *closed, interaction = await interaction_rows(h, asking.id)
    assert {row["status"] for row in closed} == {"cancelled"}
    assert (interaction["status"], interaction["request"]) == ("dispatched", '{"error": "the file ends here"}')
    await h.engine.complete(interaction=str(interaction["id"]), reply=1)
    await h.drain()
    await h.assert_done(asking, 1)
    rows = await interaction_rows(h, retrying.id)
    assert (len(rows), len({row["unit_id"] for row in rows}), rows[0]["in_flight"]) == (CHUNK + 1, 1, 100)
    await h.assert_failed(each, "return Next to a step that asks")
    assert {row["status"] for row in await interaction_rows(h, each.id)} == {"cancelled"}


async def test_one_item_that_times_out_leaves_the_others(h: Harness) -> None:
    """Section 6, improved: an item's timeout is its own; the window continues, and the step sees both kinds."""
    batch = await h.engine.start(Batch, {"items": [*range(3)], "window": 1, "seconds": 60})
    await h.drain()

    await h.advance(timedelta(seconds=61))
    await h.drain()
    assert [q.index for q in await pending(h)] == [1]
    await answer_all(h, batch.id)
    await h.drain()

    await h.assert_done(batch, [[0, "timed_out", None], [1, "completed", 1], [2, "completed", 2]])


async def test_a_timeout_with_fail_ends_all_items(h: Harness) -> None:
    """Scenario 76, Gap 14: the instance fails, and no sibling stays open, queued or out."""
    batch = await h.engine.start(Batch, {"items": [*range(4)], "window": 2, "seconds": 60, "on_timeout": "fail"})
    await h.drain()
    await h.engine.complete(interaction=(await pending(h))[0].id, reply=0)
    await h.advance(timedelta(seconds=61))

    await h.drain()

    await h.assert_failed(batch, "was not completed in time")
    statuses = [row["status"] for row in await interaction_rows(h, batch.id)]
    assert statuses == ["completed", "timed_out", "timed_out", "cancelled"]
    assert await pending(h) == []


async def test_a_timeout_before_the_park_fails_the_instance_when_it_parks(make_harness: MakeHarness) -> None:
    """Scenario 74, Gap 2: the unit ended while it was filled; nothing is appended to it, and no instance waits."""
    machine = each_asker(lambda: range(CHUNK + 1), timeout=timedelta(seconds=30), on_timeout="fail")
    h = await make_harness([machine])
    handle = await h.engine.start(machine)

    with armed("ask_each.appended", hold=True) as appended:
        async with h.engine.worker():
            await appended.reached()
            await h.advance(timedelta(seconds=31))
            await eventually(
                lambda: h.sql("select from stepwell.await_units where status = 'timed_out' and not is_filled")
            )
            appended.release()
            await handle.wait(30)

    await h.assert_failed(handle, "was not completed in time")
    rows = await interaction_rows(h, handle.id)
    assert len(rows) == CHUNK
    assert all(row["finished_at"] is not None for row in rows)


async def test_many_items_are_completed_by_concurrent_callers_in_any_order(h: Harness) -> None:
    """Scenarios 31, 41: hundreds of concurrent completions, out of order: one release, replies in item order."""
    batch = await h.engine.start(Batch, {"items": [*range(300)], "window": 1_000})
    await h.drain()
    rows = await interaction_rows(h, batch.id)
    random.Random(6).shuffle(rows)  # noqa: S311 - an order, not a secret

    await asyncio.gather(*(h.engine.complete(interaction=str(row["id"]), reply=row["item"]) for row in rows))

    assert (await h.drain()).total == 1
    await h.assert_done(batch, completed([*range(300)]))


async def test_a_second_batch_of_completions_is_looked_up_beside_the_first(h: Harness) -> None:
    number = LARGEST_GROUP + 1
    handle = await h.engine.start(Batch, {"items": [*range(number)], "window": number})
    await h.drain()
    tally = Tally(h.engine._opened)
    await tally.attach()

    with armed("complete.found", hold=True) as judging:
        answering = asyncio.create_task(answer_all(h, handle.id))
        await judging.reached()
        await eventually(lambda: tally.sent.count("interactions/find") == 2)
        assert len(judging.facts) == 1
        judging.release()
        await answering
    await h.drain()

    assert await handle.result(timeout=30) == completed([*range(number)])


async def test_the_first_completion_wins_even_if_two_come_in_different_batches(h: Harness) -> None:
    number, some = LARGEST_GROUP, 20
    handle = await h.engine.start(Batch, {"items": [*range(number)], "window": number})
    await h.drain()
    ids = [str(row["id"]) for row in await interaction_rows(h, handle.id)]
    await Tally(h.engine._opened).attach()  # with all connections open, the smaller group is looked up first

    first = [h.engine.complete(interaction=id_, reply=1) for id_ in ids]
    again = [h.engine.complete(interaction=id_, reply=2) for id_ in ids[:some]]
    results = await asyncio.gather(*first, *again, return_exceptions=True)

    assert [type(result) for result in results] == [Completion] * number + [CompletionConflict] * some


async def test_one_item_has_its_index_and_its_reply(h: Harness) -> None:
    """A unit of one item is itemized all the same: its only reply has index 0."""
    batch, interaction = await asked(h, Batch, {"items": [7]})

    await h.engine.complete(interaction=interaction.id, reply=8)
    await h.drain()

    assert interaction.index == 0
    await h.assert_done(batch, [[0, "completed", 8]])


@pytest.mark.parametrize("how", ["generator", "async", "in a thread"])
async def test_a_generator_that_is_not_read_to_its_end_is_closed(make_harness: MakeHarness, how: str) -> None:
    closed: list[str] = []
    kept: list[Any] = []  # so that the garbage collector closes none

    def numbers() -> Iterator[Any]:
        try:
            yield from range(CHUNK)
            yield object()  # this cannot be sent
            yield from range(CHUNK)
        finally:
            closed.append(how)

    async def awaited() -> AsyncIterator[Any]:
        try:
            for number in [*range(CHUNK), object(), *range(CHUNK)]:
                yield number
        finally:
            closed.append(how)

    class Broken(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Outcome:
            kept.append(awaited() if how == "async" else numbers())
            return Ask.each("manual", kept[0], reply=int, then=self.start)

        @step
        def in_a_thread(self, ctx: Context[Any]) -> Outcome:
            kept.append(numbers())
            return Ask.each("manual", kept[0], reply=int, then=self.start)

        async def handle(self, error: Exception, ctx: Context[Any]) -> Outcome:
            return Stop(f"{closed} {type(error).__name__}")

    h = await make_harness([Broken])
    run = await h.engine.start(Broken, step="in_a_thread" if how == "in a thread" else "start")

    async with h.engine.worker():
        await run.wait(timeout=10)

    error = (await run.get()).error
    assert error is not None
    assert f"{[how]} Invalid" in str(error)


async def test_a_generator_of_an_abandoned_sync_step_is_closed_by_its_thread(
    make_harness: MakeHarness,
) -> None:
    entered, gate, closed = threading.Event(), threading.Event(), threading.Event()

    def numbers() -> Iterator[int]:
        try:
            yield 1
            entered.set()
            gate.wait(30)
            yield from range(2 * CHUNK)
        finally:
            closed.set()

    kept = numbers()  # so that the garbage collector does not close it

    class Sync(Machine):
        @step
        def start(self, ctx: Context[Any]) -> Outcome:
            return Ask.each("manual", kept, reply=int, then=self.start)

    h = await make_harness([Sync])
    async with h.engine.worker():
        run = await h.engine.start(Sync)
        await eventually(entered.is_set)
        await run.cancel()
        await eventually(lambda: not [task for task in asyncio.all_tasks() if "Sync" in task.get_name()])
        was_closed = closed.is_set()
        gate.set()
        await eventually(closed.is_set)

    assert not was_closed
