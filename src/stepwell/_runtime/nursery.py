"""Slots for children that are about to be inserted: they are born in the hands of the worker whose steps spawn them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from stepwell._core.commits import Commit
from stepwell._core.records import Claim
from stepwell._runtime.lanes import Lane, Lanes
from stepwell._runtime.lease import Lease
from stepwell._store.spawns import Reserved

Take = Callable[[Lane, Sequence[Claim]], None]


class Nursery:
    """A child that its worker has a slot for, and that nothing waits before, need not be inserted, found and claimed.

    What is more than that, or needs more than a worker, is claimed by whoever comes first, as ever.
    """

    def __init__(self, lanes: Lanes, lease: Lease, labels: Collection[str], take: Take) -> None:
        self._lanes = lanes
        self._lease = lease
        self._labels = frozenset(labels)
        self._take = take

    def reserve(self, commits: Sequence[Commit]) -> Reserved | None:
        """Keep slots for the children of these, if they are alike: that is for the statement to see."""
        children = [child for commit in commits for child in commit.children or ()]
        worker_id = self._lease.current
        if worker_id is None or not children or children[0].key is not None:
            return None
        queue, label = children[0].queue, f"{children[0].machine}@{children[0].version}"
        lane = self._lanes.find(queue)
        slots = lane.reserve(len(children)) if lane is not None and label in self._labels else 0
        return Reserved(queue, slots, worker_id) if slots else None

    def settle(self, reserved: Reserved, born: Sequence[Claim]) -> None:
        """Let those have their slots who were born claimed; the others are free again."""
        lane = self._lanes[reserved.queue]
        lane.reserved -= reserved.slots
        if born and reserved.worker_id == self._lease.current:  # else the reaper returns them
            self._take(lane, born)
