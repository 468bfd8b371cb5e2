"""Steps that begin together: one task runs them one after another, until one has to wait for something."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from typing import Any, TypeAlias

from stepwell._worker.active_claims import ActiveClaim, Read

HEAVY = 200  # children that steps in a row have to insert before the loop has a turn, and the first are

RunStep: TypeAlias = Callable[[ActiveClaim, Read], Awaitable[None]]
BatchedStep: TypeAlias = deque[tuple[ActiveClaim, Read]]


class StepBatch:
    """Most steps of a busy worker end without waiting, and a task for each would cost as much as all that the engine
    does for it besides. Where one waits, all that stand behind it get a task of their own. Where they spawn many, the
    loop has a turn in between, so that the first children are inserted while the others are made.

    No step sees anything of another: if a step has changed the context of its task, or somebody cancels the task, no
    more steps run in it.
    """

    def __init__(self, run: RunStep) -> None:
        self._run = run
        self._next: BatchedStep = deque()
        self._clean = copy_context()  # from before any step has run
        self._weight = 0

    def put(self, active: ActiveClaim, stored: Read) -> None:
        """Run the claim's step in one task with others that are put in the same turn of the loop."""
        active.is_pending = True
        if not self._next:
            asyncio.get_running_loop().call_soon(self._begin, context=self._clean)
        self._next.append((active, stored))

    def put_alone(self, active: ActiveClaim, stored: Read) -> None:
        """Run the claim's step in a task of its own."""
        active.is_pending = True
        turn = deque([(active, stored)])
        asyncio.get_running_loop().create_task(self._go(turn), context=self._clean.copy())

    def weigh(self, children: int) -> None:
        """Note that the step that runs has so many to insert."""
        self._weight += children

    def _begin(self) -> None:
        loop, turn = asyncio.get_running_loop(), self._next
        self._next, self._weight = deque(), 0
        has_more = len(turn) > 1
        loop.create_task(self._go(turn))
        if has_more:
            loop.call_soon(self._spread, turn)  # after the task has gone as far as it can

    def _spread(self, turn: BatchedStep) -> None:
        while turn:
            self.put_alone(*turn.popleft())

    def _put_first(self, turn: BatchedStep) -> None:
        """Let the loop turn to other things before the rest goes on, which nobody overtakes."""
        if not self._next:
            asyncio.get_running_loop().call_soon(self._begin, context=self._clean)
        self._next.extendleft(reversed(turn))
        turn.clear()

    async def _go(self, turn: BatchedStep) -> None:
        task, clean, shares = own_task(), copy_context(), False
        while turn and not task.cancelling() and _is_still(clean):
            active, stored = turn.popleft()
            if active.abandoned:
                continue
            active.begin(task, shares=shares)
            shares = True
            await self._run(active, stored)
            if self._weight >= HEAVY and turn:
                self._put_first(turn)
                return
            if active.was_cancelled:
                return  # before Python 3.13, the next one that awaits something would be told


def _is_still(clean: Context) -> bool:
    """Whether nobody has changed a context variable here."""
    try:
        return copy_context() == clean
    except Exception:  # noqa: BLE001 - it compares values, and the author's may refuse that
        return False


def own_task() -> asyncio.Task[Any]:
    """The task that this runs in."""
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - all of the engine runs in tasks
    return task
