"""A pipeline that changes under its version: what another shape is, how it is refused, and which runs are held."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, make_dataclass
from datetime import timedelta
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest

from stepwell import Context, Done, Engine, Hold, Instance, InstanceFailed, Machine, Status, VersionInUse, step
from stepwell.pipelines import Pipeline, await_, many_to_one, one_to_many, one_to_one
from stepwell.pipelines.model import Part
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.support.waiting import eventually

PATIENCE = 10


@dataclass
class Euros:
    amount: int


def named_euros(module: str) -> type:
    """A class that has the same name, and other fields."""
    made = make_dataclass("Euros", [("cents", int)])
    made.__module__ = module
    return made


OTHER: Any = named_euros("decimal")


@one_to_one
async def cents(x: int) -> int:
    return x * 100


@one_to_one
async def book(x: int) -> str:
    return f"booked {x}"


@one_to_one(name="book")
async def book_better(x: int) -> str:
    return f"booked {x} better"


@one_to_many(name="cents")
async def cents_each(x: int) -> AsyncIterator[int]:
    yield x * 100


@one_to_many
async def upto(x: int) -> AsyncIterator[int]:
    for n in range(x):
        yield n


@one_to_one(name="book")
async def book_euros(x: int) -> Euros:
    return Euros(x)


CHUNK = 3
HELD = asyncio.Event()


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell._worker.running.ask_each.CHUNK", CHUNK)
    monkeypatch.setattr(f"{__name__}.HELD", asyncio.Event())


@one_to_many
async def slowly(x: int) -> AsyncIterator[int]:
    """Its first run in a test stops after the first chunk."""
    for n in range(x):
        if n == CHUNK and not HELD.is_set():
            HELD.set()
            await asyncio.Event().wait()
        yield n


@many_to_one
async def add_up(xs: AsyncIterator[Any]) -> int:
    return len([x async for x in xs])


@one_to_one(name="cents")
async def cents_of_text(x: str) -> int:
    return len(x)


@one_to_one
async def again(x: int) -> int:
    return x


@one_to_one(name="book", retries=0)
async def fails(x: int) -> str:
    raise ValueError(x)


def ask(name: str = "Ask amount", **options: Any) -> Part:
    return await_(name, **{"over": "manual", "input": int, "output": int, **options})


def payout(parts: list[Part], **options: Any) -> Pipeline:
    return Pipeline("payout", parts, **options)


OLD = [cents, ask(), book]
old = payout(OLD)
each = payout([upto, ask(), book, add_up])
half_asked = payout([slowly, ask(), book, add_up])


class Replaced(Machine, name="payout", initial="segment_0"):
    @step
    async def segment_0(self, ctx: Context[Any]) -> Done:
        return Done()


async def until_held(engine: Engine, run: int) -> Instance:
    """A run once a worker has found that it does not fit."""

    async def held() -> Instance | None:
        found = await engine.get(run)
        return found if found.hold is Hold.UNFIT else None

    return await eventually(held)


OTHERS: dict[str, tuple[Pipeline, Any]] = {
    "an await step before": (old, payout([cents, ask("Ask limit"), ask(), book])),
    "an await step after it": (old, payout([cents, ask(), book, ask("Ask boss", input=str)])),
    "an await step less": (old, payout([cents, book])),
    "an await step of another name": (old, payout([cents, ask("Ask limit"), book])),
    "an await step of another cardinality": (old, payout([cents, ask(cardinality="ONE_TO_MANY"), book])),
    "another reply": (old, payout([cents, ask(output=str), book])),
    "another request": (old, payout([cents, ask(input=str), book])),
    "a step more": (old, payout([cents, ask(), again, book])),
    "a step less": (old, payout([ask(), book])),
    "a step that is moved after the await step": (old, payout([ask(), cents, book])),
    "a step of another cardinality": (old, payout([cents_each, ask(), book])),
    "another input": (old, payout([cents_of_text, ask(), book])),
    "an input of many": (old, payout(OLD, takes_many=True)),
    "items that come to another type": (each, payout([upto, ask(), book_euros, add_up])),
    "a step that items run through no more": (each, payout([upto, ask(), add_up])),
    "a reply of another class of the same name": (
        payout([cents, ask(output=int | Euros)]), payout([cents, ask(output=int | OTHER)]),
    ),
    "replies of another class of the same name": (
        payout([cents, ask(output=list[Euros] | int)]), payout([cents, ask(output=list[OTHER] | int)]),
    ),
    "a machine in its place": (old, Replaced),
}  # fmt: skip


async def parked(h: Harness, pipeline: Pipeline) -> int:
    """A run that waits for its first reply."""
    run = await h.engine.start(pipeline, 3)
    await h.drain()
    assert (await run.get()).status is Status.AWAITING_EXTERNAL
    return run.id


async def answer(engine: Engine, reply: Any = 5) -> None:
    for interaction in (await engine.interactions.pending()).items:
        await engine.complete(interaction=interaction.id, reply=reply)


@pytest.mark.parametrize("case", OTHERS)
async def test_another_shape_is_refused_while_runs_of_its_version_live(make_harness: MakeHarness, case: str) -> None:
    before, after = OTHERS[case]
    h = await make_harness(machines=[before])
    run = await parked(h, before)

    async with Engine(h.url, machines=[after]) as engine:
        with pytest.raises(VersionInUse, match=rf"'payout' version 1: .* such as {run}; raise version=") as refused:
            async with engine.worker():
                pass
        with pytest.raises(VersionInUse):
            await engine.migrate()

    assert (refused.value.machine, refused.value.version, refused.value.run) == ("payout", 1, run)
    await answer(h.engine)
    await h.drain()
    assert (await h.engine.get(run)).status is Status.DONE


SAME: dict[str, Pipeline] = {
    "the same": payout(OLD),
    "another function under a step's name": payout([cents, ask(), book_better]),
    "other options of the await step": payout([cents, ask(timeout=timedelta(days=1), window=7, group="boss"), book]),
    "other tries": payout([one_to_one(name="cents", retries=9)(cents.function), ask(), book], item_attempts=7),
}


@pytest.mark.parametrize("case", SAME)
async def test_code_of_the_same_shape_takes_over_the_runs(make_harness: MakeHarness, case: str) -> None:
    h = await make_harness(machines=[old])
    run = await parked(h, old)

    async with Engine(h.url, machines=[SAME[case]]) as engine, engine.worker():
        await answer(engine)
        result = await engine.wait(run, timeout=PATIENCE)

    assert (result.status, str(result.result).startswith("booked 5")) == (Status.DONE, True)


async def test_another_shape_is_accepted_once_no_run_of_its_version_lives(make_harness: MakeHarness) -> None:
    h = await make_harness(machines=[old])
    done, cancelled = await parked(h, old), await parked(h, old)
    await h.engine.cancel(cancelled)
    await answer(h.engine)
    await h.drain()
    assert (await h.engine.get(done)).status is Status.DONE
    new = OTHERS["an await step before"][1]

    async with Engine(h.url, machines=[new]) as engine, engine.worker():
        run = await engine.start(new, 1)
        await run.wait(timeout=PATIENCE, until="settled")
        [interaction] = (await engine.interactions.pending()).items

    assert interaction.request == 100


async def test_two_versions_run_at_the_same_time_each_in_its_shape(make_harness: MakeHarness) -> None:
    h = await make_harness(machines=[old])
    run = await parked(h, old)
    new = payout([cents, ask("Ask limit"), ask(), book], version=2)

    async with Engine(h.url, machines=[old, new]) as engine, engine.worker():
        await answer(engine)
        ended = await engine.wait(run, timeout=PATIENCE)
        later = await engine.start("payout", 1)
        await later.wait(timeout=PATIENCE, until="settled")
        version = (await later.get()).version

    assert (ended.result, version) == ("booked 5", 2)


async def test_a_pipeline_that_asks_nothing_may_change_while_it_runs(make_harness: MakeHarness) -> None:
    h = await make_harness(machines=[payout([cents, book])])
    run = await h.engine.start("payout", 3)

    async with Engine(h.url, machines=[payout([book])]) as engine, engine.worker():
        assert (await engine.wait(run.id, timeout=PATIENCE)).result == "booked 3"


async def begun_by_the_old(h: Harness, new: Pipeline) -> int:
    """A run that a worker of the old shape started while the new one was registered; its interaction is completed."""
    async with h.engine.worker(), Engine(h.url, machines=[new]) as engine:
        async with engine.worker():
            pass
        run = await h.engine.start(old, 3)
        await run.wait(timeout=PATIENCE, until="settled")
    await answer(h.engine)
    return run.id


@pytest.mark.parametrize("case", ["an await step before", "a step that is moved after the await step", "another reply"])
async def test_a_run_of_another_shape_is_held_with_the_reason(make_harness: MakeHarness, case: str) -> None:
    new = OTHERS[case][1]
    h = await make_harness(machines=[old])
    run = await begun_by_the_old(h, new)

    async with Engine(h.url, machines=[new]) as engine, engine.worker():
        held = await until_held(engine, run)

    assert (held.status, held.hold, held.step) == (Status.RUNNABLE, Hold.UNFIT, f"segment_1.{old.shape}")
    assert held.waiting_for is not None
    at = f"it is at the await step 'Ask amount' ('segment_1.{old.shape}') of an earlier payout: "
    assert f"{at}its steps were changed without a new version" in held.waiting_for


async def test_a_held_run_continues_in_its_own_shape(make_harness: MakeHarness) -> None:
    new = OTHERS["an await step before"][1]
    h = await make_harness(machines=[old])
    run = await begun_by_the_old(h, new)
    async with Engine(h.url, machines=[new]) as engine, engine.worker():
        await until_held(engine, run)

    async with h.engine.worker():
        assert (await h.engine.wait(run, timeout=PATIENCE)).result == "booked 5"


async def test_a_held_run_can_be_restarted_in_the_new_shape(make_harness: MakeHarness) -> None:
    new = OTHERS["an await step before"][1]
    h = await make_harness(machines=[old])
    run = await begun_by_the_old(h, new)

    async with Engine(h.url, machines=[new]) as engine, engine.worker():
        await until_held(engine, run)
        await engine.restart(run, step="segment_0")
        await engine.wait(run, timeout=PATIENCE, until="settled")
        await answer(engine, 7)
        await engine.wait(run, timeout=PATIENCE, until="settled")
        [interaction] = (await engine.interactions.pending()).items

    assert interaction.request == 7


async def test_items_of_another_shape_are_held_as_well(make_harness: MakeHarness) -> None:
    new = OTHERS["items that come to another type"][1]
    h = await make_harness(machines=[each])
    async with h.engine.worker(), Engine(h.url, machines=[new]) as engine:
        async with engine.worker():
            pass
        run = await h.engine.start(each, 1)
        await run.wait(timeout=PATIENCE, until="settled")
    await answer(h.engine)

    async with Engine(h.url, machines=[new]) as engine, engine.worker():
        [row] = await h.sql("select id from stepwell.instances where parent_id = $1", run.id)
        held = await until_held(engine, row["id"])

    assert (held.hold, held.step) == (Hold.UNFIT, f"item_0.{each.shape}")


@pytest.mark.parametrize("spec", [None, ModuleSpec("shop.euros", None)])
def test_a_script_and_modules_that_import_it_have_one_shape(
    monkeypatch: pytest.MonkeyPatch, spec: ModuleSpec | None
) -> None:
    main = ModuleType("__main__")
    main.__file__, main.__spec__ = "/srv/shop/euros.py", spec
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setitem(sys.modules, "euros" if spec is None else spec.name, main)

    run, imported = (payout([ask(output=named_euros(module))]) for module in
                     ("__main__", "euros" if spec is None else spec.name))  # fmt: skip

    assert run.shape == imported.shape
    assert run.shape != payout([ask(output=Euros)]).shape


LATER: dict[str, Pipeline] = {
    "an await step of another name": payout([slowly, ask("Ask limit"), book, add_up]),
    "a step that items run through no more": payout([slowly, ask(), add_up]),
    "an await step about all": payout([slowly, ask(cardinality="MANY_TO_ONE"), book]),
    "no await step": payout([slowly, book, add_up]),
}


async def left_half_asked(make_harness: MakeHarness, new: Pipeline) -> tuple[Harness, int]:
    """A run of `half_asked` that its worker has left between two chunks; the new shape was registered before it."""
    h = await make_harness(machines=[half_asked], drain_timeout=timedelta(0), reap=timedelta(milliseconds=20))
    async with h.engine.worker():
        async with Engine(h.url, machines=[new]) as engine:
            await engine.migrate()
        run = await h.engine.start(half_asked, 2 * CHUNK)
        await HELD.wait()
    assert len((await h.engine.interactions.pending(limit=3 * CHUNK)).items) == CHUNK
    return h, run.id


@pytest.mark.parametrize("case", LATER)
async def test_a_run_that_has_asked_about_some_items_is_held_as_well(
    make_harness: MakeHarness, case: str, small_chunks: None
) -> None:
    """Interactions of one shape and continuations in another would be mixed in one unit."""
    h, run = await left_half_asked(make_harness, LATER[case])

    async with Engine(h.url, machines=[LATER[case]], reap=timedelta(milliseconds=20)) as engine, engine.worker():
        held = await until_held(engine, run)

    assert (held.status, held.step) == (Status.RUNNABLE, "segment_0")
    assert held.waiting_for is not None
    at = "it is at the await step 'Ask amount' ('segment_0') of an earlier payout: "
    assert f"{at}its steps were changed without a new version" in held.waiting_for
    asked = (await h.engine.interactions.pending(limit=3 * CHUNK)).items
    assert [interaction.step for interaction in asked] == ["Ask amount"] * CHUNK


@pytest.mark.parametrize("how", ["by its own shape", "from its beginning"])
async def test_a_run_that_has_asked_about_some_items_continues(
    make_harness: MakeHarness, how: str, small_chunks: None
) -> None:
    new = LATER["an await step of another name"]
    h, run = await left_half_asked(make_harness, new)
    async with Engine(h.url, machines=[new], reap=timedelta(milliseconds=20)) as engine, engine.worker():
        await until_held(engine, run)
        if how == "from its beginning":
            await engine.restart(run, step="segment_0")
            await engine.wait(run, timeout=PATIENCE, until="settled")

    if how == "by its own shape":
        async with h.engine.worker():
            await h.engine.wait(run, timeout=PATIENCE, until="settled")

    asked = (await h.engine.interactions.pending(limit=3 * CHUNK)).items
    name = "Ask amount" if how == "by its own shape" else "Ask limit"
    assert sorted((interaction.index, interaction.step) for interaction in asked) == [
        (n, name) for n in range(2 * CHUNK)
    ]


async def test_a_failed_run_that_is_retried_in_another_shape_is_held(make_harness: MakeHarness) -> None:
    h = await make_harness(machines=[payout([cents, ask(), fails])])
    run = await parked(h, old)
    await answer(h.engine)
    async with h.engine.worker():
        with pytest.raises(InstanceFailed):
            await h.engine.handle(run).result(timeout=PATIENCE)

    async with Engine(h.url, machines=[OTHERS["an await step before"][1]]) as engine, engine.worker():
        await engine.retry(run)
        held = await until_held(engine, run)

    assert held.hold is Hold.UNFIT
