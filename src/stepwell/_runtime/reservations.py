"""Keeps slots for what comes into a worker's hands without a claim: children that are born, and who is woken here."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
        on_left: Callable[[], None],
        is_laden: Callable[[], bool],
    ) -> None:
        self._lanes = lanes
        self._lease = lease
        self._take = take
        self._on_room = on_room
        self._on_left = on_left
        self._is_laden = is_laden

    def make(self, queue: str, number: int, *, whole: bool = False) -> Reservation | None:
        """Keep up to so many slots of a queue, or with `whole` all of them; None if there are none to keep, or nothing
        may come without a claim."""
        lane, worker_id = self._lanes.find(queue), self._lease.current
        if lane is None or worker_id is None or self._is_laden() or self._lanes.claims_at_once:
            return None
        slots = lane.reserve(number, whole=whole)
        return Reservation(queue, slots, worker_id) if slots else None

    def settle(self, reservation: Reservation, came: Sequence[Claim]) -> None:
        """Let those have their slots who came; the others are free again."""
        lane = self._lanes[reservation.queue]
        lane.unreserve(reservation.slots, len(came))
        if came and reservation.worker_id == self._lease.current:
            self._take(lane, came)
        elif came:
            self._on_left()  # the lease is gone, and with it they are the reaper's
        if lane.ready and len(came) < reservation.slots:
            self._on_room()  # what was told of meanwhile may have found no slot
