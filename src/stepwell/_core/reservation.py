"""Slots of a worker that are kept for what comes into its hands without a claim."""

from __future__ import annotations

import msgspec


class Reservation(msgspec.Struct, frozen=True):
    """So many slots in one queue of one worker."""

    queue: str
    slots: int
    worker_id: int
