"""What is in a worker's hands: its claims, from the claim's answer to the commit's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from stepwell._core.records import Claim


class Hand:
    """One claim, the task that runs it, and how far it is."""

    __slots__ = ("abandoned", "claim", "submitted", "task")

    def __init__(self, claim: Claim) -> None:
        self.claim = claim
        self.task: asyncio.Task[None] | None = None
        self.submitted = False  # its outcome is with the flusher
        self.abandoned = False  # the claim is lost or left; whatever its step does now is dropped

    def abandon(self, why: str) -> None:
        """Give the claim up: cancel its step and tell it why."""
        self.abandoned = True
        if self.task is not None:
            self.task.cancel(why)


class Hands:
    """Claims by instance id. The heartbeat's thread reads it; only the main loop writes."""

    def __init__(self) -> None:
        self._hands: dict[int, Hand] = {}

    def __len__(self) -> int:
        return len(self._hands)

    def add(self, claim: Claim) -> Hand:
        hand = self._hands[claim.id] = Hand(claim)
        return hand

    def drop(self, claim: Claim) -> None:
        """Let go of a claim; a newer claim of the same instance stays."""
        hand = self._hands.get(claim.id)
        if hand is not None and hand.claim.fence == claim.fence:
            del self._hands[claim.id]

    def get(self, instance_id: int) -> Hand | None:
        return self._hands.get(instance_id)

    def ids(self) -> frozenset[int]:
        return frozenset(self._hands.copy())

    def all(self) -> list[Hand]:
        return list(self._hands.values())

    def abandon(self, instance_ids: Iterable[int], why: str) -> int:
        """Give up the given claims; returns how many there were."""
        found = [hand for i in instance_ids if (hand := self._hands.get(i)) is not None]
        for hand in found:
            del self._hands[hand.claim.id]
            hand.abandon(why)
        return len(found)
