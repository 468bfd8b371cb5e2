"""Slots for children that are about to be inserted: they are born in the hands of the worker whose steps spawn them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from stepwell._core.commits import Commit
from stepwell._core.entries import NewInstance
from stepwell._core.records import Claim
from stepwell._runtime.lanes import Lane, Lanes
from stepwell._runtime.lease import Lease
from stepwell._store.spawns import Reserved

Take = Callable[[Lane, Sequence[Claim]], None]


class Nursery:
    """A child that its worker has a slot for, and that nothing waits before, need not be inserted, found and claimed.

    What is more than that, or needs more than a worker, is claimed by whoever comes first, as ever.
    """

    def __init__(
        self,
        *,
        lanes: Lanes,
        lease: Lease,
        labels: Collection[str],
        take: Take,
        on_room: Callable[[], None],
        is_laden: Callable[[], bool],
    ) -> None:
        self._lanes = lanes
        self._lease = lease
        self._labels = frozenset(labels)
        self._take = take
        self._on_room = on_room
        self._is_laden = is_laden

    def reserve(self, commits: Sequence[Commit]) -> Reserved | None:
        """Keep slots for the children of these, if they are alike: that is for the statement to see."""
        children = [child for commit in commits for child in commit.children or ()]
        worker_id = self._lease.current
        if not children or worker_id is None or self._is_laden() or self._lanes.claims_at_once:
            return None
        lane = self._lanes.find(children[0].queue)
        if lane is None or not self._is_fit(children[0]) or any(commit.spawns_keys for commit in commits):
            return None
        slots = lane.reserve(len(children))
        return Reserved(lane.queue, slots, worker_id) if slots else None

    def _is_fit(self, child: NewInstance) -> bool:
        """Whether it needs nothing but a worker like this one, now."""
        return (
            child.delay is None and child.at is None and child.concurrency_key is None and child.needs is None
            and f"{child.machine}@{child.version}" in self._labels
        )  # fmt: skip

    def settle(self, reserved: Reserved, born: Sequence[Claim]) -> None:
        """Let those have their slots who were born claimed; the others are free again."""
        lane = self._lanes[reserved.queue]
        lane.unreserve(reserved.slots, len(born))
        if born and reserved.worker_id == self._lease.current:  # else the reaper returns them
            self._take(lane, born)
        if lane.ready and len(born) < reserved.slots:
            self._on_room()  # what was told of meanwhile may have found no slot
