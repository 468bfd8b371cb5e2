"""Runs claims: notes that they begin, decodes, calls the author's step, and brings its outcome to the flusher."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from stepwell import _probes
from stepwell._core.codec import decode_value
from stepwell._core.commits import Commit
from stepwell._core.faults import StoreFault
from stepwell._core.records import Claim
from stepwell._core.registry import Definition, Registry
from stepwell._core.transition import failed, transition, unfit
from stepwell._runtime.flusher import Flusher
from stepwell._runtime.hands import Hand, Hands
from stepwell._runtime.lanes import Lanes
from stepwell._runtime.tally import Tally
from stepwell._store import workers
from stepwell._store.database import Database
from stepwell.context import Context
from stepwell.errors import InvalidInput, RefusedByDatabase, StepTimeout, StepwellError
from stepwell.machine import Step, step_name

log = logging.getLogger("stepwell")

MOST_THREADS = 1_000


class Unfit(StepwellError):
    """This code can not run that row: it waits, with the reason, for code that can."""


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of one step: the definition that runs it, the step, and the stored state."""

    claim: Claim  # of a row brought forward: at its new step
    definition: Definition
    step: Step
    loaded: str
    stored: str | None  # the same text; None if the row still has the state of an older version

    def context(self, resources: Any) -> Context[Any]:
        claim = self.claim
        return Context(
            id=claim.id, key=claim.key, tenant=claim.tenant, machine=claim.machine, version=self.definition.version,
            step=self.step.name, attempt=claim.attempt, fence=claim.fence,
            state=self.definition.state.decode(self.loaded), resources=resources,
        )  # fmt: skip


