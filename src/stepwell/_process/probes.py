"""Named points in the engine where a test may observe, wait, or kill the process. None is armed in production."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

Hook = Callable[[dict[str, Any]], Awaitable[None] | None]

POINTS = (
    "claimer.before_claim",
    "claimer.claimed",  # the claim is committed and active, no step runs; an idle worker's is marked started
    "complete.found",  # the interactions of completions are read, no completion is accepted
    "complete.admitted",  # completions are accepted, no notification is sent
    "dispatcher.claimed",  # interactions are claimed, none is sent
    "dispatcher.sent",  # an interaction is sent, its row does not say so yet
    "dispatcher.recorded",  # the rows say that the interactions are sent
    "executor.begun",  # the claim is marked started, the step has not run
    "executor.returned",  # the step has run, its outcome is not queued for commit
    "ask_each.appended",  # a chunk of interactions is durable
    "committer.before_commit",
    "committer.committed",  # the commit is durable, no notification is sent
    "heartbeat.beaten",
    "limiter.admitted",  # claims under a limit are committed, no step runs
    "pruner.pruned",
    "reaper.reaped",
    "reaper.ticked",
    "reconciler.cleaned",
    "reconciler.looked",
    "settle.admitted",  # a completion is accepted, its broker does not know it yet
    "fair_migration.moved",
    "timers.ticked",
    "transactional.begun",  # the transaction is open and marked, the step has not run
    "transactional.returned",  # the step has run, its outcome is not written
    "transactional.written",  # the outcome is written, nothing is committed
    "transactional.committed",  # the commit is durable, no notification is sent
)

GAP = "store.gap"
"""Between two statements of a transaction. Not one of `POINTS`: a drain cannot be killed there."""

hooks: dict[str, Hook] = {}
"""The armed hooks, by point. Guard every `reach` with `if hooks:`, so that an unarmed engine pays nothing."""


async def reach(point: str, **facts: Any) -> None:
    """Run the hook that is armed at this point."""
    hook = hooks.get(point)
    if hook is not None:
        waiting = hook(facts)
        if inspect.isawaitable(waiting):
            await waiting
