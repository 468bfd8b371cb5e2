"""A worker's reservation of slots for children that are inserted already claimed."""

from __future__ import annotations

import msgspec


class Reservation(msgspec.Struct, frozen=True):
    """A number of slots in one queue of one worker."""

    queue: str
    slots: int
    worker_id: int
