"""Decides which rows with a limit requirement may run now, row by row, most urgent first. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from stepwell._core.status import Hold

LONGEST_WAIT = 3_153_600_000.0  # seconds, a hundred years: a sum with a time stays in the range of Postgres

Urgency = tuple[int, datetime, int]
"""Priority, due time and id: lower first."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A runnable row with a limit requirement; busy if another row holds its concurrency key."""

    id: int
    urgency: Urgency
    concurrency_limit: str | None
    rate_limit: str | None
    weight: int
    is_busy: bool


@dataclass(slots=True)
class Gate:
    """A concurrency limit: its number of slots (None: it is not declared), and the slots of executing rows."""

    n: int | None
    taken: set[int]

    def free_slot(self) -> int | None:
        """The lowest free slot; None while more rows execute than the limit allows, as after it was lowered."""
        if self.n is None or len(self.taken) >= self.n:
            return None
        slot = 1
        while slot in self.taken:
            slot += 1
        return slot


@dataclass(slots=True)
class Bucket:
    """A rate limit: its current tokens and the head of its wait queue. If the burst is None, it is not declared."""

    burst: int | None
    per_second: float
    tokens: float
    head: Urgency | None = None
    head_weight: int = 0
    idle: Urgency | None = None  # the first waiting row of queues that no worker claims from
    idle_weight: int = 0
    is_changed: bool = False

    def see(self, urgency: Urgency, weight: int) -> None:
        """Note a row of the wait queue."""
        if self.head is None or urgency < self.head:
            self.head, self.head_weight = urgency, weight

    def see_idle(self, urgency: Urgency, weight: int) -> None:
        """Note a waiting row that blocks no other: no worker claims from its queue."""
        if self.idle is None or urgency < self.idle:
            self.idle, self.idle_weight = urgency, weight

    def enqueue(self, urgency: Urgency, weight: int) -> None:
        """Put a row into the wait queue."""
        self.see(urgency, weight)
        self.is_changed = True

    @property
    def wait(self) -> float | None:
        """Seconds until there are tokens for the head of the wait queue; None if no row waits, idle ones included."""
        if self.head is None and self.idle is None:
            return None
        weight = self.idle_weight if self.head is None else self.head_weight
        return min(max(0.0, (weight - self.tokens) / self.per_second), LONGEST_WAIT)


@dataclass(slots=True)
class Admission:
    """The decision: which rows run in which slots, which are put on hold and why, and which slots stay free."""

    admitted: list[tuple[int, int | None]] = field(default_factory=list)
    held: list[tuple[int, Hold, str | None]] = field(default_factory=list)
    passed_on: list[str] = field(default_factory=list)  # limits with a free slot that the row did not take


def admit(
    candidates: list[Candidate], gates: dict[str, Gate], buckets: dict[str, Bucket]
) -> Admission:
    """Assign slots and tokens, most urgent first. A row that one limit refuses takes nothing of the other."""
    decided = Admission()
    for row in sorted(candidates, key=lambda candidate: candidate.urgency):
        slot = None
        if row.is_busy:
            _note_free_slot(row, decided)  # unchanged; it is a candidate again
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
            if problem is not None or not _take_tokens(row, bucket):
                decided.held.append((row.id, Hold.RATE, problem))
                _note_free_slot(row, decided)
                continue
        if slot is not None and row.concurrency_limit is not None:
            gates[row.concurrency_limit].taken.add(slot)
        decided.admitted.append((row.id, slot))
    return decided


def _take_tokens(row: Candidate, bucket: Bucket) -> bool:
    """Take the tokens, if there are enough and no more urgent row waits; else join the wait queue."""
    if bucket.tokens < row.weight or (bucket.head is not None and bucket.head < row.urgency):
        bucket.enqueue(row.urgency, row.weight)
        return False
    bucket.tokens -= row.weight
    bucket.is_changed = True
    return True


def _note_free_slot(row: Candidate, decided: Admission) -> None:
    if row.concurrency_limit is not None:
        decided.passed_on.append(row.concurrency_limit)


def _missing(kind: str, key: str, found: int | None) -> str | None:
    return f"no {kind} limit is called {key.partition(':')[0]!r}" if found is None else None


def _too_heavy(row: Candidate, bucket: Bucket) -> str | None:
    if bucket.burst is None or row.weight <= bucket.burst:
        return None
    return f"its weight {row.weight} is above the burst {bucket.burst} of rate limit {row.rate_limit!r}"
