"""Pipelines are started and run as machines are: written in Python, or in a file with its transports."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell import Duplicate, InvalidInput
from stepwell.pipelines import Pipeline, Rejected, load
from tests.conftest import MakeHarness
from tests.features.pipelines.examples import Item, Numbers, double, plain
from tests.features.pipelines.written import STRATEGY, TRANSPORT, prices

PATIENCE = 10
several = Pipeline("several", [double], takes_many=True)


async def test_a_pipeline_in_a_file_asks_over_its_own_transport_and_ends(
    make_harness: MakeHarness, tmp_path: Path
) -> None:
    rejected: list[Rejected] = []
    path = prices(tmp_path, ("queue: slow", "queue: default"), (STRATEGY, "{strategy: interactionId}"),
                  (TRANSPORT, "{type: interaction-api, name: sellers}"))  # fmt: skip
    pipeline = load(path, rejected=rejected.append)
    h = await make_harness(machines=[pipeline], transports=pipeline.transports)

    async with h.engine.worker():
        run = await h.engine.start(pipeline, Numbers(3))
        await run.wait(PATIENCE, until="settled")
        interactions = (await h.engine.interactions.pending()).items
        for interaction in reversed(interactions):
            number = interaction.request["number"]
            await h.engine.complete(interaction=interaction.id, reply={"number": number, "price": 10 * number})
        result = await run.result(PATIENCE)

    assert {(q.transport, q.assignee, q.group) for q in interactions} == {("sellers", "ana", "finance")}
    assert len(interactions) == 3
    assert result == -1 + 9 + 19
    assert rejected == []


async def test_an_execution_key_starts_a_pipeline_once(make_harness: MakeHarness) -> None:
    h = await make_harness(machines=[plain])

    first = await h.engine.start(plain, Numbers(3), key="file:7")
    with pytest.raises(Duplicate) as refused:
        await h.engine.start(plain, Numbers(4), key="file:7")

    async with h.engine.worker():
        assert (await first.result(PATIENCE)) == [{"number": 0}, {"number": 2}, {"number": 4}]
    assert refused.value.id == first.id


@pytest.mark.parametrize(
    ("pipeline", "given", "field"),
    [(plain, Numbers("x"), "input.upto"), (plain, 7, "input"), (plain, None, "input"),  # type: ignore[arg-type]  # that is wrong
     (several, [Item(1), {"number": "x"}], "input[1].number"), (several, Item(1), "input"), (several, "12", "input")],
)  # fmt: skip
async def test_an_input_of_another_type_is_refused_with_its_path(
    make_harness: MakeHarness, pipeline: Pipeline, given: object, field: str
) -> None:
    h = await make_harness(machines=[plain, several])

    with pytest.raises(InvalidInput) as refused:
        await h.engine.start(pipeline, given)

    assert refused.value.field == field
    assert await h.sql("select from stepwell.instances") == []


async def test_a_pipeline_may_be_used_where_a_machine_is_expected(make_harness: MakeHarness) -> None:
    h = await make_harness(machines=[plain, several])
    async with h.engine.worker():
        runs = await h.engine.start_many([(plain, Numbers(1)), several.child([Item(4)], key="k")])
        by_name = await h.engine.start("plain", {"upto": 2})

        results = [await run.result(PATIENCE) for run in [*runs, by_name] if not isinstance(run, Duplicate)]

    assert results == [[{"number": 0}], [{"number": 8}], [{"number": 0}, {"number": 2}]]
