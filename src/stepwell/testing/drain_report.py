"""What a drain did, in numbers and as a table."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from stepwell._core.instance import Claim, Instance
from stepwell._core.status import Status

LAST = 5


@dataclass(frozen=True, slots=True)
class Ran:
    """One step that was run and committed, and its outcome."""

    id: int
    machine: str
    step: str
    attempt: int
    outcome: str  # next, retry, await, spawn, ask, done, stop, cancelled, held
    to: str | None  # the step at which it continues

    @classmethod
    def of(cls, claim: Claim, row: Instance) -> Ran:
        """From the claim, and the row as its commit left it."""
        return cls(claim.id, claim.machine, claim.step, claim.attempt, *_outcome(claim, row))

    @property
    def label(self) -> str:
        return f"{self.machine}.{self.step}"

    def __str__(self) -> str:
        return f"{self.label} → {self.outcome}" + (f" {self.to}" if self.to is not None else "")


@dataclass(slots=True)
class Tally:
    """Counts of one drain: `steps` and `ended` by name, `outcomes` by kind, `crashes` those that were injected."""

    steps: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    ended: Counter[Status] = field(default_factory=Counter)
    crashes: int = 0
    last: deque[Ran] = field(default_factory=lambda: deque(maxlen=LAST))

    @property
    def total(self) -> int:
        """The number of all steps."""
        return self.steps.total()

    @property
    def retries(self) -> int:
        return self.outcomes["retry"]

    def note(self, ran: Ran, row: Instance) -> None:
        self.steps[ran.label] += 1
        self.outcomes[ran.outcome] += 1
        if row.status.is_terminal:
            self.ended[row.status] += 1
        self.last.append(ran)

    def __str__(self) -> str:
        if not self.total and not self.crashes:
            return "nothing ran"
        steps = "1 step" if self.total == 1 else f"{self.total} steps"
        lines = [f"{steps}: {_listed(self.outcomes.items())}"]
        width = max((len(label) for label in self.steps), default=0)
        lines += [f"  {label:<{width}}  {count}" for label, count in sorted(self.steps.items())]
        if self.ended:
            lines.append(f"ended: {_listed(self.ended.items())}")
        if self.crashes:
            lines.append(f"crashes: {self.crashes}")
        return "\n".join(lines)


def _listed(counts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts))


_ENDS = {Status.DONE: "done", Status.FAILED: "stop", Status.CANCELLED: "cancelled"}
_PARKS = {Status.AWAITING_SIGNAL: "await", Status.AWAITING_CHILDREN: "spawn", Status.AWAITING_EXTERNAL: "ask"}


def _outcome(claim: Claim, row: Instance) -> tuple[str, str | None]:
    if row.status in _ENDS:
        return _ENDS[row.status], None
    if row.status in _PARKS:
        return _PARKS[row.status], row.step
    if row.hold_reason is not None:
        return "held", row.step
    return "retry" if row.attempt > claim.attempt else "next", row.step
