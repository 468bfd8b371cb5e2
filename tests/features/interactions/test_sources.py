"""A source that is read again: asked items are compared, skipped if they are equal, and never asked twice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepwell import Ask, Context, Done, Machine, Outcome, Retry, step
from stepwell.pipelines import Pipeline, await_, many_to_many, one_to_many
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.features.interactions.askers import each_asker
from tests.features.interactions.looks import interaction_rows
from tests.support.asked import BROKEN
from tests.support.waiting import eventually
from tests.worker.dead_workers import let_reap

CHUNK = 3
EXAMPLES = 40
OFTEN = timedelta(milliseconds=20)


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell._worker.running.ask_each.CHUNK", CHUNK)


def changing(*sources: list[Any]) -> Callable[[], list[Any]]:
    """What gives the first of these at its first call, the next one at the next, and the last one from then on."""
    left = [*sources]
    return lambda: left.pop(0) if len(left) > 1 else left[0]


async def filled_twice(make_harness: MakeHarness, first: list[Any], second: list[Any], **options: Any) -> Any:
    """A filling that is killed after one chunk, and its second attempt; returns the harness, the handle, the rows."""
    machine = each_asker(changing(first, second), **options)
    h = await make_harness([machine])
    h.crash("ask_each.appended")
    handle = await h.engine.start(machine)
    assert (await h.drain()).crashes == 1
    return h, handle, await interaction_rows(h, handle.id)


ITEMS = [*"abcdefg"]
CHANGED: dict[str, tuple[list[Any], list[Any], str]] = {
    "another item": (ITEMS, [*"abXdefg"], 'item 2 was "c" and is "X"'),
    "another order": (ITEMS, [*"bacdefg"], 'item 0 was "a" and is "b"'),
    "one more in front": (ITEMS, ["new", *ITEMS], 'item 0 was "a" and is "new"'),
    "one less": (ITEMS, [*"acdefg"], 'item 1 was "b" and is "c"'),
    "a sooner end": (ITEMS, [*"ab"], 'item 2 was "c" and is missing'),
    "nothing": (ITEMS, [], 'item 0 was "a" and is missing'),
    "a number as a text": ([1, 2, 3, 4], ["1", 2, 3, 4], 'item 0 was 1 and is "1"'),
    "a null": ([None, 2, 3, 4], [0, 2, 3, 4], "item 0 was null and is 0"),
}


def brief(message: str, step: str = "start", machine: str = "Each") -> str:
    """What an error says of the item and both values."""
    told = message.partition(" now;")[0].replace(" in an earlier attempt,", "")
    return told.replace(f" of step {step!r} of {machine}", "")


async def message(h: Harness, handle: Any) -> str:
    """What the error of a run says that has failed as its source had changed."""
    failed = await h.assert_failed(handle, "SourceChanged")
    assert failed.error is not None
    return failed.error.message


@pytest.mark.parametrize("how", CHANGED)
async def test_a_source_that_changes_fails_its_run_before_more_is_asked(make_harness: MakeHarness, how: str) -> None:
    """Gap 16: the error names the item and both values; asked items are closed, and no others exist."""
    first, second, says = CHANGED[how]

    h, handle, rows = await filled_twice(make_harness, first, second)

    assert brief(await message(h, handle)) == says
    assert [row["item"] for row in rows] == [*range(CHUNK)]
    assert {row["status"] for row in rows} | {row["unit_status"] for row in rows} == {"cancelled"}
    assert await h.sql(BROKEN) == []


STRADDLING = CHUNK + 2  # items of a chunk that has stored ones and new ones
LATER: dict[str, list[Any]] = {
    "the first stored one": [*"Xbcdefg"], "the last stored one": [*"abXdefg"], "all of them": [*"ABCDEFG"],
    "one, and no more is new": [*"abX"], "one, and one is new": [*"aXcd"],
}  # fmt: skip


@pytest.mark.parametrize("how", LATER)
async def test_a_chunk_of_old_and_new_items_asks_nothing_if_an_old_one_differs(
    make_harness: MakeHarness, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Gap 16: the new items of the chunk are neither asked nor counted."""
    given = changing(ITEMS, LATER[how])
    chunks = changing([CHUNK], [STRADDLING])

    def items() -> list[Any]:
        monkeypatch.setattr("stepwell._worker.running.ask_each.CHUNK", *chunks())
        return given()

    machine = each_asker(items)
    h = await make_harness([machine])
    h.crash("ask_each.appended")
    handle = await h.engine.start(machine)

    await h.drain()

    rows = await interaction_rows(h, handle.id)
    await h.assert_failed(handle, "SourceChanged")
    assert [row["item"] for row in rows] == [*range(CHUNK)]
    assert {row["opened"] for row in rows} == {CHUNK}
    assert await h.sql(BROKEN) == []


