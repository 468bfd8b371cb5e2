"""What a worker has done, in numbers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Tally:
    """Counted since the worker started."""

    claimed: int = 0
    steps: int = 0
    committed: int = 0
    stale: int = 0  # outcomes dropped because the claim was no longer ours
    refused: int = 0  # outcomes that Postgres refused
    reaped: int = 0  # rows taken from dead workers
    strays: int = 0  # claims whose answer was lost, returned by the heartbeat
    leases_lost: int = 0
    sent_again: int = 0  # questions whose sender was gone
    reconciled: int = 0  # questions that were not as they should be
