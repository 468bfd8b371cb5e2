"""Who of those that need limits may run now: pure, decided row by row in the order of urgency."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from stepwell._core.status import Hold

LONGEST_WAIT = 3_153_600_000.0  # seconds, a hundred years: what a time in Postgres can be added to

Urgency = tuple[int, datetime, int]
"""Priority, due time and id: lower first."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A runnable row that needs limits; busy if its concurrency key is."""

    id: int
    urgency: Urgency
    concurrency_limit: str | None
    rate_limit: str | None
    weight: int
    is_busy: bool


@dataclass(slots=True)
class Gate:
    """A concurrency limit: how many slots it has (None: nobody declares it), and those that executing rows hold."""

    n: int | None
    taken: set[int]

    def free_slot(self) -> int | None:
        """The lowest free slot; none while more execute than the limit says, as after it was lowered."""
        if self.n is None or len(self.taken) >= self.n:
            return None
        slot = 1
        while slot in self.taken:
            slot += 1
        return slot


@dataclass(slots=True)
class Bucket:
    """A rate limit: its tokens by now, and who stands first in its line. Nobody declares it if the burst is None."""

    burst: int | None
    per_second: float
    tokens: float
    head: Urgency | None = None
    head_weight: int = 0
    idle: Urgency | None = None  # the first of those whose queues nobody claims from
    idle_weight: int = 0
    is_changed: bool = False

    def see(self, urgency: Urgency, weight: int) -> None:
        """Know of one in the line."""
        if self.head is None or urgency < self.head:
            self.head, self.head_weight = urgency, weight

    def see_idle(self, urgency: Urgency, weight: int) -> None:
        """Know of one in the line who stands in nobody's way: nobody claims from his queue."""
        if self.idle is None or urgency < self.idle:
            self.idle, self.idle_weight = urgency, weight

    def line_up(self, urgency: Urgency, weight: int) -> None:
        """Let one stand in the line."""
        self.see(urgency, weight)
        self.is_changed = True

    @property
    def wait(self) -> float | None:
        """Seconds until there are tokens for the head of the line; None if nobody waits, not even an idle one."""
        if self.head is None and self.idle is None:
            return None
        weight = self.idle_weight if self.head is None else self.head_weight
        return min(max(0.0, (weight - self.tokens) / self.per_second), LONGEST_WAIT)


@dataclass(slots=True)
class Admission:
    """What was decided: who runs and in which slot, who is put aside and why, and who leaves a slot to the next one."""

    admitted: list[tuple[int, int | None]] = field(default_factory=list)
    held: list[tuple[int, Hold, str | None]] = field(default_factory=list)
    passed_on: list[str] = field(default_factory=list)  # limits whose slot somebody could have had and did not take


def admit(
    candidates: list[Candidate], gates: dict[str, Gate], buckets: dict[str, Bucket]
) -> Admission:
    """Give out slots and tokens, most urgent first. Who is denied one limit takes nothing of the other."""
    decided = Admission()
    for row in sorted(candidates, key=lambda candidate: candidate.urgency):
        slot = None
        if row.is_busy:
            _pass_on(row, decided)  # it is left as it is, and looked at again
            continue
        if row.concurrency_limit is not None:
            gate = gates[row.concurrency_limit]
            slot = gate.free_slot()
            if slot is None:
                decided.held.append((row.id, Hold.LIMIT, _missing("concurrency", row.concurrency_limit, gate.n)))
                continue
        if row.rate_limit is not None:
            bucket = buckets[row.rate_limit]
            problem = _missing("rate", row.rate_limit, bucket.burst) or _too_heavy(row, bucket)
            if problem is not None or not _takes(row, bucket):
                decided.held.append((row.id, Hold.RATE, problem))
                _pass_on(row, decided)
                continue
        if slot is not None and row.concurrency_limit is not None:
            gates[row.concurrency_limit].taken.add(slot)
        decided.admitted.append((row.id, slot))
    return decided


def _takes(row: Candidate, bucket: Bucket) -> bool:
    """Take the tokens, if there are enough and nobody more urgent waits for his; else stand in the line."""
    if bucket.tokens < row.weight or (bucket.head is not None and bucket.head < row.urgency):
        bucket.line_up(row.urgency, row.weight)
        return False
    bucket.tokens -= row.weight
    bucket.is_changed = True
    return True


def _pass_on(row: Candidate, decided: Admission) -> None:
    if row.concurrency_limit is not None:
        decided.passed_on.append(row.concurrency_limit)


def _missing(kind: str, key: str, found: int | None) -> str | None:
    return f"no {kind} limit is called {key.partition(':')[0]!r}" if found is None else None


def _too_heavy(row: Candidate, bucket: Bucket) -> str | None:
    if bucket.burst is None or row.weight <= bucket.burst:
        return None
    return f"its weight {row.weight} is above the burst {bucket.burst} of rate limit {row.rate_limit!r}"
