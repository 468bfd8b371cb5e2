"""Postgres refuses one outcome in a group commit of a hundred: the others commit, and `handle` gets the refusal."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell import Context, Done, Machine, Next, Outcome, step
from stepwell.testing import Harness, armed
from tests.conftest import MakeHarness

REFUSE = "alter table stepwell.instance_data add constraint no_poison check (state ->> 'poison' is null)"
POISON = {"poison": "deadly"}


class Taster(Machine, initial="taste"):
    """Takes into its state what its input says."""

    @step
    async def taste(self, ctx: Context[Any]) -> Next:
        return Next(self.tell, state={"tasted": True, **(POISON if ctx.state["is_poisoned"] else {})})

    @step
    async def tell(self, ctx: Context[Any]) -> Done:
        return Done("alive")

    async def handle(self, error: BaseException, ctx: Context[Any]) -> Outcome:
        return Done(f"{type(error).__name__}, {ctx.state}")


class Addict(Taster, initial="taste"):
    """Returns another refused outcome for the refusal of an outcome."""

    async def handle(self, error: BaseException, ctx: Context[Any]) -> Outcome:
        return Done("never", state=POISON)


@pytest.fixture
async def h(make_harness: MakeHarness) -> Harness:
    harness = await make_harness([Taster, Addict])
    await harness.sql(REFUSE)
    return harness


async def test_the_one_bad_outcome_of_a_group_goes_to_handle_and_the_rest_commit(
    h: Harness,
) -> None:
    tasters = await h.engine.start_many([(Taster, {"is_poisoned": n == 41}) for n in range(100)])
    with armed("executor.returned", hold=True) as returned, armed("committer.before_commit") as flushed:
        async with h.engine.worker({"default": 100}) as worker:
            await returned.reached(100)
            returned.release()

            results = [await taster.result(timeout=20) for taster in tasters]

    assert len(flushed.facts[0]["ids"]) == 100
    assert results.pop(41) == "RefusedByDatabase, {'is_poisoned': True}"
    assert results == ["alive"] * 99
    assert worker.stats.refused == 1
    assert worker.stats.steps == 100 + 99
    fences = [row["fence"] for row in await h.sql("select fence from stepwell.instances order by fence")]
    assert fences[0] == 2
    assert set(fences[1:]) <= {3, 4}  # one may be released between its steps, for more urgent rows


async def test_an_instance_fails_with_the_refusal_if_handle_is_refused_too(h: Harness) -> None:
    addict = await h.engine.start(Addict, {"is_poisoned": True})

    async with h.engine.worker():
        end = await addict.wait(timeout=20)

    assert end.status == "failed"
    assert end.error is not None
    assert end.error.type == "RefusedByDatabase"
    assert "no_poison" in end.error.message
