"""Counters of a worker."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Stats:
    """Counted since the worker started."""

    claimed: int = 0
    steps: int = 0
    committed: int = 0
    stale: int = 0  # outcomes dropped because the worker no longer held the claim
    refused: int = 0  # outcomes that Postgres refused
    reaped: int = 0  # rows taken from dead workers
    orphans: int = 0  # orphaned claims, released by the heartbeat
    leases_lost: int = 0
    sent_again: int = 0  # interactions of dead dispatchers
    reconciled: int = 0  # inconsistent interactions, units and joins
