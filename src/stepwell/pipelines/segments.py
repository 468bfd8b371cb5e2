"""From the parts of a pipeline to its segments: what runs between two await steps, and what single items run
through.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stepwell._core.serialization.reply_type import reply_type
from stepwell._core.serialization.request_type import request_type
from stepwell.config import check_name
from stepwell.errors import InvalidOutcome, InvalidPipeline
from stepwell.pipelines.model import AwaitStep, Cardinality, Part, PipelineStep
from stepwell.pipelines.problems import PipelineProblem


class Segment(msgspec.Struct, frozen=True):
    """One durable step: a stream through ordinary steps, up to an await step or the end."""

    number: int
    steps: tuple[PipelineStep, ...]
    exit: AwaitStep | None
    takes_many: bool  # the input is a stream
    gives_many: bool
    item_steps: tuple[PipelineStep, ...] = ()  # behind an exit that asks about each item: the steps of each reply

    @property
    def asks_each(self) -> bool:
        """Its exit opens one interaction per item."""
        return self.exit is not None and self.gives_many and self.exit.cardinality is Cardinality.ONE_TO_ONE


def plan(pipeline: str, parts: Sequence[Part], *, takes_many: bool) -> list[Segment]:
    """The segments of a pipeline; an InvalidPipeline names the step that does not fit."""
    if not parts:
        raise _refused(pipeline, None, "has no steps")
    _check_parts(pipeline, parts)
    segments: list[Segment] = []
    at, is_many = 0, takes_many
    while at < len(parts) or not segments:
        segment, at, is_many = _segment(pipeline, parts, at, len(segments), is_many=is_many)
        segments.append(segment)
        if segment.exit is not None and at == len(parts):
            segments.append(Segment(len(segments), (), None, is_many, is_many))
    return segments


def _segment(
    pipeline: str, parts: Sequence[Part], at: int, number: int, *, is_many: bool
) -> tuple[Segment, int, bool]:
    """One segment from this part on; returns it, the part behind it, and whether its output is a stream."""
    takes_many, steps = is_many, []
    while at < len(parts) and isinstance(step := parts[at], PipelineStep):
        is_many = _after(pipeline, step, is_many)
        steps.append(step)
        at += 1
    if at == len(parts):
        return Segment(number, tuple(steps), None, takes_many, is_many), at, is_many
    await_step = parts[at]
    assert isinstance(await_step, AwaitStep)  # noqa: S101 - a part is one of two kinds
    if await_step.cardinality is Cardinality.ONE_TO_MANY and is_many:
        raise _refused(pipeline, await_step,
                       "is ONE_TO_MANY, but a stream comes to it; ask about each with ONE_TO_ONE, "
                       "or about all with MANY_TO_MANY")
    segment = Segment(number, tuple(steps), await_step, takes_many, is_many)
    at += 1
    if not segment.asks_each:
        return segment, at, await_step.cardinality.gives_many
    items: list[PipelineStep] = []
    while at < len(parts) and not parts[at].cardinality.is_aggregate:
        step_ = parts[at]
        if isinstance(step_, AwaitStep):
            raise _refused(pipeline, step_,
                           f"asks about single items, as {await_step.name!r} did before it; put a step over the "
                           "whole stream between them")
        items.append(step_)
        at += 1
    return msgspec.structs.replace(segment, item_steps=tuple(items)), at, True


def _after(pipeline: str, step: PipelineStep, is_many: bool) -> bool:
    if step.cardinality.is_aggregate and not is_many:
        raise _refused(pipeline, step, f"is {step.cardinality}, but one value comes to it; make it ONE_TO_ONE or "
                       "ONE_TO_MANY, or let the pipeline take many")
    if step.cardinality.is_aggregate:
        return step.cardinality.gives_many
    return is_many or step.cardinality.gives_many


def _check_parts(pipeline: str, parts: Sequence[Part]) -> None:
    seen: set[str] = set()
    for part in parts:
        if not isinstance(part, Part):
            raise _refused(pipeline, None, f"{part!r} is no step and no await step; decorate it with @one_to_one, "
                           "@one_to_many, @many_to_one or @many_to_many")
        if problem := check_name(part.name, "the name"):
            raise _refused(pipeline, part, problem)
        if part.name in seen:
            raise _refused(pipeline, part, "another step has this name; rename one of them")
        seen.add(part.name)
        if isinstance(part, AwaitStep):
            _check_types(pipeline, part)


def _check_types(pipeline: str, await_step: AwaitStep) -> None:
    """Check the types now: other processes decode replies by them, and requests are checked by them."""
    try:
        reply_type(await_step.reply)
        request_type(await_step.request)
    except InvalidOutcome as error:
        raise _refused(pipeline, await_step, str(error)) from error


def _refused(pipeline: str, part: Part | None, problem: str) -> InvalidPipeline:
    return InvalidPipeline([PipelineProblem(problem, pipeline, None if part is None else part.name)])