async def test_a_chunk_of_old_and_new_items_asks_about_the_new_ones(
    make_harness: MakeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunks = changing([CHUNK], [STRADDLING])

    def items() -> list[Any]:
        monkeypatch.setattr("stepwell._worker.running.ask_each.CHUNK", *chunks())
        return ITEMS

    machine = each_asker(items)
    h = await make_harness([machine])
    h.crash("ask_each.appended")
    handle = await h.engine.start(machine)

    await h.drain()

    rows = await interaction_rows(h, handle.id)
    assert [row["request"] for row in rows] == [f'"{item}"' for item in ITEMS]
    assert {row["opened"] for row in rows} == {len(ITEMS)}
    assert await h.sql(BROKEN) == []


SAME: dict[str, tuple[list[Any], list[Any]]] = {
    "more at its end": (ITEMS, [*ITEMS, "h"]),
    "no more than was asked": (ITEMS, ITEMS[:CHUNK]),
    "less of what was not asked": (ITEMS, ITEMS[:5]),
    "keys in another order": ([{"a": 1, "b": [2]}] * 5, [{"b": [2], "a": 1}] * 5),
    "numbers spelled otherwise": ([1, 2.0, 10.5, 1e3], [1.0, 2, 10.50, 1000]),
}


@pytest.mark.parametrize("how", SAME)
async def test_items_that_are_equal_in_json_are_skipped(make_harness: MakeHarness, how: str) -> None:
    """Scenarios 23, 48: items that were not asked yet may be whatever the source gives now."""
    first, second = SAME[how]

    h, handle, rows = await filled_twice(make_harness, first, second)

    assert (await handle.get()).status == "awaiting_external"
    assert [row["item"] for row in rows] == [*range(len(second))]
    assert (rows[0]["opened"], rows[0]["is_filled"], len({row["unit_id"] for row in rows})) == (len(second), True, 1)
    assert await h.sql(BROKEN) == []


def orders(*numbers: int, at: str) -> list[dict[str, Any]]:
    return [{"order": number, "of": {"id": number * 10}, "read at": at} for number in numbers]


async def test_items_with_idempotency_are_compared_by_its_fields_only(make_harness: MakeHarness) -> None:
    first, second = orders(1, 2, 3, 4, at="noon"), orders(1, 2, 3, 4, at="night")

    h, handle, rows = await filled_twice(make_harness, first, second, idempotency=("order", "of"))

    assert (await handle.get()).status == "awaiting_external"
    assert ["noon" in row["request"] for row in rows] == [True] * CHUNK + [False]
    assert await h.sql(BROKEN) == []


async def test_a_field_of_idempotency_that_differs_fails_the_run(make_harness: MakeHarness) -> None:
    first, second = orders(1, 2, 3, 4, at="noon"), orders(1, 3, 2, 4, at="night")

    h, handle, rows = await filled_twice(make_harness, first, second, idempotency=("order", "of"), shared=True)

    says = 'item 1 was {"of": {"id": 20}, "order": 2} and is {"of": {"id": 30}, "order": 3}'
    assert brief(await message(h, handle)) == says
    assert {row["status"] for row in rows} == {"cancelled"}


async def test_long_values_are_shown_from_shortly_before_their_difference(make_harness: MakeHarness) -> None:
    long = "x" * 100_000

    h, handle, _ = await filled_twice(make_harness, [f"{long}one{long}"] * 4, [f"{long}two{long}"] * 4)

    told = await message(h, handle)
    assert len(told) < 1_200
    assert "xone" in told
    assert "xtwo" in told


async def test_a_failed_attempt_is_compared_like_a_crashed_one(make_harness: MakeHarness) -> None:
    """The source breaks behind its first chunk, `handle` tries again, and the second attempt gives other items."""
    given = changing([*"abcd"], [*"abXd"])

    class Breaking(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Outcome:
            async def items() -> AsyncIterator[str]:
                for item in given():
                    yield item
                if not ctx.attempt:
                    raise RuntimeError("the file ends here")

            return Ask.each("manual", items(), then=self.collect)

        @step
        async def collect(self, ctx: Context[Any]) -> Outcome:
            return Done()

        async def handle(self, error: Exception, ctx: Context[Any]) -> Outcome:
            return Retry()

    h = await make_harness([Breaking])
    handle = await h.engine.start(Breaking)

    await h.drain()

    assert brief(await message(h, handle), machine="Breaking") == 'item 2 was "c" and is "X"'


async def test_a_retry_of_a_changed_source_asks_again(make_harness: MakeHarness) -> None:
    """The operator has read the error: a new unit asks about whatever the source gives by then."""
    h, handle, _ = await filled_twice(make_harness, [*"abcd"], [*"bcd"])

    await h.engine.retry(handle.id)
    await h.drain()

    rows = await interaction_rows(h, handle.id)
    assert [row["request"] for row in rows if row["finished_at"] is None] == ['"b"', '"c"', '"d"']
    assert (await handle.get()).status == "awaiting_external"


async def test_a_folder_that_gains_a_file_is_neither_lost_nor_asked_twice(make_harness: MakeHarness) -> None:
    """The script of an audit (p19): b.csv is half asked when the worker dies, and a.csv arrives."""
    folder, runs = {"b.csv": 7}, []

    @one_to_many
    async def files(_: int) -> AsyncIterator[str]:
        if runs:
            folder["a.csv"] = 3
        runs.append(1)
        for name in sorted(folder):
            yield name

    @one_to_many
    async def rows(name: str) -> AsyncIterator[str]:
        for number in range(folder[name]):
            yield f"{name}:{number}"

    @many_to_many
    async def write(items: AsyncIterator[str]) -> AsyncIterator[int]:
        yield len([item async for item in items])

    ask = await_("Ask", over="manual", input=str, output=str, window=2_000)
    pay = Pipeline("pay", [files, rows, ask, write])
    h = await make_harness([pay])
    h.crash("ask_each.appended")
    run = await h.engine.start(pay, 1)

    await h.drain()

    assert brief(await message(h, run), "Ask", "pay") == 'item 0 was "b.csv:0" and is "a.csv:0"'
    asked = await interaction_rows(h, run.id)
    assert [row["request"] for row in asked] == [f'"b.csv:{number}"' for number in range(CHUNK)]


@dataclass
class Script:
    """What the source of one run gives at its first attempt and later, and before which item the first one is held."""

    first: list[int]
    later: list[int]
    held_at: int | None = None
    is_held: asyncio.Event = field(default_factory=asyncio.Event)


SCRIPTS: list[Script] = []


class Scripted(Machine):
    @dataclass
    class State:
        script: int
        fields: list[str]

    @step
    async def start(self, ctx: Context[State]) -> Outcome:
        script = SCRIPTS[ctx.state.script]

        async def items() -> AsyncIterator[dict[str, int]]:
            for place, number in enumerate(script.later if ctx.attempt else script.first):
                if not ctx.attempt and place == script.held_at:
                    script.is_held.set()
                    await asyncio.Event().wait()
                yield {"number": number} | ({"attempt": ctx.attempt} if ctx.state.fields else {})

        return Ask.each("manual", items(), then=self.collect, idempotency=ctx.state.fields, window=4)

    @step
    async def collect(self, ctx: Context[State]) -> Outcome:
        return Done()


NUMBERS = st.lists(st.integers(0, 5), min_size=2 * CHUNK, max_size=4 * CHUNK)


@st.composite
def changes(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """A source, and the same, or shrunk, grown and reordered, anywhere."""
    first = draw(NUMBERS)
    later = [*first]
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.integers(0, len(later)))
        match draw(st.sampled_from(["shrink", "end", "grow", "reorder"])):
            case "shrink":
                del later[place : place + draw(st.integers(1, 3))]
            case "end":
                del later[place:]
            case "grow":
                later[place:place] = draw(st.lists(st.integers(0, 9), min_size=1, max_size=3))
            case "reorder":
                later[place:] = draw(st.permutations(later[place:]))
    return first, later


async def left_after(h: Harness, script: Script, fields: list[str], chunks: int, *, is_killed: bool) -> Any:
    """The handle of a run that lost its worker (killed or stopped) after this many chunks; another continued it."""
    SCRIPTS.append(script)
    state = {"script": len(SCRIPTS) - 1, "fields": fields}
    handle = await h.engine.start(Scripted, state)
    if is_killed:
        h.crash("ask_each.appended", nth=chunks)
        assert (await h.drain()).crashes == 1
        return handle
    script.held_at = chunks * CHUNK
    async with h.engine.worker():
        await script.is_held.wait()
    async with h.another_engine() as other, other.worker():
        await let_reap(h)
        await eventually(lambda: settled(h, handle.id))
    return handle


async def settled(h: Harness, instance_id: int) -> bool:
    [row] = await h.sql("select status from stepwell.instances where id = $1", instance_id)
    return row["status"] not in ("runnable", "executing")


def test_a_source_that_changes_never_loses_or_doubles_items_silently() -> None:
    """Scenarios 23, 48; Gap 16: shrunk, grown or reordered: it continues if asked items are equal, else it fails."""
    with asyncio.Runner() as runner:
        h = runner.run(Harness([Scripted], drain_timeout=timedelta(0), reap=OFTEN).__aenter__())

        @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(change=changes(), chunks=st.integers(1, 2), is_killed=st.booleans(), is_keyed=st.booleans())
        def attempt(change: tuple[list[int], list[int]], chunks: int, is_killed: bool, is_keyed: bool) -> None:
            first, later = change
            fields = ["number"] if is_keyed else []
            chunks = min(chunks, (len(first) - 1) // CHUNK)
            handle = runner.run(left_after(h, Script(first, later), fields, chunks, is_killed=is_killed))
            rows = runner.run(interaction_rows(h, handle.id))
            ended = runner.run(handle.get())
            asked = [json.loads(row["request"])["number"] for row in rows]
            before = first[: chunks * CHUNK]
            if later[: len(before)] == before:
                assert (ended.status, asked) == ("awaiting_external", later)
                assert {row["unit_status"] for row in rows} == {"waiting"}
            else:
                place = next(n for n, number in enumerate(before) if later[n : n + 1] != [number])
                told = runner.run(message(h, handle))
                assert asked == before
                assert told.startswith(f"item {place} of step 'start' of Scripted was ")
                assert {row["status"] for row in rows} == {"cancelled"}
            assert runner.run(h.sql(BROKEN)) == []

        try:
            attempt()
        finally:
            runner.run(h.__aexit__(None, None, None))