class Executor:
    """Turns claims into commits. The only place, besides the service loop, that catches everything."""

    def __init__(
        self,
        *,
        database: Database,
        registry: Registry,
        flusher: Flusher,
        hands: Hands,
        lanes: Lanes,
        tally: Tally,
        max_payload: int,
        resources: Any,
        on_room: Callable[[], None],
        on_lease_lost: Callable[[int], None],
    ) -> None:
        self._database = database
        self._registry = registry
        self._flusher = flusher
        self._hands = hands
        self._lanes = lanes
        self._tally = tally
        self._max_payload = max_payload
        self._resources = resources
        self._on_room = on_room
        self._on_lease_lost = on_lease_lost
        self._beginning = asyncio.Lock()
        self._lined_up: set[int] = set()  # instances that wait for this lock
        self._latest_claim: datetime | None = None
        self._suspects: deque[Claim] = deque()  # they run one at a time
        self._suspect_runs = False
        self._refills: set[asyncio.Task[None]] = set()
        self._threads = ThreadPoolExecutor(min(lanes.slots, MOST_THREADS) or 1, thread_name_prefix="stepwell step")
        self._in_threads = 0

    @property
    def in_threads(self) -> int:
        """Sync steps that run right now; they can not be stopped from outside."""
        return self._in_threads

    async def take(self, claims: Sequence[Claim]) -> None:
        """Take claims over: begin what has a slot, keep the rest in the buffer."""
        starters = []
        for claim in claims:
            if self._hands.add(claim) is None:
                log.warning("executor: %s: its claim came after it was given back", claim.label)
                continue
            self._tally.claimed += 1
            lane = self._lanes[claim.queue]
            if lane.running < lane.slots:
                lane.running += 1
                starters.append(claim)
            else:
                lane.buffer.append(claim)
            self._latest_claim = max(claim.claimed_at, self._latest_claim or claim.claimed_at)
        if starters:  # an empty claim waits for nobody's beginning
            await self._begin(starters)

    def unbegun(self) -> list[Claim]:
        """Take back, for release, what was claimed and has not begun."""
        waiting = [*self._suspects, *(claim for lane in self._lanes for claim in lane.buffer)]
        for suspect in self._suspects:  # in line, it has a slot already
            self._lanes[suspect.queue].running -= 1
        self._suspects.clear()
        for lane in self._lanes:
            lane.buffer.clear()
        for claim in waiting:
            self._hands.drop(claim)
        return waiting

    async def drain(self, patience: float) -> int:
        """Wait for what runs; returns how many did not end in time and were left."""
        if self._refills:
            await asyncio.wait(self._refills, timeout=patience)
        tasks = [hand.task for hand in self._hands.all() if hand.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=patience)
        left = [hand for hand in self._hands.all() if hand.task is not None and not hand.task.done()]
        for hand in left:
            hand.abandon("the worker stops")
        if left:
            await asyncio.wait([hand.task for hand in left if hand.task is not None], timeout=1.0)
        self._threads.shutdown(wait=False, cancel_futures=True)
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
            try:
                states = await workers.begin(
                    self._database, ordinary[0].worker_id, self._latest_claim, self._waiting_ids(),
                    [claim.id for claim in ordinary],
                )  # fmt: skip
            except StoreFault:
                self._give_up(ordinary)  # not in our hands any more: the heartbeat returns them within a beat
                raise
            if not states:
                self._give_up(ordinary)
                self._on_lease_lost(ordinary[0].worker_id)
                return
            if _probes.hooks:
                await _probes.reach("executor.begun", ids=list(states))
            for claim in ordinary:
                self._launch(claim, states[claim.id])

    def _waiting_ids(self) -> list[int]:
        """What is claimed and does not begin yet."""
        buffered = [claim.id for lane in self._lanes for claim in lane.buffer]
        return [*self._lined_up, *(claim.id for claim in self._suspects), *buffered]

    def _give_up(self, claims: list[Claim]) -> None:
        for claim in claims:
            self._hands.drop(claim)
            self._end_slot(claim)

    def _launch(self, claim: Claim, loaded: str) -> None:
        hand = self._hands.get(claim.id)
        if hand is None or hand.claim is not claim:
            self._end_slot(claim)  # abandoned while its beginning was noted
            return
        hand.task = asyncio.create_task(self._run(hand, loaded), name=claim.label)

    def _end_slot(self, claim: Claim) -> None:
        """Free the slot of a step that is over, and let the next one have it."""
        lane = self._lanes[claim.queue]
        lane.running -= 1
        if claim.is_suspect:
            self._suspect_runs = False
        starters = []
        while lane.buffer and lane.running < lane.slots:
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

    async def _run(self, hand: Hand, loaded: str) -> None:
        claim = hand.claim
        slot = _Slot(lambda: self._end_slot(claim))
        try:
            await self._run_step(hand, loaded, slot)
        except asyncio.CancelledError:
            if not hand.abandoned:
                raise
            log.warning("executor: %s: given up; its outcome is dropped", claim.label)
        except StepwellError as error:
            log.error("executor: %s: no outcome could be committed: %s", claim.label, error)  # noqa: TRY400 - said whole
        finally:
            slot.end()
            self._hands.drop(claim)

    async def _run_step(self, hand: Hand, loaded: str, slot: _Slot) -> None:
        try:
            run = self._prepare(hand.claim, loaded)
        except Unfit as reason:
            log.warning("executor: %s: put aside: %s", hand.claim.label, reason)
            slot.end()
            await self._submit(hand, unfit(hand.claim, str(reason)))
            return
        commit = await self._attempt(hand, run)
        if _probes.hooks:
            await _probes.reach("executor.returned", id=hand.claim.id)
        if not hand.claim.is_suspect:  # a suspect is cleared by its commit: the next one waits for that
            slot.end()
        try:
            await self._submit(hand, commit)
        except RefusedByDatabase as error:
            commit = await self._handled(hand, run, error)
            try:
                await self._submit(hand, commit)
            except RefusedByDatabase:
                await self._submit(hand, failed(hand.claim, hand.claim.version, error))

    async def _submit(self, hand: Hand, commit: Commit) -> None:
        hand.submitted = True
        await self._flusher.submit(commit)

    def _prepare(self, claim: Claim, loaded: str) -> _Run:
        """Find what runs this row; a version that nobody registers any more is brought forward here."""
        definition = self._registry.find(claim.machine, claim.version)
        stored: str | None = loaded
        if definition is None:
            definition = self._registry.successor(claim.machine, claim.version)
            if definition is None:
                raise Unfit(f"{claim.machine} version {claim.version} is not registered")
            name, loaded = _bring_forward(definition, claim, loaded)
            claim, stored = replace(claim, step=name), None
        try:
            step = definition.step(claim.step)
            definition.state.decode(loaded)
        except InvalidInput as error:
            raise Unfit(f"{error} (in {definition.name} version {definition.version})") from error
        return _Run(claim, definition, step, loaded, stored)

    async def _attempt(self, hand: Hand, run: _Run) -> Commit:
        """Run the step; an error, or an outcome that can not be, goes to `handle`."""
        ctx = run.context(self._resources)
        self._tally.steps += 1
        try:
            outcome = await self._call(hand, run, run.step.function, run.step.is_async, run.definition.owner, ctx)
            return self._transition(run, outcome, ctx)
        except BaseException as error:
            if hand.abandoned:
                raise
            _clear_cancellation(error)
            return await self._handled(hand, run, error)

    async def _handled(self, hand: Hand, run: _Run, error: BaseException) -> Commit:
        """Ask `handle`, which sees the state as it was loaded; if it fails too, so does the instance."""
        ctx = run.context(self._resources)
        definition = run.definition
        try:
            outcome = await self._call(hand, run, definition.handle, definition.handle_is_async, error, ctx)
            return self._transition(run, outcome, ctx, error)
        except BaseException as second:
            if hand.abandoned:
                raise
            _clear_cancellation(second)
            if second is not error and second.__context__ is None:
                second.__context__ = error
            return failed(run.claim, definition.version, second, state=run.loaded if run.stored is None else None)

    def _transition(
        self, run: _Run, outcome: object, ctx: Context[Any], error: BaseException | None = None
    ) -> Commit:
        return transition(
            outcome, claim=run.claim, definition=run.definition, state=ctx.state, stored=run.stored,
            max_payload=self._max_payload, error=error,
        )  # fmt: skip

    async def _call(
        self, hand: Hand, run: _Run, function: Callable[..., Any], is_async: bool, *args: Any
    ) -> object:
        timeout = run.step.timeout
        if not is_async:
            return await self._call_in_thread(hand, run, function, *args)
        if timeout is None:
            return await function(*args)
        try:
            async with asyncio.timeout(timeout.total_seconds()) as scope:
                return await function(*args)
        except TimeoutError:
            if scope.expired():
                raise StepTimeout(run.claim.machine, run.step.name, timeout) from None
            raise

    async def _call_in_thread(self, hand: Hand, run: _Run, function: Callable[..., Any], *args: Any) -> object:
        """Run sync code in a thread. It keeps claim and slot until the thread returns, also past its timeout."""
        started = time.monotonic()
        context = contextvars.copy_context()
        self._in_threads += 1
        future = asyncio.get_running_loop().run_in_executor(self._threads, context.run, _caught, function, args)
        future.add_done_callback(self._thread_ended)
        value, error = await asyncio.shield(future)
        timeout = run.step.timeout
        if timeout is not None and time.monotonic() - started > timeout.total_seconds():
            raise StepTimeout(run.claim.machine, run.step.name, timeout) from error
        if error is not None:
            raise error
        if inspect.iscoroutine(value):
            value.close()
        return value

    def _thread_ended(self, _: object) -> None:
        self._in_threads -= 1


class _Slot:
    """A slot that is given back once."""

    __slots__ = ("_end",)

    def __init__(self, end: Callable[[], None]) -> None:
        self._end: Callable[[], None] | None = end

    def end(self) -> None:
        end, self._end = self._end, None
        if end is not None:
            end()


def _caught(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[object, BaseException | None]:
    """Call and catch in the thread: a future can not carry a StopIteration."""
    try:
        return function(*args), None
    except BaseException as error:  # noqa: BLE001 - carried to the loop, where it is handled
        return None, error


def _clear_cancellation(error: BaseException) -> None:
    """A step that raised CancelledError of its own did not cancel the engine's task."""
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and task is not None:
        while task.cancelling():
            task.uncancel()


def _bring_forward(definition: Definition, claim: Claim, loaded: str) -> tuple[str, str]:
    """Let the newer version make its step and state of an older one's."""
    assert definition.upcast is not None  # noqa: S101 - Registry.successor returns only such
    try:
        state, ref = definition.upcast(decode_value(loaded), claim.step, claim.version)
        return step_name(ref) or repr(ref), definition.state.admit(state)
    except Exception as error:
        raise Unfit(f"upcast from version {claim.version} failed: {type(error).__name__}: {error}") from error
