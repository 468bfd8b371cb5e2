"""Which fault happens when, and for how long: determined by the seed alone."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.chaos.faults import (
    ClockBack,
    ClockForward,
    Drain,
    Failover,
    Fault,
    Fill,
    Freeze,
    Kill,
    Lose,
    ReadOnly,
    RestartFast,
    RestartImmediate,
    Stop,
    Terminate,
)  # fmt: skip
from tests.chaos.network_faults import Dark, DarkWorker, Delay, HalfClose, Truncate, Unreachable

FAULTS: dict[str, type[Fault]] = {
    fault.name: fault
    for fault in (
        Kill, Lose, Drain, Stop, Terminate, RestartFast, RestartImmediate, Freeze, ReadOnly, Fill, Failover,
        ClockForward, ClockBack, Dark, DarkWorker, Unreachable, Delay, Truncate, HalfClose,
    )
}  # fmt: skip
GAP = 1.0, 3.0
BESIDE = 0.25  # how often a second, cheap fault happens during one that lasts


@dataclass(frozen=True)
class Strike:
    """One fault: after which gap, for how long, and which other fault happens during it."""

    number: int
    gap: float
    fault: str
    seconds: float
    beside: str | None

    def __str__(self) -> str:
        beside = "" if self.beside is None else f" beside {self.beside}"
        return f"{self.number}. {self.fault} for {self.seconds:.1f} s after {self.gap:.1f} s{beside}"


def strikes(seed: int, chosen: Sequence[str]) -> Iterator[Strike]:
    """Round after round, each of which has every chosen fault once, in an order of its own."""
    dice = random.Random(f"{seed} schedule")  # noqa: S311 - not a secret
    cheap = [name for name in chosen if FAULTS[name].cheap]
    number = 0
    while True:
        for name in dice.sample(chosen, len(chosen)):
            number += 1
            seconds = dice.uniform(*FAULTS[name].seconds)
            strikes_twice = dice.random() < BESIDE and seconds > 1 and bool(cheap)
            beside = dice.choice(cheap) if strikes_twice else None
            yield Strike(number, dice.uniform(*GAP), name, seconds, beside)
