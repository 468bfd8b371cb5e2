"""Configurable machines: they ask what a test says, and keep the replies that they received."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from stepwell import Ask, Context, Done, Machine, Outcome, step
from stepwell.transports import Dispatch, Transport


class Recorder(Transport):
    """Sends nothing, and keeps the dispatches."""

    def __init__(self, name: str = "recorder", *, max_in_flight: int = 50) -> None:
        self.name = name
        self.max_in_flight = max_in_flight
        self.sent: list[Dispatch] = []

    async def send(self, dispatch: Dispatch, /) -> Mapping[str, Any] | None:
        self.sent.append(dispatch)
        return {"adapter": self.name}


@dataclass
class Seen:
    """What the step after an interaction received, in this process."""

    replies: list[Any] = field(default_factory=list)


def asker(reply: Any = Any, request: Any = None, transport: str = "manual", name: str = "Asker", **options: Any) -> Any:
    """A machine that asks once, and is done with the status of its reply; `seen` has the replies."""

    class Asker(Machine, name=name):
        seen = Seen()

        @step
        async def start(self, ctx: Context[Any]) -> Outcome:
            return Ask(transport, request, reply=reply, then=self.answered, **options)

        @step
        async def answered(self, ctx: Context[Any]) -> Outcome:
            self.seen.replies.append(ctx.reply)
            return Done(ctx.reply.status)

    return Asker


def each_asker(
    items: Callable[[], Any], reply: Any = Any, transport: str = "manual", name: str = "Each", **options: Any
) -> Any:
    """A machine that asks about each item, and is done with [index, status, value] of its replies; `seen` has them."""

    class Each(Machine, name=name):
        seen = Seen()

        @step
        async def start(self, ctx: Context[Any]) -> Outcome:
            return Ask.each(transport, items(), reply=reply, then=self.collect, **options)

        @step
        async def collect(self, ctx: Context[Any]) -> Outcome:
            self.seen.replies += ctx.replies
            return Done([[r.index, r.status, r.value] for r in ctx.replies])

    return Each
