"""Slots for children that are about to be inserted: they are born in the hands of the worker whose steps spawn them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from stepwell._core.commits import Commit
from stepwell._core.entries import NewInstance
from stepwell._core.records import Claim
from stepwell._core.reservation import Reservation
from stepwell._runtime.reservations import Reservations


class Nursery:
    """A child that its worker has a slot for, and that nothing waits before, need not be inserted, found and claimed.

    What is more than that, or needs more than a worker, is claimed by whoever comes first, as ever.
    """

    def __init__(self, reservations: Reservations, labels: Collection[str]) -> None:
        self._reservations = reservations
        self._labels = frozenset(labels)

    def reserve(self, commits: Sequence[Commit]) -> Reservation | None:
        """Keep slots for the children of these, if they are alike: that is for the statement to see."""
        children = [child for commit in commits for child in commit.children or ()]
        if not children or not self._is_fit(children[0]) or any(commit.spawns_keys for commit in commits):
            return None
        return self._reservations.make(children[0].queue, len(children))

    def _is_fit(self, child: NewInstance) -> bool:
        """Whether it needs nothing but a worker like this one, now."""
        return (
            child.delay is None and child.at is None and child.concurrency_key is None and child.needs is None
            and f"{child.machine}@{child.version}" in self._labels
        )  # fmt: skip

    def settle(self, reserved: Reservation, born: Sequence[Claim]) -> None:
        """Let those have their slots who were born claimed; the others are free again."""
        self._reservations.settle(reserved, born)
