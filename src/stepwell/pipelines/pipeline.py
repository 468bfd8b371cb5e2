"""A pipeline, compiled to a machine: one durable step per segment, and one per part that single items run through."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from importlib import import_module
from types import new_class
from typing import Any

import msgspec

from stepwell._core.interactions import InteractionStatus
from stepwell._core.replies import FIELD, ReplyType, reply_type
from stepwell.context import Context
from stepwell.errors import Cancel, InvalidInput
from stepwell.job import exponential
from stepwell.machine import Machine, step
from stepwell.outcomes import MAX_ITEMS, Ask, Done, Entry, Outcome, Retry, Stop
from stepwell.pipelines.drawing import draw_svg, draw_text
from stepwell.pipelines.parts import Boundary, Cardinality, Part, PipelineStep, type_behind
from stepwell.pipelines.planning import Segment, plan
from stepwell.pipelines.rejecting import Sink, log_rejected
from stepwell.pipelines.streaming import Closing, Stream
from stepwell.transports.base import Transport

PAGE = 500  # outputs that are read at a time
ITEM_ATTEMPTS = 3  # of what a single answer runs through


class _State(dict[str, Any]):
    """The state of a pipeline's instance, made of an input once."""


class Pipeline:
    """Steps and boundaries in their order: `Pipeline("payments", [read, await_("Ask bank", …), write])`.

    An engine takes it as it takes machines: `Engine(machines=[payments])`, `engine.start(payments, input, key=…)`.
    """

    def __init__(
        self,
        name: str,
        parts: Sequence[Part],
        *,
        version: int = 1,
        queue: str = "default",
        takes_many: bool = False,
        rejected: Sink = log_rejected,
        item_attempts: int = ITEM_ATTEMPTS,
        transports: Sequence[Transport] = (),
    ) -> None:
        self.name = name
        self.version = version
        self.queue = queue
        self.transports = tuple(transports)  # that it brings along, for the engine
        self.parts = tuple(parts)
        self.segments = plan(name, self.parts, takes_many=takes_many)
        self.takes_many = takes_many
        self.rejected = rejected
        self.item_attempts = item_attempts
        self._input = reply_type(_input(self.parts))
        self.machine = _compile(self, version, queue)

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str], **options: Any) -> Pipeline:
        """The pipeline in a YAML file; options as for `stepwell.pipelines.load`."""
        files = import_module("stepwell.pipelines.files")  # which makes pipelines itself
        loaded: Pipeline = files.load(path, **options)
        return loaded

    def diagram(self) -> str:
        """What it looks like, as text for a terminal."""
        return draw_text(self)

    def svg(self) -> str:
        """What it looks like, as SVG: by itself, or inside a page in the colour of its text."""
        return draw_svg(self)

    def state(self, input: Any) -> dict[str, Any]:  # noqa: A002 - what goes in
        """The state of an instance that runs over this input; it is checked against the first step's type."""
        if isinstance(input, _State):
            return input
        if not self.takes_many:
            return _State(input=self._checked(input, "input"))
        if not isinstance(input, Iterable) or isinstance(input, str | bytes | Mapping):
            raise InvalidInput("input", f"{self.name} takes many: expected a list, got {type(input).__name__}")
        return _State(input=[self._checked(one, f"input[{number}]") for number, one in enumerate(input)])

    def _checked(self, value: Any, field: str) -> Any:
        """A value as plain JSON, once its type has read it."""
        try:
            text = self._input.encode(value)
            self._input.decode(text)
        except InvalidInput as error:
            raise InvalidInput(error.field.replace(FIELD, field, 1), error.problem) from error
        return msgspec.json.decode(text)

    def child(self, input: Any, **options: Any) -> Entry[Any]:  # noqa: A002 - as above
        """One start, for `engine.start_many`; options as for `engine.start`."""
        return self.machine.child(input, **options)

    def read_input(self, state: dict[str, Any]) -> list[Any]:
        """What goes into the first segment."""
        given = state["input"] if self.takes_many else [state["input"]]
        return [self._input.decode(msgspec.json.encode(one).decode()) for one in given]


def _input(parts: Sequence[Part]) -> Any:
    return parts[0].input


def _compile(pipeline: Pipeline, version: int, queue: str) -> type[Machine]:
    """The machine: `segment_0`, `item_0`, `segment_1`…; what an item runs through is tried again, segments too."""
    namespace: dict[str, Any] = {"__module__": _home(pipeline.parts), "__doc__": f"The pipeline {pipeline.name!r}."}
    for segment in pipeline.segments:
        namespace[f"segment_{segment.number}"] = _segment_step(pipeline, segment)
        if segment.asks_each:
            namespace[f"item_{segment.number}"] = _item_step(pipeline, segment)

    async def handle(self: Machine, error: Exception, ctx: Context[Any]) -> Outcome:
        hopeless = isinstance(error, Cancel | InvalidInput)
        if hopeless or ctx.attempt + 1 >= pipeline.item_attempts:
            return Stop(error)
        return Retry(exponential(ctx.attempt))

    namespace["handle"] = handle
    namespace["_state_from"] = staticmethod(pipeline.state)
    namespace["_refuse_restart"] = staticmethod(_refuse_restart)
    options = {"name": pipeline.name, "version": version, "queue": queue, "initial": "segment_0"}
    return new_class("PipelineMachine", (Machine,), options, lambda body: body.update(namespace))


def _home(parts: Sequence[Part]) -> str:
    """The module where its functions are: there a process that did not ask finds its types."""
    return next((part.function.__module__ for part in parts if isinstance(part, PipelineStep)), __name__)


