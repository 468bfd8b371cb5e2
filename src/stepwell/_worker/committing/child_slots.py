"""Reserves slots for children, which are then inserted already claimed by this worker."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from stepwell._core.commit import Commit
from stepwell._core.instance import Claim
from stepwell._core.reservation import Reservation
from stepwell._core.start_request import NewInstance
from stepwell._lease.lease import Lease
from stepwell._notify.notifier import Notifier
from stepwell._store.connection import notifications
from stepwell._worker.commit_queue import MOST_UNCOMMITTED, CommitQueue
from stepwell._worker.queue_slots import AllQueueSlots
from stepwell._worker.wakeups import Wakeups


class ChildSlots:
    """If this worker has a free slot for a child, and no row waits before it, its row needs no claim statement.

    Claims do not use the reserved slots. Any worker claims the children beyond them, or with further requirements.
    """

    def __init__(
        self,
        *,
        all_queue_slots: AllQueueSlots,
        lease: Lease,
        labels: Collection[str],
        commit_queue: CommitQueue,
        notifier: Notifier,
        wakeups: Wakeups,
    ) -> None:
        self._all_queue_slots = all_queue_slots
        self._lease = lease
        self._labels = frozenset(labels)
        self._commit_queue = commit_queue
        self._notifier = notifier
        self._wakeups = wakeups

    def reserve(self, commits: Sequence[Commit]) -> Reservation | None:
        """Reserve slots for the children of these commits; the statement checks whether they are uniform.

        None if no slots are free, or if children must not be inserted already claimed now.
        """
        children = [child for commit in commits for child in commit.park.children or ()]
        if not children or not self._is_fit(children[0]) or any(commit.commits_alone for commit in commits):
            return None
        queue, worker_id = children[0].queue, self._lease.current
        queue_slots = self._all_queue_slots.find(queue)
        if queue_slots is None or worker_id is None or self._all_queue_slots.claims_started:
            return None
        if self._commit_queue.waiting >= MOST_UNCOMMITTED:
            return None
        slots = queue_slots.reserve(len(children))
        return Reservation(queue, slots, worker_id) if slots else None

    def _is_fit(self, child: NewInstance) -> bool:
        """Whether the child requires only a worker of its version, and is due now."""
        return (
            child.due is None and child.concurrency_key is None and child.needs is None
            and f"{child.machine}@{child.version}" in self._labels
        )  # fmt: skip

    def settle(self, reserved: Reservation, inserted_claimed: Sequence[Claim]) -> None:
        """Pass reserved slots to the children that were inserted claimed, and free the others."""
        queue_slots = self._all_queue_slots[reserved.queue]
        queue_slots.unreserve(reserved.slots, len(inserted_claimed))
        if inserted_claimed and reserved.worker_id == self._lease.current:
            self._wakeups.children_claimed(queue_slots, inserted_claimed)
        elif inserted_claimed:
            self._notifier.publish(notifications.IDLE)  # the lease has ended: the reaper returns them
        if queue_slots.backlog.ready and len(inserted_claimed) < reserved.slots:
            self._wakeups.work_available()  # a notification may have arrived while these slots were reserved
