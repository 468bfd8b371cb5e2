"""Calls `handle` for failed steps, and runs the steps that the executor does not call itself."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import replace

from stepwell._core.commit import Commit
from stepwell._process.stats import Stats
from stepwell._worker.active_claims import ActiveClaim
from stepwell._worker.running.ask_each import Ended, IncrementalAsk
from stepwell._worker.running.invoke import Invoker
from stepwell._worker.running.step_batch import own_task
from stepwell._worker.running.step_run import Run
from stepwell._worker.running.transactional import TransactionalRunner
from stepwell.context import Context
from stepwell.errors import InvalidOutcome
from stepwell.outcomes import AskEach


class Misdirected(Exception):
    """The wrong step was cancelled: other code kept the task of a step that ran in it earlier."""


class StepCalls:
    """Errors of a step go to `handle`; an error of `handle` fails the instance."""

    def __init__(
        self,
        invoker: Invoker,
        incremental_ask: IncrementalAsk,
        transactional_runner: TransactionalRunner | None,
        stats: Stats,
    ) -> None:
        self.invoker = invoker
        self._incremental_ask = incremental_ask
        self._transactional_runner = transactional_runner
        self.stats = stats

    async def decide(self, active: ActiveClaim, run: Run) -> Commit | None:
        """The commit of a step that is not ordinary; None if a transactional step has committed itself."""
        if run.received.ended is not None:
            return run.failure(run.received.ended)
        if run.obstacle is not None:  # there is no state, or no reply, to run the step with
            return await self.handled(active, run, run.obstacle)
        return await self._transact(active, run)

    async def failed(self, active: ActiveClaim, run: Run, error: BaseException, outcome: object) -> Commit:
        """The commit of a step that raised an error or returned an invalid outcome."""
        _clear_cancellation(active, error, run)
        was_filling = isinstance(outcome, AskEach)
        commit = await self.handled(active, run, error, was_filling=was_filling)
        return replace(commit, has_filled=True) if was_filling else commit

    async def filled(
        self, run: Run, outcome: AskEach, ctx: Context[Any], error: BaseException | None = None,
        *, was_filling: bool = False,
    ) -> Commit:  # fmt: skip
        """Store all interactions of an Ask.each; returns its commit."""
        if was_filling:  # it would add to the interactions of the Ask.each that failed
            raise InvalidOutcome("outcome", "handle cannot return Ask.each after an Ask.each of the step has failed; "
                                 "return Next to a step that asks")
        filled = await self._incremental_ask.fill(run, outcome)
        if isinstance(filled, Ended):
            return replace(run.failure(filled), has_filled=True)
        commit = run.commit(filled, ctx, error)
        return replace(commit, has_filled=True)

    async def _transact(self, active: ActiveClaim, run: Run) -> Commit | None:
        """Run the step and commit its outcome in one transaction; if that fails, returns the commit of `handle`."""
        assert self._transactional_runner is not None  # noqa: S101 - the worker has one if any step is transactional
        self.stats.steps += 1
        try:
            await self._transactional_runner.run(active, run)
        except BaseException as error:
            if active.abandoned:
                raise
            _clear_cancellation(active, error, run)
            return await self.handled(active, run, error)
        return None

    async def handled(self, active: ActiveClaim, run: Run, error: BaseException, *,
                      was_filling: bool = False) -> Commit:
        """Call `handle`, which sees the state as it was loaded; if it fails too, the instance fails."""
        ctx = run.context(in_handle=True)
        owner = run.definition.owner
        try:
            outcome = await self.invoker.call(run.claim, run.step, owner.handle, owner.handle_is_async, error, ctx)
            if not isinstance(outcome, AskEach):
                return run.commit(outcome, ctx, error)
            return await self.filled(run, outcome, ctx, error, was_filling=was_filling)
        except BaseException as second:
            if active.abandoned:
                raise
            _clear_cancellation(active, second)
            if second is not error and second.__context__ is None:
                second.__context__ = error
            return run.failure(second)


def _clear_cancellation(active: ActiveClaim, error: BaseException, run: Run | None = None) -> None:
    """Clear the cancellation of the current task. If other steps ran in this task before, it is unknown which step was
    meant: an async step then runs again, in a task of its own."""
    if isinstance(error, asyncio.CancelledError):
        active.was_cancelled, task = True, own_task()
        is_cancelled = task.cancelling() > 0
        while task.cancelling():
            task.uncancel()
        if is_cancelled and active.shares_task and run is not None and run.step.is_async:  # a thread cannot be stopped
            raise Misdirected from error
