"""What a pipeline's diagram shows, before it is drawn: cards from top to bottom, and what flows between them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from stepwell._core.serialization.type_ref import shown
from stepwell.pipelines.model import RETRIES, AwaitStep, PipelineStep, type_behind

if TYPE_CHECKING:
    from stepwell.pipelines.pipeline import Pipeline
    from stepwell.pipelines.segments import Segment


class Kind(StrEnum):
    """What a card stands for."""

    SEGMENT = "segment"  # one durable step of the machine
    AWAIT = "await"  # an await step
    ITEM = "item"  # the steps that each reply runs through by itself


class Card(msgspec.Struct, frozen=True):
    """A frame with a title, and a row for each step in it: its name, and its facts."""

    kind: Kind
    title: str
    rows: tuple[tuple[str, str], ...]


class Flow(msgspec.Struct, frozen=True):
    """What goes from one card to the next."""

    label: str
    is_many: bool


Drawn: TypeAlias = Card | Flow


def cards(pipeline: Pipeline) -> list[Drawn]:
    """The diagram, from the input to the result."""
    drawn: list[Drawn] = [Flow(_typed(pipeline.parts[0].input), pipeline.takes_many)]
    for segment in pipeline.segments:
        drawn += _segment(segment)
    return drawn


def _segment(segment: Segment) -> Iterator[Drawn]:
    if segment.steps:
        yield Card(Kind.SEGMENT, f"segment {segment.number}", tuple(_row(step) for step in segment.steps))
        yield Flow(_typed(type_behind(segment.steps[0].input, segment.steps)), segment.gives_many)
    await_step = segment.exit
    if await_step is None:
        return
    yield Card(Kind.AWAIT, _asked(segment, await_step), ((await_step.name, await_step.cardinality),
                                                            *_terms(await_step)))
    is_many = segment.asks_each or await_step.cardinality.gives_many
    yield Flow(_typed(await_step.output), is_many)
    if segment.item_steps:
        yield Card(Kind.ITEM, "each reply by itself", tuple(_row(step) for step in segment.item_steps))
        kind = type_behind(await_step.output, segment.item_steps)
        yield Flow(f"{_typed(kind)}, in the order of the items", is_many=True)


def _asked(segment: Segment, await_step: AwaitStep) -> str:
    if segment.asks_each:
        return f"asks about each, at most {await_step.window:,} at a time"
    return "asks about all at once" if await_step.cardinality.is_aggregate else "asks"


def _terms(await_step: AwaitStep) -> Iterator[tuple[str, str]]:
    yield "over", await_step.over
    if await_step.timeout is not None:
        yield "within", brief(await_step.timeout)
    if await_step.idempotency:
        yield "key", ", ".join(await_step.idempotency) + (", shared" if await_step.shared else "")
    if await_step.token:
        yield "replies", "with a signed token"
    if await_step.projector is not None:
        yield "projector", f"{await_step.projector.__name__}, of {_typed(await_step.completion)}"
    if await_step.assignee or await_step.group:
        yield "asked of", ", ".join(filter(None, (await_step.assignee, await_step.group)))


def _row(step: PipelineStep) -> tuple[str, str]:
    facts: list[str] = [step.cardinality]
    if step.retries != RETRIES and not step.cardinality.is_aggregate:
        facts.append("no retries" if step.retries == 0 else f"{step.retries} retries")
    if step.accepts:
        facts.append(f"only {', '.join(_typed(kind) for kind in step.accepts)}")
    if step.on_error == "reject":
        facts.append("rejects")
    return step.name, ", ".join(facts)


def _typed(kind: Any) -> str:
    return "anything" if kind is Any else shown(kind)


def brief(duration: timedelta) -> str:
    """A duration in words: 5 min, 1 d 12 h."""
    left, parts = duration.total_seconds(), []
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if left >= size:
            parts.append(f"{int(left // size)} {unit}")
            left %= size
    return " ".join([*parts, f"{left:g} s"] if left or not parts else parts)


def heading(pipeline: Pipeline) -> str:
    return f"{pipeline.name}, version {pipeline.version}, queue {pipeline.queue}"
