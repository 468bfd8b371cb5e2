"""Keeps slots for what comes into a worker's hands without a claim: children that are born, and who is woken here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from stepwell._core.records import Claim
from stepwell._core.reservation import Reservation
from stepwell._runtime.lanes import Lane, Lanes
from stepwell._runtime.lease import Lease

Take = Callable[[Lane, Sequence[Claim]], None]


class Reservations:
    """Claims that are made meanwhile do not take these slots too; what does not come leaves them to others."""

    def __init__(
        self,
        *,
        lanes: Lanes,
        lease: Lease,
        take: Take,
        on_room: Callable[[], None],
        is_laden: Callable[[], bool],
    ) -> None:
        self._lanes = lanes
        self._lease = lease
        self._take = take
        self._on_room = on_room
        self._is_laden = is_laden

    def make(self, wanted: Mapping[str, int]) -> Reservation | None:
        """Keep up to so many slots in these queues; None if there are none, or nothing may come without a claim."""
        worker_id = self._lease.current
        if worker_id is None or self._is_laden() or self._lanes.claims_at_once:
            return None
        lanes = [lane for queue in wanted if (lane := self._lanes.find(queue)) is not None]
        slots = {lane.queue: kept for lane in lanes if (kept := lane.reserve(wanted[lane.queue]))}
        return Reservation(worker_id, slots) if slots else None

    def settle(self, reservation: Reservation, came: Sequence[Claim]) -> None:
        """Let those have their slots who came; the others are free again."""
        for queue, kept in reservation.slots.items():
            lane = self._lanes[queue]
            claims = [claim for claim in came if claim.queue == queue]
            lane.unreserve(kept, len(claims))
            if claims and reservation.worker_id == self._lease.current:  # else the reaper returns them
                self._take(lane, claims)
            if lane.ready and len(claims) < kept:
                self._on_room()  # what was told of meanwhile may have found no slot
