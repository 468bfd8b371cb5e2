"""Named points in the engine where a test may look, wait, or let the process die. Nothing is armed in production."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

Hook = Callable[[dict[str, Any]], Awaitable[None] | None]

POINTS = (
    "claimer.before_claim",
    "claimer.claimed",  # the claim is committed and in hand, nothing runs; in an idle worker it has begun
    "completing.found",  # questions that are answered are known, nothing is admitted
    "completing.admitted",  # answers are admitted, nobody has been told
    "dispatcher.claimed",  # questions are taken, nothing is sent
    "dispatcher.sent",  # one is sent, nobody knows it yet
    "dispatcher.recorded",  # that they are sent is noted
    "executor.begun",  # the beginning is noted, the step has not run
    "executor.returned",  # the step has run, its outcome is on no way yet
    "filler.appended",  # a chunk of questions is durable
    "flusher.before_commit",
    "flusher.committed",  # the commit is durable, nobody has been told
    "heartbeat.beaten",
    "limiter.admitted",  # claims under a limit are committed, nothing runs
    "pruner.pruned",
    "reaper.reaped",
    "reception.before_delivery",  # slots are kept for who is woken, nothing is delivered
    "reconciler.looked",
    "settling.admitted",  # an answer is in, its broker does not know it yet
    "sharer.moved",
    "timers.ticked",
    "transactions.begun",  # the transaction is open and marked, the step has not run
    "transactions.returned",  # the step has run, its outcome is not written
    "transactions.written",  # the outcome is written, nothing is committed
    "transactions.committed",  # the commit is durable, nobody has been told
)

hooks: dict[str, Hook] = {}
"""What is armed, by point. Guard every `reach` with `if hooks:`, so that an unarmed engine pays nothing."""


async def reach(point: str, **facts: Any) -> None:
    """Run what is armed at this point."""
    hook = hooks.get(point)
    if hook is not None:
        waiting = hook(facts)
        if inspect.isawaitable(waiting):
            await waiting
