"""Runs steps: decodes, calls the author's step, and brings its outcome to the flusher."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextvars import copy_context
from typing import Any, Protocol

from msgspec.structs import replace

from stepwell import _probes
from stepwell._core.commits import Commit
from stepwell._core.transition import failed, unfit
from stepwell._runtime.caller import Caller
from stepwell._runtime.filler import Filler
from stepwell._runtime.flusher import Flusher, Verdict
from stepwell._runtime.handover import Handover
from stepwell._runtime.hands import Hand, Hands
from stepwell._runtime.lanes import Lanes
from stepwell._runtime.line import Line, own_task
from stepwell._runtime.runs import Read, Run, Surroundings, Unfit, prepare
from stepwell._runtime.tally import Tally
from stepwell._runtime.transactions import Transactor
from stepwell.context import Context
from stepwell.errors import AwaitTimeout, InvalidOutcome, ItemFailed, RefusedByDatabase, StepwellError
from stepwell.outcomes import AskEach

log = logging.getLogger("stepwell")


class Places(Protocol):
    """Where those who run ahead leave their slots, and find others."""

    def step_aside(self, hand: Hand) -> None: ...
    def go_on(self, hand: Hand, stored: Read) -> None: ...


class Misdirected(Exception):
    """A step was cancelled that was not meant: somebody kept the task of one that ran in it before."""


class Executor:
    """Turns claims into commits. The only place, besides the service loop, that catches everything."""

    def __init__(
        self,
        *,
        flusher: Flusher,
        spawner: Flusher,
        hands: Hands,
        lanes: Lanes,
        tally: Tally,
        transactor: Transactor | None,
        surroundings: Surroundings,
        run_ahead: int,
        caller: Caller,
        filler: Filler,
    ) -> None:
        self._flusher = flusher
        self._spawner = spawner  # of those outcomes that insert children: others do not wait for that
        self._hands = hands
        self._lanes = lanes
        self._tally = tally
        self._transactor = transactor
        self._surroundings = surroundings
        self._run_ahead = run_ahead
        self._caller = caller
        self._filler = filler
        self.places: Places  # to be given before anything is launched
        self._line = Line(self._run_in_line)
        self._brought_back: set[asyncio.Task[None]] = set()  # refused commits, on their way to `handle`

    @property
    def in_threads(self) -> int:
        """Sync steps that run right now; they can not be stopped from outside."""
        return self._caller.in_threads

    def launch(self, hand: Hand, stored: Read) -> None:
        """Let a step run whose beginning is noted."""
        self._line.put(hand, stored)

    async def drain(self, patience: float) -> int:
        """Wait for what runs; returns how many did not end in time and were left."""
        loop = asyncio.get_running_loop()
        until = loop.time() + patience
        while (waits := self._hands.under_way()) and loop.time() < until:
            await asyncio.wait(waits, timeout=until - loop.time())
        left = [hand for hand in self._hands.all() if hand.under_way is not None]
        for hand in self._hands.all():
            if hand.task is None:  # its beginning, its turn or its answer is to come, and will not be waited for
                self._hands.drop(hand.claim)
        for hand in left:
            hand.abandon("the worker stops")
        running = [hand.task for hand in left if hand.task is not None and not hand.task.done()]
        if running:
            await asyncio.wait(running, timeout=1.0)
        self._caller.close()
        return len(left)

    def _run_in_line(self, hand: Hand, stored: Read) -> Coroutine[Any, Any, None]:
        return self._run(hand, self._run_step(hand, stored))

    async def _run(self, hand: Hand, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except asyncio.CancelledError:
            if not hand.abandoned:
                raise
            log.warning("executor: %s: given up; its outcome is dropped", hand.claim.label)
        except StepwellError as error:
            log.error("executor: %s: no outcome could be committed: %s", hand.claim.label, error)  # noqa: TRY400 - said whole
        finally:
            hand.task = None
            if not hand.is_pending:
                self._end(hand)

    def _end(self, hand: Hand) -> None:
        """Let the claim go: it is over, or lost."""
        hand.leave_slot()
        hand.part()
        self._hands.drop(hand.claim)

    async def _run_step(self, hand: Hand, stored: Read) -> None:
        """Run a step, and hand its commit over; that the row stays ours is told by the answer."""
        claim = hand.claim
        try:
            run = prepare(claim, stored, self._surroundings)
        except Unfit as reason:
            log.warning("executor: %s: put aside: %s", claim.label, reason)
            hand.leave_slot()
            self._hand_over(hand, None, unfit(claim, str(reason)))
            return
        try:
            commit = await (self._attempt(hand, run) if run.is_ordinary else self._decide(hand, run))
        except Misdirected:
            self._line.put_alone(hand, replace(stored, again=None))  # the step may have changed what it was handed
            return
        if commit is None:
            return
        if _probes.hooks:
            await _probes.reach("executor.returned", id=claim.id)
        following = self._read_ahead(hand, run, commit)
        if following is not None:
            commit = replace(commit, goes_on=True)
            self.places.step_aside(hand)
        elif not claim.is_suspect:  # a suspect is cleared by its commit: the next one waits for that
            hand.leave_slot()
        self._hand_over(hand, run, commit, following)

    def _hand_over(self, hand: Hand, run: Run | None, commit: Commit, following: Read | None = None) -> None:
        if hand.abandoned:  # by its own step, or it has caught the cancellation
            return
        hand.submitted, hand.goes_on = True, commit.goes_on
        flusher = self._flusher
        if commit.children is not None:
            flusher = self._spawner
            self._line.weigh(len(commit.children))
        flusher.take_over(commit, Handover(hand, commit, run, copy_context(), self, following))
        hand.is_pending = True

    def answered(self, given: Handover, verdict: Verdict) -> None:
        """A commit has its answer: let the next step run if the row is still ours, or let it go."""
        hand = given.hand
        if verdict is not Verdict.GOES_ON or given.following is None:
            self._end(hand)
            return
        hand.go_on(given.commit.continues_as)
        if hand.revoked:
            log.warning("executor: %s: given up; an operator took it between two steps", hand.claim.label)
            self._end(hand)
        else:
            self.places.go_on(hand, given.following)

    def refused(self, given: Handover, error: BaseException) -> None:
        """Postgres does not take a commit: bring that to `handle`, in a task of its own."""
        back = asyncio.create_task(self._bring_back(given.hand, given.run, error), context=given.context)
        self._brought_back.add(back)
        back.add_done_callback(self._brought_back.discard)

    async def _bring_back(self, hand: Hand, run: Run | None, error: BaseException) -> None:
        if not hand.abandoned:
            hand.begin(own_task())
            await self._run(hand, self._refused(hand, run, error))

    async def _decide(self, hand: Hand, run: Run) -> Commit | None:
        """The commit of what is no ordinary step; None if its transaction has ended it."""
        if run.ended is not None:
            return run.failure(run.ended)
        if run.obstacle is not None:  # there is no state, or no reply, to run the step with
            return await self._handled(hand, run, run.obstacle)
        return await self._transact(hand, run)

    def _read_ahead(self, hand: Hand, run: Run, commit: Commit) -> Read | None:
        """What the next step begins with, if it may run on the same claim."""
        if hand.steps_ahead >= self._run_ahead or not self._may_go_on(commit):
            return None
        try:
            return run.read_after(commit)
        except RecursionError:  # so deep a state is read by who claims it next
            return None

    def _may_go_on(self, commit: Commit) -> bool:
        """Whether the next step may run on the same claim: nothing is to be asked, loaded or let go before it."""
        claim = commit.claim
        return (
            commit.is_bare_next and not (claim.has_inbox or claim.round or claim.is_suspect)
            and self._lanes[claim.queue].lets_run_ahead(claim.priority)
        )  # fmt: skip

    async def _refused(self, hand: Hand, run: Run | None, error: BaseException) -> None:
        """Bring what Postgres has refused to `handle`, if a step has run."""
        if run is None:
            raise error
        commit = await self._handled(hand, run, error)
        try:
            await self._submit(hand, commit)
        except RefusedByDatabase:
            await self._submit(hand, failed(hand.claim, hand.claim.version, error))

    def _submit(self, hand: Hand, commit: Commit) -> asyncio.Future[Verdict]:
        hand.submitted, hand.goes_on = True, commit.goes_on
        return (self._flusher if commit.children is None else self._spawner).submit(commit)

    async def _attempt(self, hand: Hand, run: Run) -> Commit:
        """Run the step; an error, or an outcome that can not be, goes to `handle`."""
        ctx, outcome = run.context(), None
        self._tally.steps += 1
        try:
            step = run.step
            if step.is_async and step.timeout is None:
                outcome = await step.function(run.definition.owner, ctx)
            else:
                outcome = await self._caller.call(
                    run.claim, step, step.function, step.is_async, run.definition.owner, ctx
                )
            if isinstance(outcome, AskEach):
                return await self._filled(run, outcome, ctx)
            return run.commit(outcome, ctx)
        except BaseException as error:
            if hand.abandoned:
                raise
            _clear_cancellation(hand, error, run)
            was_filling = isinstance(outcome, AskEach)
            commit = await self._handled(hand, run, error, was_filling=was_filling)
            return replace(commit, has_filled=True) if was_filling else commit

    async def _filled(
        self, run: Run, outcome: AskEach, ctx: Context[Any], error: BaseException | None = None,
        *, was_filling: bool = False,
    ) -> Commit:  # fmt: skip
        """The commit of an Ask.each, once everything is asked."""
        if was_filling:  # it would go on with the questions of the one that failed
            raise InvalidOutcome("outcome", "handle can not Ask.each where an Ask.each of the step has failed; go on "
                                 "at a step that asks")
        filled = await self._filler.fill(run, outcome)
        if isinstance(filled, AwaitTimeout | ItemFailed):
            return replace(run.failure(filled), has_filled=True)
        commit = run.commit(filled, ctx, error)
        return replace(commit, has_filled=True)

    async def _transact(self, hand: Hand, run: Run) -> Commit | None:
        """Run the step with its outcome in one transaction; None if that has ended it, else what `handle` wants."""
        assert self._transactor is not None  # noqa: S101 - the worker has one if any step is transactional
        self._tally.steps += 1
        try:
            await self._transactor.run(hand, run)
        except BaseException as error:
            if hand.abandoned:
                raise
            _clear_cancellation(hand, error, run)
            return await self._handled(hand, run, error)
        return None

    async def _handled(self, hand: Hand, run: Run, error: BaseException, *, was_filling: bool = False) -> Commit:
        """Ask `handle`, which sees the state as it was loaded; if it fails too, so does the instance."""
        ctx = run.context_of_handle()
        definition = run.definition
        try:
            how = definition.handle_is_async
            outcome = await self._caller.call(run.claim, run.step, definition.handle, how, error, ctx)
            if not isinstance(outcome, AskEach):
                return run.commit(outcome, ctx, error)
            return await self._filled(run, outcome, ctx, error, was_filling=was_filling)
        except BaseException as second:
            if hand.abandoned:
                raise
            _clear_cancellation(hand, second)
            if second is not error and second.__context__ is None:
                second.__context__ = error
            return run.failure(second)


def _clear_cancellation(hand: Hand, error: BaseException, run: Run | None = None) -> None:
    """A step that raised CancelledError of its own did not cancel the engine's task. If somebody did, and it is not the
    step's own, nobody knows who was meant: a step that can be run again runs in a task of its own then."""
    if isinstance(error, asyncio.CancelledError):
        hand.was_cancelled, task = True, own_task()
        is_cancelled = task.cancelling() > 0
        while task.cancelling():
            task.uncancel()
        if is_cancelled and hand.shares_task and run is not None and run.step.is_async:  # a thread would run on
            raise Misdirected from error
