"""Runs steps: prepares each, lets the author's code be called, and gives its commit to the committer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextvars import copy_context
from typing import Any

from msgspec.structs import replace

from stepwell._core.commit import Commit
from stepwell._core.transition import failed, unfit
from stepwell._process import probes
from stepwell._process.service import leave_behind
from stepwell._worker.active_claims import CONTINUES, SUBMITTED, ActiveClaim, ActiveClaims, Read
from stepwell._worker.commit_queue import CommitQueue
from stepwell._worker.lost_replies import GOES_ON, Verdict
from stepwell._worker.queue_slots import AllQueueSlots
from stepwell._worker.running.ask_each import IncrementalAsk
from stepwell._worker.running.pending_commit import PendingCommit
from stepwell._worker.running.ready_queue import ReadyQueue
from stepwell._worker.running.step_batch import StepBatch, own_task
from stepwell._worker.running.step_calls import Misdirected, StepCalls
from stepwell._worker.running.step_run import Run, Surroundings, Unfit, prepare
from stepwell.errors import RefusedByDatabase, StepwellError

log = logging.getLogger("stepwell")


class Executor:
    """Turns claims into commits."""

    def __init__(
        self,
        *,
        committer: CommitQueue,
        spawner: CommitQueue,
        active_claims: ActiveClaims,
        all_queue_slots: AllQueueSlots,
        ready_queue: ReadyQueue,
        step_calls: StepCalls,
        incremental_ask: IncrementalAsk,
        surroundings: Surroundings,
        run_ahead: int,
    ) -> None:
        self._committer = committer
        self._spawner = spawner  # commits outcomes that insert children: other outcomes do not wait for these
        self._active_claims = active_claims
        self._all_queue_slots = all_queue_slots
        self._step_calls = step_calls
        self._incremental_ask = incremental_ask
        self._surroundings = surroundings
        self._run_ahead = run_ahead
        self._ready_queue = ready_queue
        self.step_batch = StepBatch(self._run_in_batch)
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

    def _run_in_batch(self, active: ActiveClaim, stored: Read) -> Coroutine[Any, Any, None]:
        return self._run(active, self._run_step(active, stored))

    async def _run(self, active: ActiveClaim, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
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
            await self._incremental_ask.check_shape(run)
        except Unfit as reason:
            log.warning("executor: %s: put aside: %s", claim.label, reason)
            active.leave_slot()
            self._submit_pending(active, None, unfit(claim, str(reason)))
            return
        try:
            calls = self._step_calls
            commit = await (calls.attempt(active, run) if run.is_ordinary else calls.decide(active, run))
        except Misdirected:
            # the step may have changed its state
            self.step_batch.put_alone(active, replace(stored, again=None))
            return
        if commit is None:
            return
        if probes.hooks:
            await probes.reach("executor.returned", id=claim.id)
        following = self._read_ahead(active, run, commit)
        if following is not None:
            commit = replace(commit, goes_on=True)
            self._ready_queue.step_aside(active)
        elif not claim.is_suspect:  # a crash suspect is cleared by its commit: the next one waits for that
            active.leave_slot()
        self._submit_pending(active, run, commit, following)

    def _submit_pending(self, active: ActiveClaim, run: Run | None, commit: Commit,
                        following: Read | None = None) -> None:
        if active.abandoned:  # by its own step, or the step has caught the cancellation
            return
        active.stage = CONTINUES if commit.goes_on else SUBMITTED
        committer = self._committer
        if commit.children is not None:
            committer = self._spawner
            self.step_batch.weigh(len(commit.children))
        committer.take_over(commit, PendingCommit(active, commit, run, copy_context(), self, following))
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
            await self._run(active, self._refused(active, run, error))

    def _read_ahead(self, active: ActiveClaim, run: Run, commit: Commit) -> Read | None:
        """The inputs of the next step, if it may run on the same claim."""
        if active.steps_ahead >= self._run_ahead or not self._may_go_on(commit):
            return None
        try:
            return run.read_after(commit)
        except RecursionError:  # so deep a state is read when the row is claimed again
            return None

    def _may_go_on(self, commit: Commit) -> bool:
        """Whether the next step may run on the same claim: nothing has to be checked, loaded or admitted before it."""
        claim = commit.claim
        return (
            commit.is_simple_next and not (claim.has_inbox or claim.round or claim.is_suspect)
            and self._all_queue_slots[claim.queue].lets_run_ahead(claim.priority)
        )  # fmt: skip

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
        return (self._committer if commit.children is None else self._spawner).submit(commit)
