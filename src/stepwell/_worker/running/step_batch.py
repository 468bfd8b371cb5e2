"""Step batches: one task runs steps one after another until one of them awaits something."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from typing import Any, TypeAlias

from stepwell._worker.active_claims import ActiveClaim, Read

HEAVY = 200  # children of consecutive spawns, after which other tasks run, so that inserting can begin

RunStep: TypeAlias = Callable[[ActiveClaim, Read], Awaitable[None]]
BatchedSteps: TypeAlias = deque[tuple[ActiveClaim, Read]]


class StepBatch:
    """Most steps of a busy worker end without waiting, and a task for each would double the engine's cost per step.

    If a step waits, each of the following steps gets a task of its own. If steps spawn many children, other tasks run
    in between, so that the first children are inserted early. Steps do not affect each other: if a step has changed
    the context of its task, or the task is cancelled, no more steps run in it.
    """

    def __init__(self, run: RunStep) -> None:
        self._run = run
        self._next: BatchedSteps = deque()
        self._clean = copy_context()  # from before any step has run
        self._weight = 0

    def put(self, active: ActiveClaim, stored: Read) -> None:
        """Run the claim's step in one task with all others that are put during the same turn of the loop."""
        active.is_pending = True
        if not self._next:
            asyncio.get_running_loop().call_soon(self._begin, context=self._clean)
        self._next.append((active, stored))

    def put_alone(self, active: ActiveClaim, stored: Read) -> None:
        """Run the claim's step in a task of its own."""
        active.is_pending = True
        steps = deque([(active, stored)])
        asyncio.get_running_loop().create_task(self._run_all(steps), context=self._clean.copy())

    def weigh(self, children: int) -> None:
        """Count the children that the running step spawns."""
        self._weight += children

    def _begin(self) -> None:
        loop, steps = asyncio.get_running_loop(), self._next
        self._next, self._weight = deque(), 0
        has_more = len(steps) > 1
        loop.create_task(self._run_all(steps))
        if has_more:
            loop.call_soon(self._spread, steps)  # runs when the task first waits

    def _spread(self, steps: BatchedSteps) -> None:
        """Run the remaining steps in tasks of their own."""
        while steps:
            self.put_alone(*steps.popleft())

    def _put_first(self, steps: BatchedSteps) -> None:
        """Run the remaining steps after other tasks have run, and before any later step."""
        if not self._next:
            asyncio.get_running_loop().call_soon(self._begin, context=self._clean)
        self._next.extendleft(reversed(steps))
        steps.clear()

    async def _run_all(self, steps: BatchedSteps) -> None:
        task, clean, shares = own_task(), copy_context(), False
        while steps and not task.cancelling() and _is_unchanged(clean):
            active, stored = steps.popleft()
            if active.abandoned:
                continue
            active.begin(task, shares=shares)
            shares = True
            await self._run(active, stored)
            if self._weight >= HEAVY and steps:
                self._put_first(steps)
                return
            if active.was_cancelled:
                return  # before Python 3.13, the next step that awaits would receive the cancellation


def _is_unchanged(clean: Context) -> bool:
    """Whether no step has changed a context variable of this task."""
    try:
        return copy_context() == clean
    except Exception:  # noqa: BLE001 - comparing the author's values may raise anything
        return False


def own_task() -> asyncio.Task[Any]:
    """The current task."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - all of the engine runs in tasks
    return task
