"""A model of the events that reach the slots of a worker, and of what always holds after each of them."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace

from stepwell._core.instance import SUSPECT_AFTER, Claim
from stepwell._worker.active_claims import CONTINUES, OPEN, ActiveClaim, ActiveClaims, Read
from stepwell._worker.queue_slots import MOST_AWAY, AllQueueSlots, QueueSlots
from stepwell._worker.running.ready_queue import ReadyQueue
from stepwell._worker.running.withdrawals import Withdrawals
from stepwell._worker.wakeups import Wakeups
from tests.unit.claims import make_claim

QUEUES = {"one": 1, "three": 3}
PREFETCH = 2
STORED = Read("{}")

queues = st.sampled_from(sorted(QUEUES))
Event = tuple[str, dict[str, Any]]

any_one = st.integers(0, 99)  # an index into whatever there is
few = st.integers(1, 4)


# How often each event is tried, and its arguments.
EVENTS: dict[str, tuple[int, dict[str, st.SearchStrategy[Any]]]] = {
    "claim": (12, {"queue": queues, "most": few, "crashes": st.sampled_from([0] * 7 + [SUSPECT_AFTER])}),
    "claim_and_begin_at_once": (2, {"queue": queues, "most": few}),
    "claim_anew": (1, {"at": any_one}),
    "line_up": (12, {"at": any_one}),
    "note": (12, {"at": any_one, "answer": st.sampled_from(["noted"] * 6 + ["one is fenced off", "failed"])}),
    "launch_some": (16, {"number": few, "steps_are_short": st.sampled_from([False, False, True])}),
    "end_step": (6, {"at": any_one}),
    "step_aside": (12, {"at": any_one}),
    "answer_commit": (10, {"at": any_one, "is_stale": st.booleans()}),
    "expect_births": (2, {"queue": queues, "number": few}),
    "be_born": (2, {"at": any_one, "inserted_claimed": st.integers(0, 4)}),
    "lose_a_claim": (2, {"at": any_one}),
    "lose_the_lease": (1, {}),
    "pause_and_resume": (3, {"paused": st.sets(queues)}),
    "look": (2, {"queue": queues}),
    "find_that_steps_take_time": (2, {"queue": queues}),
    "release": (3, {}),
}
events = st.sampled_from([name for name, (weight, _) in EVENTS.items() for _ in range(weight)]).flatmap(
    lambda name: st.tuples(st.just(name), st.fixed_dictionaries(EVENTS[name][1]))
)


@dataclass
class Beginning:
    """Claims that have slots, until all of them have started or were released."""

    queue_slots: QueueSlots
    starters: list[Claim]
    claims: deque[Claim] = field(default_factory=deque)
    has_turn: bool = False
    is_noted: bool = False


class SlotModel(RuleBasedStateMachine):
    """Plays the database, the steps and the other services of a worker around its slots."""

    kind: ClassVar[type[ReadyQueue]] = ReadyQueue
    taking_back: ClassVar[type[Withdrawals]] = Withdrawals

    def __init__(self) -> None:
        super().__init__()
        self.all_queue_slots, self.active_claims = AllQueueSlots(QUEUES), ActiveClaims()
        wakeups = Wakeups()
        wakeups.step_ready, wakeups.work_available = self.resume, self.ask
        self.slots = self.kind(self.all_queue_slots, self.active_claims, self, wakeups)
        self.withdrawals = self.taking_back(self.slots, self.all_queue_slots, self.active_claims)
        self.worker_id = 1
        self.last_id = 0
        self.beginnings: dict[str, Beginning] = {}
        self.running: list[ActiveClaim] = []
        self.away: list[ActiveClaim] = []
        self.leaving: list[Claim] = []
        self.reserved: list[tuple[QueueSlots, int]] = []
        self.made: set[tuple[int, int]] = set()
        self.ended: Counter[tuple[int, int]] = Counter()  # by id and fence: it ran, was given back, or was lost
        self.steps_were_short: set[str] = set()

    # What `ReadyQueue` asks for

    def begin(self, queue_slots: QueueSlots, claims: list[Claim]) -> None:
        assert queue_slots.queue not in self.beginnings, "beginnings of one queue go one after another"
        self.beginnings[queue_slots.queue] = Beginning(queue_slots, claims)

    def resume(self, active: ActiveClaim, stored: Read) -> None:
        assert stored is STORED
        active.is_pending = False
        self.running.append(active)

    def ask(self) -> None:
        """The claimer polls at its own pace: see `look`."""

    def recheck(self, queue_slots: QueueSlots) -> None:
        """The same."""

    # Of several rules, hypothesis leaves some out of a run, and the faults are found between them: so it is one.
    @rule(event=events)
    def let(self, event: Event) -> None:
        name, arguments = event
        getattr(self, name)(**arguments)

    # Claims

    def make(self, queue_slots: QueueSlots, number: int, crashes: int = 0) -> list[Claim]:
        claims = []
        for _ in range(number):
            self.last_id += 1
            claims.append(self.claim_of(self.last_id, 1, queue_slots, crashes))
        return claims

    def claim_of(self, id_: int, fence: int, queue_slots: QueueSlots, crashes: int = 0) -> Claim:
        self.made.add((id_, fence))
        return make_claim(id=id_, fence=fence, queue=queue_slots.queue, worker_id=self.worker_id, crashes=crashes)

    def take(self, queue_slots: QueueSlots, claims: list[Claim]) -> None:
        self.slots.put(queue_slots, self.active_claims.add(claims))
        self.withdrawals.released(claims)

    def claim(self, queue: str, most: int, crashes: int) -> None:
        queue_slots = self.all_queue_slots[queue]
        number = min(most, queue_slots.demand(PREFETCH, 1))
        if number > 0 and not queue_slots.is_closed:
            self.take(queue_slots, self.make(queue_slots, number, crashes))

    def claim_and_begin_at_once(self, queue: str, most: int) -> None:
        queue_slots = self.all_queue_slots[queue]
        is_still = not (self.beginnings or self.withdrawals.waiting_ids() or self.reserved or queue_slots.running
                        or queue_slots.away)
        number = min(most, queue_slots.free)
        is_open = not (queue_slots.returning or queue_slots.is_paused or queue_slots.is_closed)
        if is_still and number > 0 and is_open:
            claims = self.active_claims.add(self.make(queue_slots, number))
            queue_slots.running += number
            self.launch(claims)

    def claim_anew(self, at: int) -> None:
        """A row that was taken away without a notification is claimed again by the same worker."""
        active = self.pick([active for active in self.active_claims.all() if active.stage is OPEN], at)
        if active is None or active.claim.worker_id != self.worker_id:
            return
        queue_slots, old = self.all_queue_slots[active.claim.queue], active.claim
        if queue_slots.demand(PREFETCH, 1) > 0 and not queue_slots.is_closed:
            self.end(old)
            self.take(queue_slots, [self.claim_of(old.id, old.fence + 5, queue_slots)])
            self.forget(active)

    def expect_births(self, queue: str, number: int) -> None:
        queue_slots = self.all_queue_slots[queue]
        kept = queue_slots.reserve(number)
        if kept:
            self.reserved.append((queue_slots, kept))

    def be_born(self, at: int, inserted_claimed: int) -> None:
        if not self.reserved:
            return
        queue_slots, kept = self.reserved.pop(at % len(self.reserved))
        claims = self.make(queue_slots, min(inserted_claimed, kept)) if not queue_slots.is_closed else []
        queue_slots.unreserve(kept, len(claims))
        if claims:
            self.take(queue_slots, claims)

    # Mark started

    def line_up(self, at: int) -> None:
        if not self.beginnings or self.under_way is not None:
            return
        beginning = list(self.beginnings.values())[at % len(self.beginnings)]
        beginning.has_turn = True
        beginning.claims.extend(self.slots.choose(beginning.queue_slots, beginning.starters))

    def note(self, at: int, answer: str) -> None:
        beginning = self.under_way
        if beginning is None:
            return
        if answer == "failed" and not beginning.is_noted:
            while beginning.claims:
                self.drop_unstarted(beginning.claims.popleft())
        elif answer == "one is fenced off" and beginning.claims:
            claim = beginning.claims[at % len(beginning.claims)]
            beginning.claims.remove(claim)
            self.drop_unstarted(claim)
        beginning.is_noted = True

    def launch_some(self, number: int, *, steps_are_short: bool) -> None:
        beginning = self.under_way
        if beginning is None or not beginning.is_noted:
            return
        left = beginning.claims
        self.launch([left.popleft() for _ in range(min(number, len(left)))])
        if not left:
            queue_slots = beginning.queue_slots
            queue_slots.steps_are_short = steps_are_short
            if steps_are_short:
                self.steps_were_short.add(queue_slots.queue)
            del self.beginnings[queue_slots.queue]
            self.slots.end_beginning(queue_slots)

    def launch(self, claims: list[Claim]) -> None:
        for claim in claims:
            if claim.worker_id != self.worker_id:
                self.drop_unstarted(claim)
            elif (active := self.slots.start(claim)) is not None:
                self.running.append(active)

    def drop_unstarted(self, claim: Claim) -> None:
        if self.is_held(claim):
            self.end(claim)  # of another worker, or left to the heartbeat
        self.slots.drop_unstarted(claim)

    @property
    def under_way(self) -> Beginning | None:
        return next((each for each in self.beginnings.values() if each.has_turn), None)

    # Steps and commits

    def end_step(self, at: int) -> None:
        if self.running:
            self.finish(self.running.pop(at % len(self.running)))

    def step_aside(self, at: int) -> None:
        active = self.pick(self.running, at)
        if active is None or active.claim.is_suspect:
            return
        if self.all_queue_slots[active.claim.queue].lets_run_ahead(active.claim.priority):
            self.running.remove(active)
            active.stage, active.is_pending = CONTINUES, True
            self.slots.step_aside(active)
            self.away.append(active)

    def answer_commit(self, at: int, *, is_stale: bool) -> None:
        active = self.pick(self.away, at)
        if active is None:
            return
        self.away.remove(active)
        if is_stale or active.revoked:
            self.finish(active)
            return
        self.end(active.claim)
        next_claim = replace(active.claim, fence=active.claim.fence + 1)
        self.made.add((next_claim.id, next_claim.fence))
        active.continue_as(next_claim)
        self.slots.run_next(active, STORED)

    def finish(self, active: ActiveClaim) -> None:
        self.end(active.claim)
        active.leave_slot()
        active.end_pending()
        self.active_claims.drop(active.claim)

    # Losses, pauses, releases

    def lose_a_claim(self, at: int) -> None:
        active = self.pick(self.active_claims.all(), at)
        if active is None:
            return
        if active.stage is not OPEN:
            active.revoked = True
            return
        self.end(active.claim)
        self.active_claims.abandon([active.claim.id], "lost")
        self.withdrawals.drop_lost()
        self.forget(active)

    def lose_the_lease(self) -> None:
        self.withdrawals.released(self.end_all(self.withdrawals.take_back_all()))
        for active in self.active_claims.all():
            self.end(active.claim)
        self.active_claims.abandon(self.active_claims.ids(), "the lease is lost")
        self.running, self.away = [], []
        self.worker_id += 1

    def pause_and_resume(self, paused: set[str]) -> None:
        _, claims = self.withdrawals.note_paused(paused)
        self.leaving += self.end_all(claims)

    def look(self, queue: str) -> None:
        """The claimer serves one queue."""
        queue_slots = self.all_queue_slots[queue]
        self.slots.fill(queue_slots)
        self.leaving += self.end_all(self.withdrawals.take_back_returning(queue_slots))
        keep = queue_slots.most_waiting(PREFETCH)
        self.leaving += self.end_all(self.withdrawals.take_back_waiting(queue_slots, keep))

    def find_that_steps_take_time(self, queue: str) -> None:
        self.all_queue_slots[queue].steps_are_short = False

    def release(self) -> None:
        self.withdrawals.released(self.leaving)
        self.leaving = []

    def end_all(self, claims: list[Claim]) -> list[Claim]:
        for claim in claims:
            self.end(claim)
        return claims

    def end(self, claim: Claim) -> None:
        self.ended[claim.id, claim.fence] += 1

    def forget(self, active: ActiveClaim) -> None:
        self.running = [other for other in self.running if other is not active]

    def is_held(self, claim: Claim) -> bool:
        active = self.active_claims.get(claim.id)
        return active is not None and active.claim is claim

    def pick(self, active_claims: list[ActiveClaim], at: int) -> ActiveClaim | None:
        return active_claims[at % len(active_claims)] if active_claims else None

    # What always holds

    @invariant()
    def no_claim_waits_beside_a_free_slot(self) -> None:
        for queue_slots in self.all_queue_slots:
            is_shut = queue_slots.is_beginning or queue_slots.is_paused or queue_slots.is_closed
            waits = queue_slots.buffer and not is_shut
            assert not (waits and queue_slots.has_slot), f"{queue_slots.queue}: {len(queue_slots.buffer)} wait"
            is_full = queue_slots.running == queue_slots.slots
            assert not queue_slots.returning or is_full, f"{queue_slots.queue}: one that may go on waits"

    @invariant()
    def a_paused_queue_keeps_nothing_ready(self) -> None:
        for queue_slots in self.all_queue_slots:
            assert not queue_slots.is_paused or queue_slots.most_waiting(PREFETCH) == 0

    @invariant()
    def slots_are_as_many_as_there_are(self) -> None:
        for queue_slots in self.all_queue_slots:
            more = MOST_AWAY * queue_slots.slots if queue_slots.queue in self.steps_were_short else 0
            assert 0 <= queue_slots.running <= queue_slots.slots
            assert queue_slots.running + queue_slots.away <= queue_slots.slots + more

    @invariant()
    def slots_are_counted_as_they_are_used(self) -> None:
        for queue_slots in self.all_queue_slots:
            running = [active for active in self.running if active.claim.queue == queue_slots.queue]
            beginning = self.beginnings.get(queue_slots.queue)
            unstarted = [] if beginning is None or beginning.has_turn else beginning.starters
            noted = [claim for each in self.beginnings.values() for claim in each.claims
                     if claim.queue == queue_slots.queue]
            in_line = [claim for claim in self.slots.suspects if claim.queue == queue_slots.queue]
            assert queue_slots.running == len(running) + len(unstarted) + len(noted) + len(in_line)
            assert queue_slots.away == len([active for active in self.away if active.claim.queue == queue_slots.queue])
            assert queue_slots.reserved == sum([kept for other, kept in self.reserved if other is queue_slots])

    @invariant()
    def suspects_run_one_at_a_time_and_none_is_forgotten(self) -> None:
        running = [active for active in self.running if active.claim.is_suspect]
        assert len(running) <= 1
        is_closed = any(queue_slots.is_closed for queue_slots in self.all_queue_slots)
        assert not self.slots.suspects or self.slots._suspect is not None or self.beginnings or is_closed

    @invariant()
    def no_claim_ends_twice(self) -> None:
        assert all(times == 1 for times in self.ended.values())

    def teardown(self) -> None:
        """Drain the worker: then every claim has ended, and every counter is zero."""
        self.all_queue_slots.close()
        while self.beginnings:
            if self.under_way is None:
                self.line_up(0)
            self.note(0, "noted")
            self.launch_some(99, steps_are_short=False)
        self.leaving += self.end_all(self.withdrawals.take_back_all())
        while self.running or self.away:
            active = self.running.pop() if self.running else self.away.pop()
            self.finish(active)
        while self.reserved:
            self.be_born(0, 1)
        self.leaving += self.end_all(self.withdrawals.take_back_all())
        self.release()
        for queue_slots in self.all_queue_slots:
            assert (queue_slots.running, queue_slots.away, queue_slots.reserved) == (0, 0, 0)
            assert (len(queue_slots.buffer), len(queue_slots.returning)) == (0, 0)
        assert self.withdrawals.waiting_ids() == []
        assert len(self.active_claims) == 0
        assert set(self.ended) == self.made, "every claim was run, given back or lost"
