"""Variants of a union: a step takes those it accepts, and the others pass it by, each at its place."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stepwell import DefinitionError
from stepwell.pipelines import Pipeline, PipelineStep, await_, load, many_to_one, one_to_many, one_to_one
from tests.conftest import MakeHarness
from tests.features.pipelines.written import put

PATIENCE = 10


class Approved(msgspec.Struct, tag="approved"):
    number: int


class Declined(msgspec.Struct, tag="declined"):
    number: int
    reason: str


class Line(msgspec.Struct, tag="line"):
    text: str


@one_to_many
async def numbers(upto: int) -> AsyncIterator[int]:
    for number in range(upto):
        yield number


@one_to_one(accepts=Approved)
async def say_yes(approved: Approved) -> Line:
    return Line(f"{approved.number} yes")


@one_to_one(accepts=(Declined,))
def say_no(declined: Declined) -> Line:
    return Line(f"{declined.number} no: {declined.reason}")


@many_to_one
async def joined(lines: AsyncIterator[Line]) -> list[str]:
    return [line.text async for line in lines]


@many_to_one
async def kinds(items: AsyncIterator[Any]) -> list[str]:
    return [type(item).__name__ async for item in items]


ask = await_("Ask", over="manual", input=int, output=Approved | Declined)
YAML = """\
name: variants
module: tests.features.pipelines.test_branching
input: int
steps:
  - {name: Count, function: numbers}
  - name: Ask
    kind: await
    input: int
    output: tests.features.pipelines.test_branching:Approved
    accepts: [int]
    timeout: PT5M
    await: {correlation: {strategy: interactionId}, transport: {type: interaction-api}}
  - {name: Say yes, function: say_yes}
  - {name: Say no, function: "tests.features.pipelines.test_branching:plain_no", cardinality: ONE_TO_ONE, accepts:
  [Declined]}
  - {name: Join, function: joined, terminal: true}
"""


def plain_no(declined: Declined) -> Line:
    return Line(declined.reason)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [((say_yes, say_no, joined), ["0 yes", "1 no: odd", "2 yes", "3 no: odd"]),
     ((say_yes, kinds), ["Line", "Declined", "Line", "Declined"])],
    ids=["a step for each", "some pass by"],
)  # fmt: skip
async def test_each_variant_runs_its_own_steps_and_keeps_its_position(
    make_harness: MakeHarness, steps: tuple[PipelineStep, ...], expected: list[str]
) -> None:
    pipeline = Pipeline("variants", [numbers, ask, *steps])
    h = await make_harness(machines=[pipeline])

    async with h.engine.worker():
        run = await h.engine.start(pipeline, 4)
        await run.wait(PATIENCE, until="settled")
        for interaction in (await h.engine.interactions.pending()).items:
            number = interaction.request
            reply = Declined(number, "odd") if number % 2 else Approved(number)
            await h.engine.complete(interaction=interaction.id, reply=reply)
        result = await run.result(PATIENCE)

    assert result == expected


def test_variants_can_be_written_in_a_file(tmp_path: Path) -> None:
    pipeline = load(put(tmp_path / "variants.yaml", YAML))

    accepted = {part.name: part.accepts for part in pipeline.parts if isinstance(part, PipelineStep)}

    assert accepted == {"Count": (), "Say yes": (Approved,), "Say no": (Declined,), "Join": ()}
    assert "only Declined" in pipeline.diagram()


@pytest.mark.parametrize(
    ("decorate", "problem"),
    [(lambda f: many_to_one(f, accepts=Approved), "takes the whole stream"),
     (lambda f: one_to_one(f, accepts=(list[int],)), "is not a class")],
)  # fmt: skip
def test_an_invalid_accepts_is_refused(decorate: Any, problem: str) -> None:
    async def step(given: Any) -> Any:
        return given

    with pytest.raises(DefinitionError, match=problem):
        decorate(step)
