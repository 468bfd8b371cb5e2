"""Takes claims in: gives them slots, notes durably that they begin, and only then lets their steps run."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from time import perf_counter

from stepwell import _probes
from stepwell._core.records import Claim
from stepwell._runtime.flusher import AT_ONCE
from stepwell._runtime.hands import Hand, Hands
from stepwell._runtime.lanes import Lane, Lanes, Returning
from stepwell._runtime.loading import Loaded, load
from stepwell._runtime.runs import Read
from stepwell._runtime.tally import Tally
from stepwell._store import shortcuts, workers
from stepwell._store.database import Database
from stepwell._store.instances import Claimed
from stepwell._store.workers import Begun

log = logging.getLogger("stepwell")

PATIENCE = 0.05  # seconds, of what may go on and finds no slot


class Intake:
    """From the claim's answer to the beginning of its step. What has no slot waits in its lane's buffer.

    Beginnings are tasks of their own, one for a lane at a time, so that more can be claimed meanwhile.
    """

    def __init__(
        self,
        *,
        database: Database,
        hands: Hands,
        lanes: Lanes,
        tally: Tally,
        launch: Callable[[Hand, Read], None],
        on_room: Callable[[], None],
        on_lease_lost: Callable[[int], None],
    ) -> None:
        self._database = database
        self._hands = hands
        self._lanes = lanes
        self._tally = tally
        self._run = launch
        self._on_room = on_room
        self._on_lease_lost = on_lease_lost
        self._beginnings: set[asyncio.Task[None]] = set()
        self._turn = asyncio.Lock()  # of one beginning, to be noted and launched
        self._lined_up: set[int] = set()  # instances whose beginning waits for its turn
        self._leaving: set[int] = set()  # instances that were taken back, to be released
        self._coming: list[Sequence[int]] = []  # instances that may be claimed by deliveries under way
        self._latest_claim: datetime | None = None
        self._suspects: deque[Claim] = deque()  # they run one at a time
        self._suspect_runs = False
        self._fault: Exception | None = None  # to be raised
        self._is_failing = False  # since the last one that began
        self._free_slot = self._end_slot  # bound once
        self._come_back = self._end_away

    def is_still(self, lane: Lane) -> bool:
        """Whether all that is claimed into this lane would begin at once: nothing runs in it, nothing waits or begins
        in any, and the last claim has left nothing behind."""
        is_busy = lane.running or lane.away or lane.returning or any(each.reserved for each in self._lanes)
        return not (is_busy or lane.left_behind is not None or self._beginnings or self._waiting_ids())

    async def claim_at_once(
        self, worker_id: int, lane: Lane, demand: int, labels: Sequence[str], others: Sequence[str]
    ) -> Claimed:
        """Claim into a lane that is still, and note with the claim that it has begun. Nothing else begins meanwhile:
        what could would have to be claimed, or born, first."""
        self._lanes.claims_at_once = True
        try:
            return await shortcuts.claim_at_once(self._database, worker_id, lane.queue, demand, labels, others)
        finally:
            self._lanes.claims_at_once = False

    def take(self, lane: Lane, claims: Sequence[Claim], begun: Begun | None = None) -> None:
        """Take claims of one moment over: begin what has a slot, keep the rest in the buffer. What has begun with its
        claim runs, unless its slots are gone: the worker ends."""
        taken = deque(self._hands.add(claims))
        self._tally.claimed += len(taken)
        if len(taken) < len(claims):
            arrived = {claim.id for claim in taken}
            for claim in claims:
                if claim.id not in arrived:
                    log.warning("intake: %s: its claim came after it was given back", claim.label)
        self.released(claims)  # what was given back may have come again
        latest = claims[-1].claimed_at
        self._latest_claim = max(latest, self._latest_claim or latest)
        if begun is not None and len(taken) <= lane.free and not lane.is_closed:
            lane.running += len(taken)
            self._launch(taken, begun, Loaded(begun.inboxes, begun.units), claims[-1].worker_id)
            self._is_failing = False
        else:
            lane.buffer.extend(taken)
            self._refill(lane)
            if lane.buffer and not lane.has_look:
                self._look_after(lane)

    @contextmanager
    def expecting(self, ids: Sequence[int]) -> Iterator[None]:
        """While these may be claimed by somebody who tells of it later, no note that is made is about them."""
        self._coming.append(ids)
        try:
            yield
        finally:
            self._coming.remove(ids)

    def step_aside(self, hand: Hand) -> None:
        """Leave a slot whose step has returned, to go on when that is committed."""
        self._lanes[hand.claim.queue].away += 1
        hand.leave_slot()
        hand.free_slot = self._come_back

    def go_on(self, hand: Hand, stored: Read) -> None:
        """Let an instance go on that has stepped aside; if no slot is free, it has the next one, for a moment."""
        hand.leave_slot()
        lane = self._lanes[hand.claim.queue]
        if lane.running < lane.slots:
            self._take_slot(lane, hand, stored)
            return
        hand.is_pending = True
        lane.returning.append(Returning(hand, stored, perf_counter()))
        if not lane.has_look:
            self._look_after(lane)

    def _take_slot(self, lane: Lane, hand: Hand, stored: Read) -> None:
        lane.running += 1
        hand.free_slot = self._free_slot
        self._run(hand, stored)

    def _look_after(self, lane: Lane) -> None:
        """Let those who claim look now and then at what finds no slot, to go on or to begin, as long as there is any.
        Steps behind which nothing has begun since the last look are not swift, whatever the first of them were."""
        if lane.has_look:
            if lane.buffer and lane.is_stalled and not lane.is_beginning:
                lane.is_swift = False
            self._on_room()
        lane.is_stalled = True
        lane.has_look = bool(lane.returning or lane.buffer)
        if lane.has_look:
            asyncio.get_running_loop().call_later(PATIENCE, self._look_after, lane)

    def _end_away(self, claim: Claim) -> None:
        self._lanes[claim.queue].away -= 1

    def raise_fault(self) -> None:
        """Raise what kept claims from beginning since the last look: who claims is to back off."""
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault

    async def see_begun(self) -> None:
        """After a fault, wait until the next ones have begun, or raise what keeps those too: so a back-off grows."""
        if self._is_failing:
            await self.all_begun()
            self.raise_fault()

    async def all_begun(self, patience: float | None = None) -> None:
        """Wait until what has a slot has begun, not longer than that."""
        if self._beginnings:
            await asyncio.wait(self._beginnings, timeout=patience)

    def unbegun(self) -> list[Claim]:
        """Take back, for release, what was claimed and has not begun."""
        suspects = list(self._suspects)
        self._suspects.clear()
        for suspect in suspects:  # in line, it has a slot already
            self._lanes[suspect.queue].running -= 1
        self._take_back(suspects)
        waiting = [claim for lane in self._lanes for claim in (*self.unreturned(lane), *self.unbuffered(lane))]
        return [*suspects, *waiting]

    def unreturned(self, lane: Lane, patience: float = 0.0) -> list[Claim]:
        """Take back, for release, what has waited so long for a slot to go on in: another worker may have one, or
        another instance be more urgent."""
        claims, until = [], perf_counter() - patience
        while lane.returning and lane.returning[0].since <= until:
            hand, _, _ = lane.returning.popleft()
            if not hand.abandoned:
                hand.part()
                claims.append(hand.claim)
        self._take_back(claims)
        return claims

    def unbuffered(self, lane: Lane, keep: int = 0) -> list[Claim]:
        """Take back, for release, what waits for a slot of one queue, but for the first so many."""
        waiting = [lane.buffer.pop() for _ in range(len(lane.buffer) - keep)]
        self._take_back(waiting)
        return waiting

    def released(self, claims: Sequence[Claim]) -> None:
        """What was taken back is not on its way out any more."""
        if self._leaving:
            self._leaving.difference_update(claim.id for claim in claims)

    def _take_back(self, claims: Sequence[Claim]) -> None:
        for claim in claims:
            self._hands.drop(claim)
            self._leaving.add(claim.id)

    def _refill(self, lane: Lane) -> None:
        """Let go on, and begin, what waits for a slot, as far as there are any. What goes on is first; beginnings of
        one lane go one after another."""
        while lane.returning and lane.running < lane.slots:
            hand, stored, _ = lane.returning.popleft()
            if not hand.abandoned:
                self._take_slot(lane, hand, stored)
        if lane.is_beginning:
            return
        starters = []
        while lane.buffer and lane.has_slot:
            lane.running += 1
            starters.append(lane.buffer.popleft())
        if starters:
            lane.is_stalled = False
        if starters or self._may_begin_suspect(lane):
            self._begin_soon(lane, starters)

    def _may_begin_suspect(self, lane: Lane) -> bool:
        return bool(self._suspects) and not self._suspect_runs and not lane.is_closed

    def _begin_soon(self, lane: Lane, starters: list[Claim]) -> None:
        lane.is_beginning = True
        self._lined_up.update(claim.id for claim in starters)  # at once: the next note is not about them
        beginning = asyncio.create_task(self._begin_safely(lane, starters), name="stepwell begin")
        self._beginnings.add(beginning)
        beginning.add_done_callback(self._beginnings.discard)

    async def _begin_safely(self, lane: Lane, starters: list[Claim]) -> None:
        try:
            async with self._turn:
                await self._begin(lane, starters)
        except Exception as error:  # noqa: BLE001 - it is raised again where it makes somebody back off
            log.warning("intake: %d claims could not begin: %s; the heartbeat returns them", len(starters), error)
            self._fault, self._is_failing = error, True
        lane.is_beginning = False
        self._refill(lane)
        self._on_room()  # for what was too little to claim meanwhile

    async def _begin(self, lane: Lane, starters: list[Claim]) -> None:
        """Begin ordinary claims together, and one suspect after the other."""
        self._lined_up.difference_update(claim.id for claim in starters)
        suspects = [claim for claim in starters if claim.is_suspect]
        self._suspects.extend(suspects)
        claims = [claim for claim in starters if not claim.is_suspect] if suspects else [*starters]
        if self._may_begin_suspect(lane):
            self._suspect_runs = True
            claims.append(self._suspects.popleft())
        left = deque(claims)
        try:
            if claims and (noted := await self._note(claims)) is not None:
                await self._launch_all(left, *noted)
                lane.is_swift = self._are_over(claims[: len(claims) // 2])
                self._is_failing = False
        finally:
            for claim in left:  # not in our hands any more: the heartbeat returns them within a beat
                self._let_go(claim)

    async def _note(self, claims: list[Claim]) -> tuple[Begun, Loaded] | None:
        """Note that claims begin, and read what they begin with; None if the lease is gone."""
        assert self._latest_claim is not None  # noqa: S101 - these were taken
        worker_id = claims[-1].worker_id
        begin = workers.begin(
            self._database, worker_id, self._latest_claim, self._waiting_ids(), [claim.id for claim in claims],
            by_limits=any(claim.needs is not None for claim in claims),
        )  # fmt: skip
        if any(claim.has_inbox or claim.round or claim.unit_id for claim in claims):
            begun, loaded = await asyncio.gather(begin, load(self._database, claims))
        else:
            begun, loaded = await begin, Loaded()
        if begun is None:
            self._on_lease_lost(worker_id)
            return None
        if _probes.hooks:
            await _probes.reach("executor.begun", ids=list(begun.states))
        return begun, loaded

    def _waiting_ids(self) -> list[int]:
        """What is claimed and does not begin yet."""
        buffered = [claim.id for lane in self._lanes for claim in lane.buffer]
        coming = [id_ for ids in self._coming for id_ in ids]
        return [*self._lined_up, *self._leaving, *(claim.id for claim in self._suspects), *buffered, *coming]

    async def _launch_all(self, left: deque[Claim], begun: Begun, loaded: Loaded) -> None:
        worker_id = left[-1].worker_id
        while left:
            self._launch(left, begun, loaded, worker_id)
            if left:
                await asyncio.sleep(0)  # what was launched runs, and is committed while the others run

    def _launch(self, left: deque[Claim], begun: Begun, loaded: Loaded, worker_id: int) -> None:
        for _ in range(min(AT_ONCE, len(left))):
            claim = left.popleft()
            hand, state = self._hands.get(claim.id), begun.states.get(claim.id)
            if hand is None or hand.claim is not claim or state is None or claim.worker_id != worker_id:
                self._let_go(claim)  # abandoned while its beginning was noted, pruned, or of a lease that is gone
                continue
            hand.free_slot = self._free_slot
            self._run(hand, loaded.beside(claim.id, state, unchecked=claim.id in begun.unchecked))

    def _are_over(self, claims: list[Claim]) -> bool:
        """Whether the first steps of some of these are over, and none runs: the others stand in line."""
        hands = [hand for claim in claims if (hand := self._hands.get(claim.id)) is not None]
        left = [hand for hand in hands if hand.free_slot is self._free_slot and not hand.steps_ahead]
        return len(left) < len(claims) and all(hand.task is None for hand in left)

    def _let_go(self, claim: Claim) -> None:
        self._hands.drop(claim)
        self._end_slot(claim)

    def _end_slot(self, claim: Claim) -> None:
        """Free the slot of a step that is over, and let the next one have it."""
        lane = self._lanes[claim.queue]
        lane.running -= 1
        if self._suspect_runs and claim.is_suspect:
            self._suspect_runs = False
        self._refill(lane)
        if lane.ready:
            self._on_room()
