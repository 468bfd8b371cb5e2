"""A pipeline, compiled to a machine: one step per segment, and one per part that single items run through."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from importlib import import_module
from types import new_class
from typing import Any

import msgspec

from stepwell._core.interaction import InteractionStatus
from stepwell._core.serialization.reply_type import FIELD, ReplyType, reply_type
from stepwell.context import Context
from stepwell.errors import Cancel, InvalidInput
from stepwell.job import exponential
from stepwell.machine import Machine, step
from stepwell.outcomes import MAX_ITEMS, Ask, AskEach, Done, Entry, Outcome, Retry, Stop
from stepwell.pipelines.diagram.render import draw_svg, draw_text
from stepwell.pipelines.model import AwaitStep, Cardinality, Part, PipelineStep, type_behind
from stepwell.pipelines.running.rejects import Sink, log_rejected
from stepwell.pipelines.running.stream import Closing, Stream
from stepwell.pipelines.segments import Segment, plan
from stepwell.pipelines.shape import shape_of
from stepwell.transports.base import Transport

PAGE = 500  # outputs that are read at a time
BEGINNING = "segment_0"
ITEM_ATTEMPTS = 3  # of the steps of a single reply


class _State(dict[str, Any]):
    """The state of a pipeline's instance, already made of an input."""


class Pipeline:
    """Steps and await steps in their order: `Pipeline("payments", [read, await_("Ask bank", …), write])`.

    An engine takes it like a machine: `Engine(machines=[payments])`, `engine.start(payments, input, key=…)`.
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
        self.transports = tuple(transports)  # that come with it, for the engine
        self.parts = tuple(parts)
        self.segments = plan(name, self.parts, takes_many=takes_many)
        self.shape = shape_of(self.parts, self.segments, takes_many=takes_many)
        self.takes_many = takes_many
        self.rejected = rejected
        self.item_attempts = item_attempts
        self._input = reply_type(_input(self.parts))
        self.machine = _compile(self, version, queue)

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str], **options: Any) -> Pipeline:
        """The pipeline in a YAML file; options as for `stepwell.pipelines.load`."""
        files = import_module("stepwell.pipelines.yaml.load")  # imports this module
        loaded: Pipeline = files.load(path, **options)
        return loaded

    def diagram(self) -> str:
        """The pipeline as text for a terminal."""
        return draw_text(self)

    def svg(self) -> str:
        """The pipeline as SVG: by itself, or inside a page in the colour of its text."""
        return draw_svg(self)

    def state(self, input: Any) -> dict[str, Any]:  # noqa: A002 - the name of its argument in the API
        """The state of an instance that runs over this input, which is checked against the first step's type."""
        if isinstance(input, _State):
            return input
        if not self.takes_many:
            return _State(input=self._checked(input, "input"))
        if not isinstance(input, Iterable) or isinstance(input, str | bytes | Mapping):
            raise InvalidInput("input", f"{self.name} takes many: expected a list, got {type(input).__name__}")
        return _State(input=[self._checked(one, f"input[{number}]") for number, one in enumerate(input)])

    def _checked(self, value: Any, field: str) -> Any:
        """A value as plain JSON, after its type has decoded it."""
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
        """The items that go into the first segment."""
        given = state["input"] if self.takes_many else [state["input"]]
        return [self._input.decode(msgspec.json.encode(one).decode()) for one in given]


def _input(parts: Sequence[Part]) -> Any:
    return parts[0].input


def _compile(pipeline: Pipeline, version: int, queue: str) -> type[Machine]:
    """The machine: `segment_0`, `item_0.<shape>`, `segment_1.<shape>`…; the steps of items and the segments are
    retried.

    A step behind an await step has the shape in its name, so that no other shape of the pipeline runs it.
    """
    namespace: dict[str, Any] = {
        "__module__": _home(pipeline.parts), "__doc__": f"The pipeline {pipeline.name!r}.", "_shape": pipeline.shape,
        "_authored": _authored(pipeline),
    }  # fmt: skip
    for segment in pipeline.segments:
        namespace[_name(pipeline, segment.number)] = _segment_step(pipeline, segment)
        if segment.asks_each:
            namespace[_item_name(pipeline, segment.number)] = _item_step(pipeline, segment)

    async def handle(self: Machine, error: Exception, ctx: Context[Any]) -> Outcome:
        hopeless = isinstance(error, Cancel | InvalidInput)
        if hopeless or ctx.attempt + 1 >= pipeline.item_attempts:
            return Stop(error)
        return Retry(exponential(ctx.attempt))

    namespace["handle"] = handle
    namespace["_state_from"] = staticmethod(pipeline.state)
    namespace["_refuse_restart"] = staticmethod(_refuse_restart)
    options = {"name": pipeline.name, "version": version, "queue": queue, "initial": BEGINNING}
    return new_class("PipelineMachine", (Machine,), options, lambda body: body.update(namespace))


def _name(pipeline: Pipeline, segment: int) -> str:
    """The step of a segment. A run that has not asked yet may start in any shape."""
    return f"segment_{segment}.{pipeline.shape}" if segment else BEGINNING


def _item_name(pipeline: Pipeline, segment: int) -> str:
    return f"item_{segment}.{pipeline.shape}"


