"""Machines that ask external systems."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from stepwell import Ask, Context, Done, Machine, Outcome, step


@dataclass
class Decision:
    approved: bool
    note: str = ""


class Expense(Machine):
    """Asks one person."""

    @dataclass
    class State:
        amount: int = 0
        seconds: float | None = None
        on_timeout: Any = "wake"
        token: bool = False
        transport: str = "manual"

    @step
    async def start(self, ctx: Context[State]) -> Outcome:
        state = ctx.state
        timeout = None if state.seconds is None else timedelta(seconds=state.seconds)
        return Ask(
            state.transport, {"amount": state.amount}, reply=Decision, then=self.decided, timeout=timeout,
            on_timeout=state.on_timeout, token=state.token, assignee="ana", group="finance", idempotency=("amount",),
        )  # fmt: skip

    @step
    async def decided(self, ctx: Context[State]) -> Outcome:
        reply = ctx.reply
        value = reply.value
        return Done({
            "status": reply.status, "approved": None if value is None else value.approved, "actor": reply.actor,
            "type": type(value).__name__,
        })  # fmt: skip


class Batch(Machine):
    """Asks once per item."""

    @dataclass
    class State:
        items: list[int]
        window: int = 200
        seconds: float | None = None
        on_timeout: Any = "wake"
        transport: str = "manual"

    @step
    async def start(self, ctx: Context[State]) -> Outcome:
        state = ctx.state
        timeout = None if state.seconds is None else timedelta(seconds=state.seconds)
        return Ask.each(
            state.transport, ({"number": n} for n in state.items), reply=int, then=self.collect, window=state.window,
            timeout=timeout, on_timeout=state.on_timeout,
        )  # fmt: skip

    @step
    async def collect(self, ctx: Context[State]) -> Outcome:
        return Done([[reply.index, reply.status, reply.value] for reply in ctx.replies])