def _refuse_restart(item: int | None, step: str, at: str) -> str | None:
    """Why an instance is not restarted at a step: behind a question it would go on with nothing, and say nothing."""
    if item is not None:
        return None if at == step else f"an item of a pipeline is restarted where it stands, at {step!r}, not at {at!r}"
    if at == "segment_0":
        return None
    return (f"a pipeline is restarted at 'segment_0', where its input is, not at {at!r}, which lives on answers; retry "
            "it to run the step again at which it failed")


def _segment_step(pipeline: Pipeline, segment: Segment) -> Callable[..., Awaitable[Outcome]]:
    async def run(self: Machine, ctx: Context[Any]) -> Outcome:
        stream = Stream(pipeline.name, ctx.id, pipeline.rejected, ctx._keep_thread)  # noqa: SLF001 - pipelines are the engine's own
        items = stream.through(segment.steps, _incoming(pipeline, segment, ctx))
        if segment.exit is None:
            return await _end(segment, items)
        return await _ask(segment, segment.exit, items)

    run.__name__ = run.__qualname__ = f"segment_{segment.number}"
    return step(run)


def _item_step(pipeline: Pipeline, segment: Segment) -> Callable[..., Awaitable[Outcome]]:
    assert segment.exit is not None  # noqa: S101 - it asks about each
    kind = reply_type(segment.exit.output)

    async def run(self: Machine, ctx: Context[Any]) -> Outcome:
        stream = Stream(pipeline.name, ctx.id, pipeline.rejected, ctx._keep_thread)  # noqa: SLF001 - as above
        value = kind.decode(msgspec.json.encode(ctx.state["value"]).decode())
        items = stream.through(segment.item_steps, _of([value]))
        async with Closing(items):
            return Done([out async for out in items])

    run.__name__ = run.__qualname__ = f"item_{segment.number}"
    return step(run)


async def _of(values: Sequence[Any]) -> AsyncIterator[Any]:
    for value in values:
        yield value


def _incoming(pipeline: Pipeline, segment: Segment, ctx: Context[Any]) -> AsyncIterator[Any]:
    """What comes into a segment: the input, the answer, or what the answers have come to, in the order of the items."""
    if segment.number == 0:
        return _of(pipeline.read_input(ctx.state))
    before = pipeline.segments[segment.number - 1]
    if before.asks_each and ctx._outputs is None:  # noqa: SLF001 - nothing was asked: there were no items
        return _of(())
    if before.asks_each:
        assert before.exit is not None  # noqa: S101 - it asks about each
        return _outputs(ctx, reply_type(type_behind(before.exit.output, before.item_steps)))
    if ctx.reply is None:  # nothing was asked: there were no items
        return _of(())
    if ctx.reply.status is not InteractionStatus.COMPLETED:
        raise Cancel(f"a question has no answer to go on with: it is {ctx.reply.status}"
                     f"{f', {ctx.reply.error}' if ctx.reply.error else ''}")
    return _of(ctx.reply.value if segment.takes_many else [ctx.reply.value])


async def _outputs(ctx: Context[Any], kind: ReplyType) -> AsyncIterator[Any]:
    after = -1
    while page := await ctx._outputs(after, PAGE):  # noqa: SLF001 - pipelines are the engine's own
        for item, result in page:
            for value in msgspec.json.decode(result, type=list[msgspec.Raw]):
                yield kind.decode(bytes(value).decode())
            after = item


async def _end(segment: Segment, items: AsyncIterator[Any]) -> Outcome:
    values = await _collect(items, MAX_ITEMS, "result", "come out at the end, as the result of the instance; end "
                            "the pipeline with a step that writes them somewhere, and gives little")
    return Done(values if segment.gives_many else values[0] if values else None)


async def _ask(segment: Segment, boundary: Boundary, items: AsyncIterator[Any]) -> Outcome:
    then = f"segment_{segment.number + 1}"
    options: dict[str, Any] = {
        "then": then, "timeout": boundary.timeout, "on_timeout": boundary.on_timeout, "shared": boundary.shared,
        "token": boundary.token, "assignee": boundary.assignee, "group": boundary.group,
    }  # fmt: skip
    if segment.asks_each:
        asked = Ask.each(
            boundary.over, items, reply=boundary.reply, window=boundary.window, idempotency=boundary.idempotency,
            **options,
        )
        return msgspec.structs.replace(asked, item_step=f"item_{segment.number}", request_type=boundary.request)
    values = await _collect(items, boundary.max_items, "max_items", f"come to {boundary.name!r}, which asks about all "
                            "of them at once; raise max_items, or ask about each")
    if not values and boundary.cardinality is not Cardinality.MANY_TO_ONE:  # no items, or the one value was rejected
        return Ask.each(boundary.over, (), reply=boundary.output, then=then)  # asks nothing, and goes on
    options["request_type"] = boundary.request
    if boundary.cardinality.is_aggregate:
        return Ask(boundary.over, values, reply=boundary.reply, max_items=boundary.max_items, **options)
    return Ask(
        boundary.over, values[0], reply=boundary.reply, idempotency=boundary.idempotency,
        max_items=boundary.max_items, **options,
    )  # fmt: skip


async def _collect(items: AsyncIterator[Any], most: int, field: str, problem: str) -> list[Any]:
    """All items, if they are not too many to be held at once."""
    values: list[Any] = []
    async with Closing(items):
        async for value in items:
            if most and len(values) == most:
                raise InvalidInput(field, f"more than {most:,} items {problem}")
            values.append(value)
    return values