def _authored(pipeline: Pipeline) -> dict[str, str]:
    """The author's name for each step of the machine."""
    names = {}
    for segment in pipeline.segments:
        parts: list[Part] = [*segment.steps, *([] if segment.exit is None else [segment.exit])]
        if parts:
            names[_name(pipeline, segment.number)] = ", ".join(repr(part.name) for part in parts)
        if segment.asks_each and segment.item_steps:
            names[_item_name(pipeline, segment.number)] = ", ".join(repr(part.name) for part in segment.item_steps)
    return names


def _home(parts: Sequence[Part]) -> str:
    """The module of its functions, in which a process that did not ask finds its types."""
    return next((part.function.__module__ for part in parts if isinstance(part, PipelineStep)), __name__)


def _refuse_restart(item: int | None, step: str, at: str) -> str | None:
    """Refuse a restart behind an await step, where the run would have no input."""
    if item is not None:
        return None if at == step else f"an item of a pipeline is restarted at its own step, {step!r}, not at {at!r}"
    if at == BEGINNING:
        return None
    return (f"a pipeline is restarted at {BEGINNING!r}, where its input is, not at {at!r}, which needs replies; "
            "use retry to run the failed step again")


def _segment_step(pipeline: Pipeline, segment: Segment) -> Callable[..., Awaitable[Outcome]]:
    async def run(self: Machine, ctx: Context[Any]) -> Outcome:
        stream = Stream(pipeline.name, ctx.id, pipeline.rejected, ctx._keep_thread)  # noqa: SLF001 - pipelines are the engine's own
        items = stream.through(segment.steps, _incoming(pipeline, segment, ctx))
        if segment.exit is None:
            return await _end(segment, items)
        return await _ask(pipeline, segment, segment.exit, items)

    run.__name__ = run.__qualname__ = _name(pipeline, segment.number)
    return step(run)


def _item_step(pipeline: Pipeline, segment: Segment) -> Callable[..., Awaitable[Outcome]]:
    assert segment.exit is not None  # noqa: S101 - its exit asks about each item
    kind = reply_type(segment.exit.output)

    async def run(self: Machine, ctx: Context[Any]) -> Outcome:
        stream = Stream(pipeline.name, ctx.id, pipeline.rejected, ctx._keep_thread)  # noqa: SLF001 - as above
        value = kind.decode(msgspec.json.encode(ctx.state["value"]).decode())
        items = stream.through(segment.item_steps, _of([value]))
        async with Closing(items):
            return Done([out async for out in items])

    run.__name__ = run.__qualname__ = _item_name(pipeline, segment.number)
    return step(run)


async def _of(values: Sequence[Any]) -> AsyncIterator[Any]:
    for value in values:
        yield value


def _incoming(pipeline: Pipeline, segment: Segment, ctx: Context[Any]) -> AsyncIterator[Any]:
    """The input of a segment: the pipeline's input, the reply, or the outputs of the replies, in the order of the
    items.
    """
    if segment.number == 0:
        return _of(pipeline.read_input(ctx.state))
    before = pipeline.segments[segment.number - 1]
    if before.asks_each and ctx._outputs is None:  # noqa: SLF001 - without items nothing was asked
        return _of(())
    if before.asks_each:
        assert before.exit is not None  # noqa: S101 - it asks about each item
        return _outputs(ctx, reply_type(type_behind(before.exit.output, before.item_steps)))
    if ctx.reply is None:  # without items nothing was asked
        return _of(())
    if ctx.reply.status is not InteractionStatus.COMPLETED:
        assert before.exit is not None  # noqa: S101 - it has asked
        raise Cancel(f"await step {before.exit.name!r} has no reply to continue with: it is {ctx.reply.status}"
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
    values = await _collect(items, MAX_ITEMS, "result", "are the result of the instance; end "
                            "the pipeline with a step that writes them and returns little")
    return Done(values if segment.gives_many else values[0] if values else None)


async def _ask(pipeline: Pipeline, segment: Segment, await_step: AwaitStep, items: AsyncIterator[Any]) -> Outcome:
    then = _name(pipeline, segment.number + 1)
    options: dict[str, Any] = {
        "then": then, "timeout": await_step.timeout, "on_timeout": await_step.on_timeout, "shared": await_step.shared,
        "token": await_step.token, "assignee": await_step.assignee, "group": await_step.group,
        "await_step": await_step.name,
        "request_type": await_step.request,
    }  # fmt: skip
    if segment.asks_each:
        return AskEach(
            transport=await_step.over, items=items, reply=await_step.reply, window=await_step.window,
            idempotency=await_step.idempotency, item_step=_item_name(pipeline, segment.number), **options,
        )  # fmt: skip
    values = await _collect(items, await_step.max_items, "max_items",
                            f"reach {await_step.name!r}, which asks about all "
                            "of them at once; raise max_items, or ask about each")
    if not values and await_step.cardinality is not Cardinality.MANY_TO_ONE:  # no items, or the one value was rejected
        return Ask.each(await_step.over, (), reply=await_step.output, then=then)  # asks nothing, and continues
    if await_step.cardinality.is_aggregate:
        return Ask(await_step.over, values, reply=await_step.reply, max_items=await_step.max_items, **options)
    return Ask(
        await_step.over, values[0], reply=await_step.reply, idempotency=await_step.idempotency,
        max_items=await_step.max_items, **options,
    )  # fmt: skip


async def _collect(items: AsyncIterator[Any], most: int, field: str, problem: str) -> list[Any]:
    """All items, unless there are too many to hold at once."""
    values: list[Any] = []
    async with Closing(items):
        async for value in items:
            if most and len(values) == most:
                raise InvalidInput(field, f"more than {most:,} items {problem}")
            values.append(value)
    return values
