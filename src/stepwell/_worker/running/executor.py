"""Runs steps: prepares each one, calls the author's code, and submits the commit to the committer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from stepwell._core.commit import Commit
from stepwell._core.instance import SUSPECT_AFTER
from stepwell._core.status import Status
from stepwell._core.transition import failed, unfit
from stepwell._process import probes
from stepwell._process.service import leave_behind
from stepwell._worker.active_claims import CONTINUES, SUBMITTED, ActiveClaim, ActiveClaims, Read
from stepwell._worker.commit_queue import CommitQueue
from stepwell._worker.lost_replies import STILL_CLAIMED, Verdict
from stepwell._worker.queue_slots import AllQueueSlots
from stepwell._worker.running.ask_each import IncrementalAsk
from stepwell._worker.running.ready_queue import ReadyQueue
from stepwell._worker.running.step_batch import StepBatch, own_task
from stepwell._worker.running.step_calls import Misdirected, StepCalls
from stepwell._worker.running.step_run import Run, Surroundings, Unfit, prepare
from stepwell.errors import RefusedByDatabase, StepwellError
from stepwell.outcomes import AskEach

log = logging.getLogger("stepwell")


class PendingCommit(msgspec.Struct, eq=False, gc=False):
    """A commit that no task waits for: its verdict starts the next step or ends the claim; a refusal goes to `handle`.

    It takes the place of a future: a waiting task would cost ten percent more Python. Nothing in it refers back to it,
    so the garbage collector need not track it.
    """

    active: ActiveClaim
    commit: Commit
    run: Run | None  # None: no step has run, so `handle` is not called
    context: Context  # of the step, for its `handle`
    executor: Executor
    following: Read | None = None  # the inputs of the next step, if it runs ahead
    is_told: bool = False

    def done(self) -> bool:
        return self.is_told or self.active.abandoned

    def cancelled(self) -> bool:
        return self.active.abandoned

    def cancel(self) -> None:
        """The outcome will not be committed: end the claim."""
        self.active.abandoned = True
        self.set_result(Verdict.STALE)

    def set_result(self, verdict: Verdict, /) -> None:
        self.is_told = True
        self.executor.on_verdict(self, verdict)

    def set_exception(self, error: BaseException, /) -> None:
        """Postgres has refused the commit."""
        self.is_told = True
        self.executor.on_refusal(self, error)


class Executor:
    """Runs the steps of claims, and submits their commits."""

    def __init__(
        self,
        *,
        commit_queue: CommitQueue,
        spawn_queue: CommitQueue,
        active_claims: ActiveClaims,
        all_queue_slots: AllQueueSlots,
        ready_queue: ReadyQueue,
        step_calls: StepCalls,
        incremental_ask: IncrementalAsk,
        surroundings: Surroundings,
        run_ahead: int,
    ) -> None:
        self._commit_queue = commit_queue
        self._spawn_queue = spawn_queue  # outcomes that insert children: other outcomes do not wait for them
        self._active_claims = active_claims
        self._all_queue_slots = all_queue_slots
        self._step_calls = step_calls
        self._incremental_ask = incremental_ask
        self._surroundings = surroundings
        self._run_ahead = run_ahead
        self._ready_queue = ready_queue
        self.step_batch = StepBatch(partial(self._run, self._run_step))
        self._refusals: set[asyncio.Task[None]] = set()  # each passes a refused commit to `handle`

    @property
    def in_threads(self) -> int:
        """Sync steps that run now; their threads cannot be stopped."""
        return self._step_calls.invoker.in_threads

    async def drain(self, until: float, grace: float) -> list[str]:
        """Wait for active claims until that time of the loop; returns the labels of claims that did not end in time.

        Their steps are cancelled, and have `grace` seconds to end.
        """
        loop = asyncio.get_running_loop()
        while (waits := self._active_claims.under_way()) and loop.time() < until:
            await asyncio.wait(waits, timeout=until - loop.time())
        left = [active for active in self._active_claims.all() if active.under_way is not None]
        for active in self._active_claims.all():
            if active.task is None:  # the drain does not wait for its start or verdict any longer
                self._active_claims.drop(active.claim)
        for active in left:
            active.abandon("the worker stops")
        running = [active.task for active in left if active.task is not None and not active.task.done()]
        if running:
            _, unfinished = await asyncio.wait(running, timeout=grace)
            for task in unfinished:
                leave_behind(task)
        self._step_calls.invoker.close()
        return [active.claim.label for active in left]

    async def _run(self, work: Callable[..., Awaitable[None]], active: ActiveClaim, *inputs: Any) -> None:
        """Run the work of a claim in this task; drop the claim unless its commit is pending."""
        try:
            await work(active, *inputs)
        except asyncio.CancelledError:
            if not active.abandoned:
                raise
            log.warning("executor: %s: claim given up; its outcome is dropped", active.claim.label)
        except StepwellError as error:
            log.error("executor: %s: no outcome could be committed: %s", active.claim.label, error)  # noqa: TRY400 - the message is complete
        finally:
            active.task = None
            if not active.is_pending:
                self._end(active)

    def _end(self, active: ActiveClaim) -> None:
        """Drop the claim: it has ended, or is lost."""
        active.leave_slot()
        active.end_pending()
        self._active_claims.drop(active.claim)

    async def _run_step(self, active: ActiveClaim, stored: Read) -> None:
        """Run a step and submit its commit; the verdict decides whether the next step runs ahead."""
        claim = active.claim
        try:
            run = prepare(claim, stored, self._surroundings)
            if run.definition.pipeline is not None:
                await self._incremental_ask.check_shape(run)
        except Unfit as reason:
            log.warning("executor: %s: put on hold as unfit: %s", claim.label, reason)
            active.leave_slot()
            self._submit_pending(active, None, unfit(claim, str(reason)))
            return
        try:
            commit = await (self._attempt if run.is_ordinary else self._step_calls.decide)(active, run)
        except Misdirected:
            # the step may have changed its state
            self.step_batch.put_alone(active, replace(stored, decoded=None))
            return
        if commit is None:
            return
        if probes.hooks:
            await probes.reach("executor.returned", id=claim.id)
        following = self._read_ahead(active, run, commit) if commit.status is Status.RUNNABLE else None
        if following is not None:
            commit = replace(commit, runs_ahead=True)
            self._ready_queue.step_aside(active)
        elif claim.crashes < SUSPECT_AFTER:  # a crash suspect keeps its slot until its commit
            active.leave_slot()
        self._submit_pending(active, run, commit, following)

    async def _attempt(self, active: ActiveClaim, run: Run) -> Commit:
        """Call the author's step; an error, or an invalid outcome, goes to `handle`."""
        ctx, step, outcome = run.context(), run.step, None
        calls = self._step_calls
        calls.stats.steps += 1
        try:
            if step.is_async and step.timeout is None:
                outcome = await step.function(run.definition.owner.object, ctx)
            else:
                outcome = await calls.invoker.call(
                    run.claim, step, step.function, step.is_async, run.definition.owner.object, ctx
                )
            if isinstance(outcome, AskEach):
                return await calls.filled(run, outcome, ctx)
            return run.commit(outcome, ctx)
        except BaseException as error:
            if active.abandoned:
                raise
            return await calls.failed(active, run, error, outcome)

    def _submit_pending(self, active: ActiveClaim, run: Run | None, commit: Commit,
                        following: Read | None = None) -> None:
        if active.abandoned:  # the step gave up its own claim, or caught the cancellation
            return
        active.stage = CONTINUES if commit.runs_ahead else SUBMITTED
        queue = self._commit_queue
        if commit.park.children is not None:
            queue = self._spawn_queue
            self.step_batch.weigh(len(commit.park.children))
        queue.put(commit, PendingCommit(active, commit, run, copy_context(), self, following))
        active.is_pending = True

    def on_verdict(self, given: PendingCommit, verdict: Verdict) -> None:
        """Run the next step if this worker still has the row; otherwise drop the claim."""
        active = given.active
        if verdict is not STILL_CLAIMED or given.following is None:
            self._end(active)
            return
        active.continue_as(given.commit.continues_as)
        if active.revoked:
            log.warning("executor: %s: claim given up; an operator took its row between two steps", active.claim.label)
            self._end(active)
        else:
            self._ready_queue.run_next(active, given.following)

    def on_refusal(self, given: PendingCommit, error: BaseException) -> None:
        """Postgres refused a commit: call `handle` with the error, in a new task."""
        task = asyncio.create_task(self._handle_refusal(given.active, given.run, error), context=given.context)
        self._refusals.add(task)
        task.add_done_callback(self._refusals.discard)

    async def _handle_refusal(self, active: ActiveClaim, run: Run | None, error: BaseException) -> None:
        if not active.abandoned:
            active.begin(own_task())
            await self._run(self._refused, active, run, error)

    def _read_ahead(self, active: ActiveClaim, run: Run, commit: Commit) -> Read | None:
        """The inputs of the next step, if it may run on the same claim: nothing must be checked, loaded or admitted
        first. Otherwise None."""
        claim = commit.claim
        if active.steps_ahead >= self._run_ahead or claim.has_inbox or claim.round or claim.crashes >= SUSPECT_AFTER:
            return None
        if not (commit.is_simple_next and self._all_queue_slots[claim.queue].lets_run_ahead(claim.priority)):
            return None
        try:
            return run.read_after(commit)
        except RecursionError:  # the state is too deep to convert here; the next claim reads it
            return None

    async def _refused(self, active: ActiveClaim, run: Run | None, error: BaseException) -> None:
        """Commit what `handle` returns for a refused outcome; without a step there is no `handle`."""
        if run is None:
            raise error
        commit = await self._step_calls.handled(active, run, error)
        try:
            await self._submit(active, commit)
        except RefusedByDatabase:
            await self._submit(active, failed(active.claim, active.claim.version, error))

    def _submit(self, active: ActiveClaim, commit: Commit) -> asyncio.Future[Verdict]:
        active.stage = CONTINUES if commit.runs_ahead else SUBMITTED
        return (self._commit_queue if commit.park.children is None else self._spawn_queue).submit(commit)
