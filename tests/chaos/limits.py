"""How long a recovery may take at most: what the settings of the workers give, and the work that is to be done."""

from __future__ import annotations

from dataclasses import dataclass

from stepwell._process.outages import LONGEST_PAUSE
from stepwell.config import Settings
from tests.chaos.workers import BEAT, DRAIN, LEASE, REAP

SILENCE = min(LEASE / 2, 10.0)  # after which a dark connection is ended
LOCKS = min(LEASE, 10.0)  # after which the server ends what a dead host has left open
BURIAL = LEASE + REAP + BEAT  # a dead worker's rows are returned by a reaper that has beaten for a whole lease


@dataclass(frozen=True)
class Limit:
    """Seconds: those that the settings determine, and those of work, which takes longer on a busy machine."""

    settings: float
    work: float

    def __add__(self, other: Limit) -> Limit:
        return Limit(self.settings + other.settings, self.work + other.work)

    def on(self, slowness: float) -> float:
        """The limits for a machine that is this many times slower."""
        return self.settings + self.work * slowness


WORK = Limit(0.0, 3.0)  # the longest step is 1 s and runs again; other rows of its key run before it
START = Limit(0.0, 4.0)  # until a new process has its modules and its connections
REPLACED = START + WORK
DRAINED = Limit(DRAIN, 0.0) + START + WORK
CONNECTED = Limit(LONGEST_PAUSE + BEAT, 0.0) + WORK  # a failed call is retried; a heartbeat returns lost claims
RESTARTED = Limit(LONGEST_PAUSE + BEAT, 0.0) + START + WORK
BURIED = Limit(BURIAL, 0.0) + WORK
BURIED_LATE = Limit(LEASE + BURIAL, 0.0) + WORK  # where the clock jumps: two leases and reap
LIT = Limit(SILENCE + LOCKS, 0.0) + WORK  # a transaction on a dark connection has ended on both sides
LEFT = Limit(DRAIN + 2.0, 1.0)  # a process after SIGTERM

CALL = Settings().call_timeout.total_seconds()


def answered(timeout: float) -> Limit:
    """Until a call has returned or raised."""
    return Limit(timeout, 2.0)
