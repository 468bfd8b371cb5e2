"""A pipeline in YAML runs as one in Python does: over a real database, with the transports that its file describes."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepwell import Duplicate
from stepwell.pipelines import Rejected, load
from tests.conftest import MakeHarness
from tests.pipelines.examples import Numbers, plain
from tests.pipelines.written import STRATEGY, TRANSPORT, prices

PATIENCE = 10


async def test_a_pipeline_in_a_file_asks_over_its_own_transport_and_ends(
    make_harness: MakeHarness, tmp_path: Path
) -> None:
    put_aside: list[Rejected] = []
    path = prices(tmp_path, ("queue: slow", "queue: default"), (STRATEGY, "{strategy: interactionId}"),
                  (TRANSPORT, "{type: interaction-api, name: sellers}"))  # fmt: skip
    pipeline = load(path, rejected=put_aside.append)
    h = await make_harness(machines=[pipeline.machine], transports=pipeline.transports)

    async with h.engine.worker():
        run = await h.engine.start(pipeline.machine, pipeline.state(Numbers(3)))
        await run.wait(PATIENCE, until="settled")
        questions = (await h.engine.interactions.pending()).items
        for question in reversed(questions):
            number = question.request["number"]
            await h.engine.complete(interaction=question.id, reply={"number": number, "price": 10 * number})
        result = await run.result(PATIENCE)

    assert {(q.transport, q.assignee, q.group) for q in questions} == {("sellers", "ana", "finance")}
    assert len(questions) == 3
    assert result == -1 + 9 + 19
    assert put_aside == []


async def test_an_execution_key_starts_a_pipeline_once(make_harness: MakeHarness) -> None:
    h = await make_harness(machines=[plain.machine])

    first = await h.engine.start(plain.machine, plain.state(Numbers(3)), key="file:7")
    with pytest.raises(Duplicate) as refused:
        await h.engine.start(plain.machine, plain.state(Numbers(4)), key="file:7")

    async with h.engine.worker():
        assert (await first.result(PATIENCE)) == [{"number": 0}, {"number": 2}, {"number": 4}]
    assert refused.value.id == first.id
