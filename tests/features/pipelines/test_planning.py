"""Which segments come out of which shapes, what single replies run through, and which shapes are refused."""

from __future__ import annotations

import pytest

from stepwell import DefinitionError, InvalidPipeline
from stepwell.pipelines import Boundary, Cardinality, Pipeline, await_
from stepwell.pipelines.model import Part
from stepwell.pipelines.segments import Segment, plan
from tests.features.pipelines.examples import Item, Priced, cheaper, count, double, numbered, total, twice_if_odd


def ask(name: str = "ask", cardinality: str = "ONE_TO_ONE") -> Boundary:
    return await_(name, over="manual", input=Item, output=Priced, cardinality=cardinality)


def shape(segments: list[Segment]) -> list[str]:
    """Each segment as text: what runs, what it asks, and what each reply runs through."""
    return [_line(segment) for segment in segments]


def _line(segment: Segment) -> str:
    steps = " ".join(step.name for step in segment.steps) or "-"
    if segment.exit is None:
        return steps
    how = "?each" if segment.asks_each else "?"
    items = " ".join(step.name for step in segment.item_steps)
    return f"{steps} {how} {segment.exit.name}" + (f" > {items}" if items else "")


SHAPES: dict[str, tuple[list[Part], bool, list[str]]] = {
    "steps alone are one segment": ([count, double], False, ["count double"]),
    "one value, asked about": ([double, ask(), cheaper], False, ["double ? ask", "cheaper"]),
    "nothing before the await step": ([ask(), cheaper], False, ["- ? ask", "cheaper"]),
    "nothing behind it": ([double, ask()], False, ["double ? ask", "-"]),
    "an await step alone": ([ask()], False, ["- ? ask", "-"]),
    "each item is asked about": ([count, ask(), total], False, ["count ?each ask", "total"]),
    "each reply runs up to the next step over all": (
        [count, ask(), cheaper, twice_if_odd, numbered], False,
        ["count ?each ask > cheaper twice_if_odd", "numbered"]),
    "each reply runs up to the end": ([count, ask(), cheaper], False, ["count ?each ask > cheaper", "-"]),
    "each reply runs up to the next await step about all": (
        [count, ask(), cheaper, ask("all", "MANY_TO_MANY"), total], False,
        ["count ?each ask > cheaper", "- ? all", "total"]),
    "a pipeline that takes many asks about each": ([ask(), total], True, ["- ?each ask", "total"]),
    "one interaction about many": ([count, ask("all", "MANY_TO_ONE"), cheaper], False, ["count ? all", "cheaper"]),
    "a reply of many": ([ask("all", "ONE_TO_MANY"), total], False, ["- ? all", "total"]),
    "many values of a reply are asked about one by one": (
        [ask("all", "ONE_TO_MANY"), ask("each"), total], False, ["- ? all", "- ?each each", "total"]),
    "two await steps in a row": ([ask("a"), ask("b"), cheaper], False, ["- ? a", "- ? b", "cheaper"]),
    "a step over all ends the stream": ([count, ask("all", "MANY_TO_ONE"), ask("one")], False,
                                        ["count ? all", "- ? one", "-"]),
}  # fmt: skip


@pytest.mark.parametrize("case", SHAPES)
def test_a_pipeline_is_cut_into_segments_at_its_await_steps(case: str) -> None:
    """Scenario 36: replies run up to, not into, the next step over all."""
    parts, takes_many, expected = SHAPES[case]

    assert shape(plan("p", parts, takes_many=takes_many)) == expected


def test_a_segment_knows_whether_its_input_and_output_are_streams() -> None:
    segments = plan("p", [count, ask(), cheaper, total], takes_many=False)

    assert [(segment.number, segment.takes_many, segment.gives_many) for segment in segments] == [
        (0, False, True), (1, True, False),
    ]  # fmt: skip


REFUSALS: dict[str, tuple[list[Part], str | None, str]] = {
    "no steps": ([], None, "has no steps"),
    "over all, of one": ([total], "total", "is MANY_TO_ONE, but one value comes to it; make it ONE_TO_ONE"),
    "over all, of one answer": ([ask(), numbered], "numbered", "is MANY_TO_MANY, but one value comes to it"),
    "one question, many come": ([count, ask("all", "ONE_TO_MANY")], "all", "is ONE_TO_MANY, but a stream comes to it"),
    "one by one again": ([count, ask("a"), cheaper, ask("b"), total], "b", "asks about single items, as 'a' did"),
    "one to many among items": ([count, ask("a"), ask("b", "ONE_TO_MANY")], "b", "asks about single items, as 'a'"),
    "what can not be read": (
        [double, await_("a", over="manual", input=Pipeline, output=int)], "a", "request: Pipeline cannot be read"),
    "the same name": ([count, double, double], "double", "another step has this name"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_an_impossible_shape_is_refused_with_its_step(case: str) -> None:
    """Scenario 49, and its neighbours."""
    parts, step, says = REFUSALS[case]

    with pytest.raises(InvalidPipeline) as refused:
        Pipeline("p", parts)

    [problem] = refused.value.problems
    assert problem.step == step
    assert problem.problem.startswith(says)
    assert str(refused.value).startswith("pipeline 'p': ")
    assert (problem.pipeline, problem.file, problem.line) == ("p", None, None)


def test_a_function_without_a_cardinality_is_not_a_step() -> None:
    async def plain(item: Item) -> Item:
        return item

    with pytest.raises(DefinitionError, match="is no step and no await step; decorate it with @one_to_one"):
        Pipeline("p", [plain])  # type: ignore[list-item]  # what is refused


def test_other_spellings_of_cardinalities_mean_the_same() -> None:
    """Scenario 12."""
    assert Cardinality("EXPANSION") is Cardinality.ONE_TO_MANY
    assert await_("a", over="manual", output=int, cardinality="REDUCTION").cardinality is Cardinality.MANY_TO_ONE
    with pytest.raises(ValueError, match="'expansion' is not a valid Cardinality"):
        Cardinality("expansion")
