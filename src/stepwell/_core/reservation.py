"""Slots of a worker that are kept for what comes into its hands without a claim."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec


class Reservation(msgspec.Struct, frozen=True):
    """How many slots are kept in which queues of whom."""

    worker_id: int
    slots: Mapping[str, int]

    def of(self, queue: str) -> int:
        """Slots in this queue."""
        return self.slots.get(queue, 0)
