"""What is in a worker's hands: its claims, from the claim's answer to the commit's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping

from stepwell._core.records import Claim


class Hand:
    """One claim, the task that runs it, and how far it is."""

    __slots__ = (
        "abandoned", "claim", "farewell", "free_slot", "goes_on", "is_pending", "revoked", "shares_task", "steps_ahead",
        "submitted", "task", "was_cancelled",
    )  # fmt: skip

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.task: asyncio.Task[None] | None = None  # that runs its step; it may go on to those of others
        self.free_slot: Callable[[Claim], None] | None = None  # of its queue, while it has one
        self.steps_ahead = 0  # steps that ran on this claim after the first one
        self.submitted = False  # its outcome is with the flusher
        self.goes_on = False  # and with it the row stays ours, under the next fence
        self.revoked = False  # an operator took the row away while its outcome was under way
        self.is_pending = False  # no task runs it: its turn, or the answer to its commit, is to come
        self.farewell: asyncio.Future[None] | None = None  # who drains waits for that
        self.shares_task = False  # others ran in its task before it
        self.was_cancelled = False  # its step has cancelled its own task, or somebody did
        self.abandoned = False  # the claim is lost or left; whatever its step does now is dropped

    def begin(self, task: asyncio.Task[None], *, shares: bool = False) -> None:
        """It is its step's turn, in this task."""
        claim = self.claim
        task.set_name(f"{claim.machine} #{claim.id}")
        self.task, self.shares_task = task, shares
        self.part()

    def go_on(self, claim: Claim) -> None:
        """Hold the same row under its next claim."""
        self.claim = claim
        self.steps_ahead += 1
        self.submitted = self.goes_on = False

    def leave_slot(self) -> None:
        """Its step has returned, or never will: let another have its slot."""
        free, self.free_slot = self.free_slot, None
        if free is not None:
            free(self.claim)

    @property
    def under_way(self) -> asyncio.Future[None] | None:
        """What to wait for until it is further: its task, or what is to come to it; None if it is over."""
        if self.task is not None and not self.task.done():
            return self.task
        if self.is_pending and self.farewell is None:
            self.farewell = asyncio.get_running_loop().create_future()
        return self.farewell

    def part(self) -> None:
        """What it waited for has come, or nobody cares for it any more: tell who waits for that."""
        self.is_pending = False
        if self.farewell is not None:
            self.farewell.set_result(None)
            self.farewell = None

    def holds(self, fence: int) -> bool:
        """Whether this fence is ours; while an outcome that goes on is under way, it may be the next one already."""
        return self.claim.fence == fence or (self.goes_on and self.claim.fence + 1 == fence)

    def abandon(self, why: str) -> None:
        """Give the claim up: cancel its step and tell it why."""
        self.abandoned = True
        self.part()
        if self.task is not None:
            self.task.cancel(why)
        else:
            self.leave_slot()


class Hands:
    """Claims by instance id. Only the main loop takes and drops them; the heartbeat's thread reads, and gives back what
    never arrived: of a claim's late answer and its return, the first one wins."""

    def __init__(self) -> None:
        self._hands: dict[int, Hand] = {}
        self._given_back: dict[int, int] = {}  # instance to fence
        self._arriving = threading.Lock()

    def __len__(self) -> int:
        return len(self._hands)

    def add(self, claims: Iterable[Claim]) -> list[Claim]:
        """Take claims; returns those that were not given back before their answer came. An older claim of the same
        instance whose step still runs is lost, or there would be no newer one: stop it."""
        hands, given_back, taken = self._hands, self._given_back, []
        with self._arriving:
            for claim in claims:
                if given_back and given_back.pop(claim.id, None) == claim.fence:
                    continue
                older = hands.get(claim.id)
                if older is not None and not older.submitted:
                    older.abandon("the claim of this step is lost")
                hands[claim.id] = Hand(claim)
                taken.append(claim)
        return taken

    def give_back(self, claims: Mapping[int, int]) -> list[int]:
        """Those of the given claims (instance to fence) that never arrived; from now on they can not."""
        with self._arriving:
            missing = {i: fence for i, fence in claims.items() if not self._holds(i, fence)}
            self._given_back |= missing
            return sorted(missing)

    def _holds(self, instance_id: int, fence: int) -> bool:
        hand = self._hands.get(instance_id)
        return hand is not None and hand.holds(fence)

    def drop(self, claim: Claim) -> None:
        """Let go of a claim; a newer claim of the same instance stays."""
        hand = self._hands.get(claim.id)
        if hand is not None and hand.holds(claim.fence):
            del self._hands[claim.id]

    def get(self, instance_id: int) -> Hand | None:
        return self._hands.get(instance_id)

    def ids(self) -> frozenset[int]:
        return frozenset(self._hands.copy())

    def all(self) -> list[Hand]:
        return list(self._hands.values())

    def under_way(self) -> list[asyncio.Future[None]]:
        """What to wait for until all of them are over."""
        return [waits for hand in self.all() if (waits := hand.under_way) is not None]

    def abandon(self, instance_ids: Iterable[int], why: str) -> int:
        """Give up the given claims; returns how many there were."""
        found = [hand for i in instance_ids if (hand := self._hands.get(i)) is not None]
        for hand in found:
            del self._hands[hand.claim.id]
            hand.abandon(why)
        return len(found)
