"""Runs claims: notes that they begin, decodes, calls the author's step, and brings its outcome to the flusher."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from stepwell import _probes
from stepwell._core.codec import decode_value
from stepwell._core.commits import Commit
from stepwell._core.faults import StoreFault
from stepwell._core.records import Child, Claim, Signal
from stepwell._core.registry import Definition, Registry
from stepwell._core.transition import failed, transition, unfit
from stepwell._runtime.caller import Around, Caller
from stepwell._runtime.flusher import Flusher
from stepwell._runtime.hands import Hand, Hands
from stepwell._runtime.lanes import Lanes
from stepwell._runtime.tally import Tally
from stepwell._store import children, signals, workers
from stepwell._store.database import Database
from stepwell.context import Context
from stepwell.errors import InvalidInput, RefusedByDatabase, StepwellError
from stepwell.machine import Step, step_name

log = logging.getLogger("stepwell")


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
    inbox: tuple[Signal, ...]
    awaited: tuple[Signal, ...]
    children: tuple[Child, ...]

    def context(self, resources: Any) -> Context[Any]:
        claim = self.claim
        return Context(
            id=claim.id, key=claim.key, tenant=claim.tenant, machine=claim.machine, version=self.definition.version,
            step=self.step.name, attempt=claim.attempt, fence=claim.fence, worker_id=claim.worker_id,
            state=self.definition.state.decode(self.loaded), resources=resources,
            inbox=self.inbox, awaited=self.awaited, children=self.children,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Read:
    """What was read for a claim before its step begins."""

    state: str
    inbox: tuple[Signal, ...] = ()
    children: tuple[Child, ...] = ()


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
        around_sync_steps: Around | None,
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
        self._caller = Caller(lanes.slots, around_sync_steps)

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
            try:
                states = await workers.begin(
                    self._database, ordinary[0].worker_id, self._latest_claim, self._waiting_ids(),
                    [claim.id for claim in ordinary],
                )  # fmt: skip
                stored = await self._load(ordinary, states)
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
                self._launch(claim, stored[claim.id])

    async def _load(self, claims: list[Claim], states: dict[int, str]) -> dict[int, _Read]:
        """Read what flags on the rows say is there: a plain step pays for no inbox and no children."""
        receivers = [claim.id for claim in claims if claim.has_inbox]
        inboxes = await signals.load(self._database, receivers) if receivers else {}
        rounds = {claim.id: claim.round for claim in claims if claim.round}
        families = await children.load(self._database, rounds) if rounds else {}
        return {id_: _Read(state, inboxes.get(id_, ()), families.get(id_, ())) for id_, state in states.items()}

    def _waiting_ids(self) -> list[int]:
        """What is claimed and does not begin yet."""
        buffered = [claim.id for lane in self._lanes for claim in lane.buffer]
        return [*self._lined_up, *(claim.id for claim in self._suspects), *buffered]

    def _give_up(self, claims: list[Claim]) -> None:
        for claim in claims:
            self._hands.drop(claim)
            self._end_slot(claim)

    def _launch(self, claim: Claim, stored: _Read) -> None:
        hand = self._hands.get(claim.id)
        if hand is None or hand.claim is not claim:
            self._end_slot(claim)  # abandoned while its beginning was noted
            return
        hand.task = asyncio.create_task(self._run(hand, stored), name=claim.label)

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

    async def _run(self, hand: Hand, stored: _Read) -> None:
        claim = hand.claim
        slot = _Slot(lambda: self._end_slot(claim))
        try:
            await self._run_step(hand, stored, slot)
        except asyncio.CancelledError:
            if not hand.abandoned:
                raise
            log.warning("executor: %s: given up; its outcome is dropped", claim.label)
        except StepwellError as error:
            log.error("executor: %s: no outcome could be committed: %s", claim.label, error)  # noqa: TRY400 - said whole
        finally:
            slot.end()
            self._hands.drop(claim)

    async def _run_step(self, hand: Hand, stored: _Read, slot: _Slot) -> None:
        try:
            run = self._prepare(hand.claim, stored)
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

    def _prepare(self, claim: Claim, read: _Read) -> _Run:
        """Find what runs this row; a version that nobody registers any more is brought forward here."""
        definition = self._registry.find(claim.machine, claim.version)
        loaded = read.state
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
        awaited = tuple(signal for signal in read.inbox if signal.name in claim.awaits)
        return _Run(claim, definition, step, loaded, stored, read.inbox, awaited, read.children)

    async def _attempt(self, hand: Hand, run: _Run) -> Commit:
        """Run the step; an error, or an outcome that can not be, goes to `handle`."""
        ctx = run.context(self._resources)
        self._tally.steps += 1
        try:
            step = run.step
            outcome = await self._caller.call(run.claim, step, step.function, step.is_async, run.definition.owner, ctx)
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
            how = definition.handle_is_async
            outcome = await self._caller.call(run.claim, run.step, definition.handle, how, error, ctx)
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
            max_payload=self._max_payload, error=error, awaited=tuple(signal.id for signal in run.awaited),
            registry=self._registry,
        )  # fmt: skip


class _Slot:
    """A slot that is given back once."""

    __slots__ = ("_end",)

    def __init__(self, end: Callable[[], None]) -> None:
        self._end: Callable[[], None] | None = end

    def end(self) -> None:
        end, self._end = self._end, None
        if end is not None:
            end()


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
