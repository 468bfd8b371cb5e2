"""Runs steps: prepares each, lets the author's code be called, and gives its commit to the committer."""

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
from stepwell._worker.lost_replies import GOES_ON, Verdict
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
    """A commit that no task waits for: its verdict lets the next step run, ends the claim, or brings a refusal back.

    It stands where a future would: a task that waited for it would take a tenth more Python. Nothing in it refers back
    to it, so the garbage collector need not look at it.
    """

    active: ActiveClaim
    commit: Commit
    run: Run | None  # None: no step has run, so there is no `handle` to call
    context: Context  # of the step: its `handle` sees the same
    executor: Executor
    following: Read | None = None  # the inputs of the next step, if the row stays claimed here
    is_told: bool = False

    def done(self) -> bool:
        return self.is_told or self.active.abandoned

    def cancelled(self) -> bool:
        return self.active.abandoned

    def cancel(self) -> None:
        """The commit will not come: let the claim go."""
        self.active.abandoned = True
        self.set_result(Verdict.STALE)

    def set_result(self, verdict: Verdict, /) -> None:
        self.is_told = True
        self.executor.answered(self, verdict)

    def set_exception(self, error: BaseException, /) -> None:
        """Postgres has refused it."""
        self.is_told = True
        self.executor.refused(self, error)


class Executor:
    """Turns claims into commits."""

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
        self._spawn_queue = spawn_queue  # of outcomes that insert children: other outcomes do not wait for these
        self._active_claims = active_claims
        self._all_queue_slots = all_queue_slots
        self._step_calls = step_calls
        self._incremental_ask = incremental_ask
        self._surroundings = surroundings
        self._run_ahead = run_ahead
        self._ready_queue = ready_queue
        self.step_batch = StepBatch(partial(self._run, self._run_step))
        self._brought_back: set[asyncio.Task[None]] = set()  # refused commits that `handle` receives

    @property
    def in_threads(self) -> int:
        """Sync steps that run right now; they cannot be stopped from outside."""
        return self._step_calls.invoker.in_threads

    async def drain(self, until: float, grace: float) -> list[str]:
        """Wait for what runs, until that time of the loop; returns what did not end in time and was left.

        What is left is cancelled, and has the grace to end.
        """
        loop = asyncio.get_running_loop()
        while (waits := self._active_claims.under_way()) and loop.time() < until:
            await asyncio.wait(waits, timeout=until - loop.time())
        left = [active for active in self._active_claims.all() if active.under_way is not None]
        for active in self._active_claims.all():
            if active.task is None:  # it waits for its start, its turn or its verdict, and the drain does not
                self._active_claims.drop(active.claim)
        for active in left:
            active.abandon("the worker stops")
        running = [active.task for active in left if active.task is not None and not active.task.done()]
        if running:
            _, deaf = await asyncio.wait(running, timeout=grace)
            for task in deaf:
                leave_behind(task)
        self._step_calls.invoker.close()
        return [active.claim.label for active in left]

    async def _run(self, work: Callable[..., Awaitable[None]], active: ActiveClaim, *inputs: Any) -> None:
        """Do the work of a claim in this task, and drop the claim unless its commit is pending."""
        try:
            await work(active, *inputs)
        except asyncio.CancelledError:
            if not active.abandoned:
                raise
            log.warning("executor: %s: given up; its outcome is dropped", active.claim.label)
        except StepwellError as error:
            log.error("executor: %s: no outcome could be committed: %s", active.claim.label, error)  # noqa: TRY400 - said whole
        finally:
            active.task = None
            if not active.is_pending:
                self._end(active)

    def _end(self, active: ActiveClaim) -> None:
        """Drop the claim: it has ended, or is lost."""
        active.leave_slot()
        active.part()
        self._active_claims.drop(active.claim)

    async def _run_step(self, active: ActiveClaim, stored: Read) -> None:
        """Run a step, and submit its commit; the verdict says whether the row stays claimed here."""
        claim = active.claim
        try:
            run = prepare(claim, stored, self._surroundings)
            if run.definition.pipeline is not None:
                await self._incremental_ask.check_shape(run)
        except Unfit as reason:
            log.warning("executor: %s: put aside: %s", claim.label, reason)
            active.leave_slot()
            self._submit_pending(active, None, unfit(claim, str(reason)))
            return
        try:
            commit = await (self._attempt if run.is_ordinary else self._step_calls.decide)(active, run)
        except Misdirected:
            # the step may have changed its state
            self.step_batch.put_alone(active, replace(stored, again=None))
            return
        if commit is None:
            return
        if probes.hooks:
            await probes.reach("executor.returned", id=claim.id)
        following = self._read_ahead(active, run, commit) if commit.status is Status.RUNNABLE else None
        if following is not None:
            commit = replace(commit, goes_on=True)
            self._ready_queue.step_aside(active)
        elif claim.crashes < SUSPECT_AFTER:  # a crash suspect keeps its slot until its commit has cleared it
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
        if active.abandoned:  # by its own step, or the step has caught the cancellation
            return
        active.stage = CONTINUES if commit.goes_on else SUBMITTED
        queue = self._commit_queue
        if commit.park.children is not None:
            queue = self._spawn_queue
            self.step_batch.weigh(len(commit.park.children))
        queue.put(commit, PendingCommit(active, commit, run, copy_context(), self, following))
        active.is_pending = True

    def answered(self, given: PendingCommit, verdict: Verdict) -> None:
        """A commit has its verdict: let the next step run if the row is still claimed here, or drop the claim."""
        active = given.active
        if verdict is not GOES_ON or given.following is None:
            self._end(active)
            return
        active.go_on(given.commit.continues_as)
        if active.revoked:
            log.warning("executor: %s: given up; an operator took it between two steps", active.claim.label)
            self._end(active)
        else:
            self._ready_queue.go_on(active, given.following)

    def refused(self, given: PendingCommit, error: BaseException) -> None:
        """Postgres refuses a commit: `handle` receives that, in a task of its own."""
        back = asyncio.create_task(self._bring_back(given.active, given.run, error), context=given.context)
        self._brought_back.add(back)
        back.add_done_callback(self._brought_back.discard)

    async def _bring_back(self, active: ActiveClaim, run: Run | None, error: BaseException) -> None:
        if not active.abandoned:
            active.begin(own_task())
            await self._run(self._refused, active, run, error)

    def _read_ahead(self, active: ActiveClaim, run: Run, commit: Commit) -> Read | None:
        """The inputs of the next step, if it may run on the same claim: nothing has to be checked, loaded or admitted
        before it."""
        claim = commit.claim
        if active.steps_ahead >= self._run_ahead or claim.has_inbox or claim.round or claim.crashes >= SUSPECT_AFTER:
            return None
        if not (commit.is_simple_next and self._all_queue_slots[claim.queue].lets_run_ahead(claim.priority)):
            return None
        try:
            return run.read_after(commit)
        except RecursionError:  # so deep a state is read when the row is claimed again
            return None

    async def _refused(self, active: ActiveClaim, run: Run | None, error: BaseException) -> None:
        """Let `handle` decide about a refused outcome, if a step has run."""
        if run is None:
            raise error
        commit = await self._step_calls.handled(active, run, error)
        try:
            await self._submit(active, commit)
        except RefusedByDatabase:
            await self._submit(active, failed(active.claim, active.claim.version, error))

    def _submit(self, active: ActiveClaim, commit: Commit) -> asyncio.Future[Verdict]:
        active.stage = CONTINUES if commit.goes_on else SUBMITTED
        return (self._commit_queue if commit.park.children is None else self._spawn_queue).submit(commit)
