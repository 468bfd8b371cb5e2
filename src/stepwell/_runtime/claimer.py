"""Claims work: as much as there is room for, one statement per queue, when something may be there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from stepwell import _probes
from stepwell._core.faults import Conflict, Refusal
from stepwell._core.records import Claim
from stepwell._core.registry import Registry
from stepwell._runtime.flusher import AT_ONCE, Flusher
from stepwell._runtime.intake import PATIENCE, Intake
from stepwell._runtime.lanes import Lane, Lanes, Turns
from stepwell._runtime.lease import Lease
from stepwell._runtime.limiter import Limiter
from stepwell._runtime.notifier import Notifier
from stepwell._service import Service
from stepwell._store import instances, keys, shares, shortcuts, workers
from stepwell._store.database import Database
from stepwell._store.instances import Claimed, Contender
from stepwell._store.workers import Begun

MOST_UNCOMMITTED = 2_000  # outcomes that may wait for their commit before claiming pauses
LARGEST_CLAIM = 1_000
TRIES = 3
CONTENDED_PAUSE = 0.01


class Claimer(Service):
    """Fills the lanes. Woken by notices, by a freed slot and by the timers; it does not poll by itself."""

    def __init__(
        self,
        *,
        database: Database,
        registry: Registry,
        notifier: Notifier,
        lease: Lease,
        lanes: Lanes,
        intake: Intake,
        flushers: Sequence[Flusher],
        limiter: Limiter,
        prefetch: int,
        min_demand: int,
        give_back: Callable[[Lane, int, float], Awaitable[None]],
    ) -> None:
        super().__init__("claimer")
        self._database = database
        self._registry = registry
        self._notifier = notifier
        self._lease = lease
        self._lanes = lanes
        self._intake = intake
        self._flushers = flushers
        self._limiter = limiter
        self._prefetch = prefetch
        self._min_demand = min_demand
        self._give_back = give_back
        self._labels = registry.labels()
        self._adopted: set[str] = set()  # versions nobody registers, that we bring forward
        self._others: set[str] = set()  # versions that other live workers run

    def forget_versions(self) -> None:
        """Ask again who runs what: workers have come and gone."""
        self._adopted.clear()
        self._others.clear()

    async def tick(self) -> float | None:
        self._intake.raise_fault()
        contended = False
        for lane in self._lanes:
            # Claimed ahead of steps that take longer than those before.
            keep = len(lane.buffer) if lane.is_beginning or lane.is_swift else self._prefetch
            if lane.returning or len(lane.buffer) > keep:
                await self._give_back(lane, keep, PATIENCE)
            if lane.ready and not lane.is_paused and self._lease.is_held and not self._stopping:
                contended |= await self._fill(lane)
        return CONTENDED_PAUSE if contended else None

    async def _fill(self, lane: Lane) -> bool:
        """Claim into one lane; True if rows were there that may be claimable in a moment."""
        room = lane.demand(self._prefetch, self._min_demand)
        demand = min(room, LARGEST_CLAIM, MOST_UNCOMMITTED - sum([flusher.waiting for flusher in self._flushers]))
        if demand <= 0 or any(flusher.is_laden for flusher in self._flushers):
            return room > 0  # so it is for the flushers to go on first
        begins = self._may_begin(lane, demand)
        if begins:
            demand = min(demand, AT_ONCE)
        lane.ready = lane.has_news = False  # before the claim: what arrives while it runs sets them again
        lane.unasked = 0
        try:
            answer = await self._claim(lane, demand, begins=begins)
        except BaseException:
            lane.ready = True
            raise
        if answer is None:
            lane.ready = True
            return True
        if _probes.hooks:
            await _probes.reach("claimer.claimed", ids=[claim.id for claim in answer.claims])
            if answer.begun is not None:
                await _probes.reach("executor.begun", ids=list(answer.begun.states))
        is_full = answer.window >= demand
        lane.left_behind = answer.last_priority if is_full else None
        is_locked_out = lane.turns is not None and answer.missed and not answer.window  # others hold all it looked at
        if is_full or answer.missed:
            lane.ready = True
            if not is_locked_out:
                self.wake()
        self._take(lane, answer.claims, answer.begun)
        await self._intake.see_begun()
        contended = await self._admit(lane, answer)
        return await self._set_aside(lane, answer) or contended or is_locked_out

    def _may_begin(self, lane: Lane, demand: int) -> bool:
        """Whether what is claimed now may begin with its claim: each has a slot, and no more is to be asked."""
        is_plain = lane.is_bare and lane.turns is None
        return is_plain and min(demand, AT_ONCE) <= lane.free and self._intake.is_still(lane)

    def _take(self, lane: Lane, claims: list[Claim], begun: Begun | None = None) -> None:
        """Hand claims on, if the lease is still there under which they were made; if not, the reaper returns them."""
        if claims and claims[0].worker_id == self._lease.current:
            self._intake.take(lane, claims, begun)

    async def _admit(self, lane: Lane, answer: Claimed) -> bool:
        """Ask the limits about rows that need some, as many as there are slots for: whoever they admit is to begin now,
        and not when somebody else is over. True if some may be claimable in a moment."""
        lane.is_limited = answer.needs_limits or (lane.is_limited and not answer.window)
        free = max(0, lane.free)
        ids = [row.id for row in answer.limited[:free]]
        if left := answer.limited[free:]:
            lane.ready, lane.left_behind = True, left[0].priority
        if not ids:
            return False
        try:
            claims, contended = await self._limiter.admit(lane.queue, ids)
        except BaseException:
            lane.ready = True
            raise
        lane.ready |= contended
        self._take(lane, claims)
        return contended

    async def _claim(self, lane: Lane, demand: int, *, begins: bool) -> Claimed | None:
        if _probes.hooks:
            await _probes.reach("claimer.before_claim", queue=lane.queue)
        labels = [*self._labels, *self._adopted]
        worker_id = self._lease.worker_id
        for _ in range(TRIES):
            try:
                if lane.turns is not None:
                    return await self._claim_in_turn(worker_id, lane, lane.turns, demand, labels)
                return await self._claim_in_order(worker_id, lane, demand, labels, begins=begins)
            except Conflict:  # another worker claimed the same concurrency key in the same moment
                continue
        return None

    async def _claim_in_order(
        self, worker_id: int, lane: Lane, demand: int, labels: list[str], *, begins: bool
    ) -> Claimed:
        """Claim from an ordinary queue: the short way, while that finds something."""
        others = sorted(self._others)
        if lane.is_limited:
            claimed_slots = await self._limiter.claim(worker_id, lane.queue, demand, labels, others)
            if claimed_slots is not None:
                return claimed_slots
        if begins:
            with suppress(Refusal):  # whatever can not be said in one answer is read part by part
                claimed = await self._intake.claim_at_once(worker_id, lane, demand, labels, others)
                if claimed.claims:
                    return claimed
        elif lane.is_bare:
            claims, is_all = await shortcuts.claim_bare(
                self._database, worker_id, lane.queue, demand, labels, others
            )
            if claims:
                return Claimed(claims, [], [], not is_all, [])
        claimed = await instances.claim(self._database, worker_id, lane.queue, demand, labels, others)
        if claimed.window:
            lane.is_bare = claimed.is_bare
        return claimed

    async def _claim_in_turn(
        self, worker_id: int, lane: Lane, turns: Turns, demand: int, labels: list[str]
    ) -> Claimed:
        """Claim from a fair queue, and remember whose turn is next."""
        claimed, turned = await shares.claim(
            self._database, worker_id, lane.queue, demand, labels, sorted(self._others),
            turns=turns.after, start=turns.start,
        )  # fmt: skip
        turns.note(turned)
        return claimed

    async def _set_aside(self, lane: Lane, answer: Claimed) -> bool:
        """Take what may not run now out of the claim's way; True if some of it may after all."""
        contended = False
        if answer.busy:
            held = await keys.hold(
                self._database, [row.id for row in answer.busy], [str(row.concurrency_key) for row in answer.busy]
            )
            contended = len(held) < len(answer.busy)
            await self._limiter.pass_on(held.values())
        if answer.foreign:
            contended |= await self._set_aside_foreign(lane, answer.foreign)
        if contended:
            lane.ready = True
        return contended

    async def _set_aside_foreign(self, lane: Lane, foreign: list[Contender]) -> bool:
        labels = {row.label for row in foreign}
        others = await workers.registered(self._database, sorted(labels))
        if others - self._others:
            self._others |= others
            self._notifier.announce_elsewhere(lane.queue)  # their claims may just have passed our window over
        orphans = labels - others
        adopted = {label for label in orphans if self._can_adopt(label)}
        self._adopted |= adopted
        stranded = [row.id for row in foreign if row.label in orphans - adopted]
        if stranded:
            held = await instances.hold_foreign(self._database, stranded)
            await self._limiter.pass_on(held.values())
            # A worker that registered the version meanwhile may have looked before we held: look again.
            await instances.unhold_version(self._database)
        return True  # what stood behind them in the window may be ours

    def _can_adopt(self, label: str) -> bool:
        name, _, version = label.rpartition("@")
        return self._registry.successor(name, int(version)) is not None
