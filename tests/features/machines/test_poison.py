"""One bad row, payload or outcome never fails its neighbours, its queue or its worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stepwell import Context, Done, Machine, Next, Retry, Status, Stop, step
from stepwell.testing import armed
from tests.conftest import MakeHarness

POISONS: dict[str, Callable[[], Any]] = {
    "an unencodable state": lambda: Next("start", state={"value": object()}),
    "a state of another type": lambda: Next("start", state=[1, 2]),
    "NUL in a state": lambda: Next("start", state={"value": "a\x00b"}),
    "NUL in a result": lambda: Done("a\x00b"),
    "a lone surrogate": lambda: Done("\ud800"),
    "too large a state": lambda: Next("start", state={"value": "x" * 2_000_000}),
    "too large a result": lambda: Done("x" * 2_000_000),
    "NaN": lambda: Done(float("nan")),
    "an infinite number": lambda: Next("start", state={"value": float("inf")}),
    "a result that contains itself": lambda: Done(_endless()),
    "a delay that is none": lambda: Retry(5),  # type: ignore[arg-type]
    "a reason that is none": lambda: Stop(5),  # type: ignore[arg-type]
    "a step that is none": lambda: Next("nowhere"),
}


def _endless() -> list[Any]:
    endless: list[Any] = []
    endless.append(endless)
    return endless


class Poison(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Any:
        return POISONS[ctx.state["poison"]]()


class Neighbour(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Next:
        ctx.state["seen"] = True
        return Next(self.end)

    @step
    def end(self, ctx: Context[Any]) -> Done:
        return Done("fine")


@pytest.mark.parametrize("poison", POISONS)
async def test_a_poisonous_outcome_fails_alone_while_its_neighbours_finish(
    make_harness: MakeHarness, poison: str
) -> None:
    """Scenario 17."""
    h = await make_harness([Poison, Neighbour])
    handles = await h.engine.start_many(
        [*[Neighbour] * 10, Poison.child({"poison": poison}), *[Neighbour] * 10]
    )  # fmt: skip
    poisoned = handles.pop(10)

    async with h.engine.worker() as worker:
        ended = await poisoned.wait(timeout=30)
        results = [await handle.result(timeout=30) for handle in handles]

    assert results == ["fine"] * 20
    assert ended.error is not None
    assert (ended.status, ended.state, worker.stats.refused) == (Status.FAILED, {"poison": poison}, 0)


async def test_an_unprintable_error_fails_alone(make_harness: MakeHarness) -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    class Rude(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Done:
            raise Unspeakable("\x00\ud800")

    h = await make_harness([Rude, Neighbour])
    rude, neighbour = await h.engine.start_many([Rude, Neighbour])
    async with h.engine.worker():
        ended = await rude.wait(timeout=30)
        result = await neighbour.result(timeout=30)

    assert ended.error is not None
    assert (ended.error.type.rpartition(".")[2], result) == ("Unspeakable", "fine")


async def test_an_outcome_refused_by_postgres_goes_to_handle_and_fails_alone(
    make_harness: MakeHarness,
) -> None:
    class Refused(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Done:
            return Done("refused")

        async def handle(self, error: BaseException, ctx: Context[Any]) -> Stop:
            return Stop(f"handled {type(error).__name__}")

    h = await make_harness([Refused, Neighbour])
    await h.sql("""alter table stepwell.instance_data add constraint picky check (result <> '"refused"')""")
    handles = await h.engine.start_many([*[Neighbour] * 10, Refused, *[Neighbour] * 10])
    refused = handles.pop(10)
    with armed("committer.before_commit", hold=True) as flushing:
        async with h.engine.worker() as worker:
            await flushing.reached()
            flushing.release()
            ended = await refused.wait(timeout=30)
            results = [await handle.result(timeout=30) for handle in handles]

    assert ended.error is not None
    assert (ended.status, ended.error.message) == (Status.FAILED, "handled RefusedByDatabase")
    assert (results, worker.stats.refused) == (["fine"] * 20, 1)


async def test_an_outcome_refused_again_after_handle_fails_with_the_refusal(make_harness: MakeHarness) -> None:
    class Stubborn(Machine):
        @step
        async def start(self, ctx: Context[Any]) -> Done:
            return Done("refused")

        async def handle(self, error: BaseException, ctx: Context[Any]) -> Done:
            return Done("refused")

    h = await make_harness([Stubborn])
    await h.sql("""alter table stepwell.instance_data add constraint picky check (result <> '"refused"')""")
    stubborn = await h.engine.start(Stubborn)
    async with h.engine.worker():
        ended = await stubborn.wait(timeout=30)

    assert ended.error is not None
    assert (ended.error.type, "picky" in ended.error.message) == ("RefusedByDatabase", True)
