"""Calls between services of one worker against the direction of the graph that `build.py` builds."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence

from stepwell._core.instance import Claim
from stepwell._worker.active_claims import ActiveClaim, Read
from stepwell._worker.queue_slots import QueueSlots


class Wakeups:
    """The callbacks between the services of a worker. `build.py` connects all of them before any service starts."""

    __slots__ = (
        "children_claimed", "claims_doubted", "due_in", "interactions_waiting", "lease_lost", "limit_slots_freed",
        "orphans_returned", "queues_paused", "step_ready", "versions_changed", "work_available",
    )  # fmt: skip

    def connect(
        self,
        *,
        work_available: Callable[[], None],
        due_in: Callable[[float], None],
        step_ready: Callable[[ActiveClaim, Read], None],
        children_claimed: Callable[[QueueSlots, Sequence[Claim]], None],
        limit_slots_freed: Callable[[Sequence[str]], None],
        interactions_waiting: Callable[[str], None],
        queues_paused: Callable[[Collection[str]], Awaitable[None]],
        versions_changed: Callable[[], None],
        lease_lost: Callable[[int], None],
        claims_doubted: Callable[[frozenset[Claim]], None],
        orphans_returned: Callable[[list[str], int], None],
    ) -> None:
        self.work_available = work_available  # the claimer checks for claimable rows and free slots
        self.due_in = due_in  # the timers tick within this many seconds
        self.step_ready = step_ready  # the executor runs a step that has a slot and is marked started
        self.children_claimed = children_claimed  # children were inserted already claimed by this worker
        self.limit_slots_freed = limit_slots_freed  # the committer admits rows that wait for these limits
        self.interactions_waiting = interactions_waiting  # the dispatcher of this transport sends them
        self.queues_paused = queues_paused  # exactly these queues are paused
        self.versions_changed = versions_changed  # workers may have started or ended, so other versions may be live
        self.lease_lost = lease_lost  # the lease under this worker id has ended
        self.claims_doubted = claims_doubted  # the heartbeat did not find these claims in the database
        self.orphans_returned = orphans_returned  # the heartbeat released orphaned claims of these queues
