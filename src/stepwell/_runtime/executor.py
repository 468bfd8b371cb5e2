"""Runs claims: notes that they begin, decodes, calls the author's step, and brings its outcome to the flusher."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextvars import copy_context
from datetime import datetime
from functools import partial
from itertools import count
from typing import Any, TypeVar

from msgspec.structs import replace

from stepwell import _probes
from stepwell._core.commits import Commit
from stepwell._core.faults import StoreFault
from stepwell._core.records import Claim
from stepwell._core.transition import failed, unfit
from stepwell._runtime.caller import Caller
from stepwell._runtime.filler import Filler
from stepwell._runtime.flusher import AT_ONCE, Flusher, Verdict
from stepwell._runtime.hands import Hand, Hands
from stepwell._runtime.lanes import Lane, Lanes
from stepwell._runtime.loading import Loaded, load
from stepwell._runtime.parting import Parting
from stepwell._runtime.runs import Read, Run, Surroundings, Unfit, prepare
from stepwell._runtime.tally import Tally
from stepwell._runtime.transactions import Transactor
from stepwell._store import workers
from stepwell._store.database import Database
from stepwell.context import Context
from stepwell.errors import AwaitTimeout, InvalidOutcome, ItemFailed, RefusedByDatabase, StepwellError
from stepwell.outcomes import AskEach

T = TypeVar("T")

log = logging.getLogger("stepwell")


class Executor:
    """Turns claims into commits. The only place, besides the service loop, that catches everything."""

    def __init__(
        self,
        *,
        database: Database,
        flusher: Flusher,
        hands: Hands,
        lanes: Lanes,
        tally: Tally,
        transactor: Transactor | None,
        surroundings: Surroundings,
        run_ahead: int,
        caller: Caller,
        filler: Filler,
        on_room: Callable[[], None],
        on_lease_lost: Callable[[int], None],
    ) -> None:
        self._database = database
        self._flusher = flusher
        self._hands = hands
        self._lanes = lanes
        self._tally = tally
        self._transactor = transactor
        self._surroundings = surroundings
        self._run_ahead = run_ahead
        self._is_draining = False
        self._on_room = on_room
        self._on_lease_lost = on_lease_lost
        self._beginning = asyncio.Lock()
        self._lined_up: set[int] = set()  # instances that wait for this lock
        self._latest_claim: datetime | None = None
        self._suspects: deque[Claim] = deque()  # they run one at a time
        self._suspect_runs = False
        self._refills: set[asyncio.Task[None]] = set()
        self._caller = caller
        self._filler = filler

    @property
    def in_threads(self) -> int:
        """Sync steps that run right now; they can not be stopped from outside."""
        return self._caller.in_threads

    async def take(self, claims: Sequence[Claim]) -> None:
        """Take claims over: begin what has a slot, keep the rest in the buffer."""
        starters = []
        for claim in claims:
            if self._hands.add(claim) is None:
                log.warning("executor: %s: its claim came after it was given back", claim.label)
                continue
            self._tally.claimed += 1
            lane = self._lanes[claim.queue]
            if lane.running < lane.slots and not self._is_draining:
                lane.running += 1
                starters.append(claim)
            else:
                lane.buffer.append(claim)
        if claims:
            latest = claims[-1].claimed_at
            self._latest_claim = max(latest, self._latest_claim or latest)
        if starters:  # an empty claim waits for nobody's beginning
            await self._begin(starters)

    def begin_no_more(self) -> None:
        """From now on nothing begins: what a claim on its way still brings is given back, and nothing runs ahead."""
        self._is_draining = True

    def unbegun(self) -> list[Claim]:
        """Take back, for release, what was claimed and has not begun."""
        suspects = list(self._suspects)
        self._suspects.clear()
        for suspect in suspects:  # in line, it has a slot already
            self._lanes[suspect.queue].running -= 1
            self._hands.drop(suspect)
        return [*suspects, *(claim for lane in self._lanes for claim in self.unbuffered(lane))]

    def unbuffered(self, lane: Lane) -> list[Claim]:
        """Take back, for release, what waits for a slot of one queue."""
        waiting = list(lane.buffer)
        lane.buffer.clear()
        for claim in waiting:
            self._hands.drop(claim)
        return waiting

    async def drain(self, patience: float) -> int:
        """Wait for what runs; returns how many did not end in time and were left."""
        if self._refills:
            await asyncio.wait(self._refills, timeout=patience)
        loop = asyncio.get_running_loop()
        until = loop.time() + patience
        while (waits := self._hands.under_way()) and loop.time() < until:
            await asyncio.wait(waits, timeout=until - loop.time())
        left = [hand for hand in self._hands.all() if hand.under_way is not None]
        for hand in left:
            if hand.is_parting:
                self._hands.drop(hand.claim)
            hand.abandon("the worker stops")
        running = [hand.task for hand in left if hand.task is not None and not hand.task.done()]
        if running:
            await asyncio.wait(running, timeout=1.0)
        self._caller.close()
        return len(left)

    async def _begin(self, starters: list[Claim]) -> None:
        """Note the beginning of claims, durably, and only then run them."""
        lined_up = {claim.id for claim in starters}
        self._lined_up |= lined_up
        async with self._beginning:
            self._lined_up -= lined_up
            ordinary = [claim for claim in starters if not claim.is_suspect]
            self._suspects.extend(claim for claim in starters if claim.is_suspect)
            if self._suspects and not self._suspect_runs:
                self._suspect_runs = True
                ordinary.append(self._suspects.popleft())
            if not ordinary or self._latest_claim is None:
                return
            begin = workers.begin(
                self._database, ordinary[0].worker_id, self._latest_claim, self._waiting_ids(),
                [claim.id for claim in ordinary],
            )  # fmt: skip
            try:
                if any(claim.has_inbox or claim.round or claim.unit_id for claim in ordinary):
                    begun, loaded = await asyncio.gather(begin, load(self._database, ordinary))
                else:
                    begun, loaded = await begin, Loaded()
            except StoreFault:
                self._give_up(ordinary)  # not in our hands any more: the heartbeat returns them within a beat
                raise
            if begun is None:
                self._give_up(ordinary)
                self._on_lease_lost(ordinary[0].worker_id)
                return
            if _probes.hooks:
                await _probes.reach("executor.begun", ids=list(begun.states))
            loop, states, unchecked = asyncio.get_running_loop(), begun.states, begun.unchecked
            for number, claim in enumerate(ordinary):
                if number and number % AT_ONCE == 0:
                    await asyncio.sleep(0)  # what was launched runs, and is committed while the others run
                id_ = claim.id
                self._launch(claim, loaded.beside(id_, states[id_], unchecked=id_ in unchecked), loop)

    def _waiting_ids(self) -> list[int]:
        """What is claimed and does not begin yet."""
        buffered = [claim.id for lane in self._lanes for claim in lane.buffer]
        return [*self._lined_up, *(claim.id for claim in self._suspects), *buffered]

    def _give_up(self, claims: list[Claim]) -> None:
        for claim in claims:
            self._hands.drop(claim)
            self._end_slot(claim)

    def _launch(self, claim: Claim, stored: Read, loop: asyncio.AbstractEventLoop) -> None:
        hand = self._hands.get(claim.id)
        if hand is None or hand.claim is not claim:
            self._end_slot(claim)  # abandoned while its beginning was noted
            return
        hand.has_slot = True
        name = f"{claim.machine} #{claim.id}"  # without its step: the task may run ahead to others
        hand.task = loop.create_task(self._run(hand, partial(self._run_steps, hand, stored)), name=name)

    def _leave_slot(self, hand: Hand) -> None:
        if hand.has_slot:
            hand.has_slot = False
            self._end_slot(hand.claim)

    def _end_slot(self, claim: Claim) -> None:
        """Free the slot of a step that is over, and let the next one have it."""
        lane = self._lanes[claim.queue]
        lane.running -= 1
        if claim.is_suspect:
            self._suspect_runs = False
        starters = []
        while lane.buffer and lane.running < lane.slots and not self._is_draining:
            lane.running += 1
            starters.append(lane.buffer.popleft())
        if starters or (self._suspects and not self._suspect_runs):
            refill = asyncio.create_task(self._refill(starters))
            self._refills.add(refill)
            refill.add_done_callback(self._refills.discard)
        if lane.ready:
            self._on_room()

    async def _refill(self, starters: list[Claim]) -> None:
        try:
            await self._begin(starters)
        except StoreFault as error:
            log.warning("executor: %d claims could not begin: %s; the heartbeat returns them", len(starters), error)

    async def _run(self, hand: Hand, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except asyncio.CancelledError:
            if not hand.abandoned:
                raise
            log.warning("executor: %s: given up; its outcome is dropped", hand.claim.label)
        except StepwellError as error:
            log.error("executor: %s: no outcome could be committed: %s", hand.claim.label, error)  # noqa: TRY400 - said whole
        finally:
            self._leave_slot(hand)
            if not hand.is_parting:
                self._hands.drop(hand.claim)

    async def _run_steps(self, hand: Hand, stored: Read) -> None:
        """Run a step to its commit, and as many of the next ones as the row stays ours for."""
        for steps_ahead in count():
            claim = hand.claim
            try:
                run = prepare(claim, stored, self._surroundings)
            except Unfit as reason:
                log.warning("executor: %s: put aside: %s", claim.label, reason)
                self._leave_slot(hand)
                await self._submit(hand, unfit(claim, str(reason)))
                return
            commit = await (self._attempt(hand, run) if run.is_ordinary else self._decide(hand, run))
            if commit is None:
                return
            if _probes.hooks:
                await _probes.reach("executor.returned", id=claim.id)
            if steps_ahead < self._run_ahead and self._may_go_on(commit):
                commit = replace(commit, goes_on=True)
            elif not claim.is_suspect:  # a suspect is cleared by its commit: the next one waits for that
                self._leave_slot(hand)
                self._submit_last(hand, run, commit)
                return
            try:
                verdict = await self._submit(hand, commit)
            except RefusedByDatabase as error:
                await self._refused(hand, run, error)
                return
            if verdict is not Verdict.GOES_ON:
                return
            hand.go_on(commit.continues_as)
            if hand.revoked:
                log.warning("executor: %s: given up; an operator took it between two steps", hand.claim.label)
                return
            stored = run.read_after(commit)

    async def _decide(self, hand: Hand, run: Run) -> Commit | None:
        """The commit of what is no ordinary step; None if its transaction has ended it."""
        if run.ended is not None:
            return run.failure(run.ended)
        if run.obstacle is not None:  # there is no state, or no reply, to run the step with
            return await self._handled(hand, run, run.obstacle)
        return await self._transact(hand, run)

    def _may_go_on(self, commit: Commit) -> bool:
        """Whether the next step may run on the same claim: nothing is to be asked, loaded or let go before it."""
        claim = commit.claim
        return (
            commit.is_bare_next and not (claim.has_inbox or claim.round or claim.is_suspect)
            and not self._is_draining and self._lanes[claim.queue].lets_run_ahead(claim.priority)
        )  # fmt: skip

    async def _refused(self, hand: Hand, run: Run, error: BaseException) -> None:
        """Bring what Postgres has refused to `handle`."""
        commit = await self._handled(hand, run, error)
        try:
            await self._submit(hand, commit)
        except RefusedByDatabase:
            await self._submit(hand, failed(hand.claim, hand.claim.version, error))

    def _submit_last(self, hand: Hand, run: Run, commit: Commit) -> None:
        """Commit what the task need not wait for; what is refused comes back to a task of its own."""

        def bring_to_handle(error: BaseException) -> None:
            refused = self._run(hand, partial(self._refused, hand, run, error))
            hand.task = asyncio.create_task(refused, name=run.claim.label, context=context)

        context = copy_context()  # of the step: its `handle` sees the same
        hand.submitted = True
        self._flusher.submit_last(commit, Parting(hand, self._hands, bring_to_handle))
        hand.is_parting = True

    def _submit(self, hand: Hand, commit: Commit) -> asyncio.Future[Verdict]:
        hand.submitted, hand.goes_on = True, commit.goes_on
        return self._flusher.submit(commit)

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
            _clear_cancellation(error)
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
            _clear_cancellation(error)
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
            _clear_cancellation(second)
            if second is not error and second.__context__ is None:
                second.__context__ = error
            return run.failure(second)


def _clear_cancellation(error: BaseException) -> None:
    """A step that raised CancelledError of its own did not cancel the engine's task."""
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and task is not None:
        while task.cancelling():
            task.uncancel()
