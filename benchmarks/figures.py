"""What a workload measures, what it has to reach, and how repetitions become one figure."""

from __future__ import annotations

import statistics
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from benchmarks.bench import Bench

LimitName = Literal["steps", "inserts", "bulk inserts"]


@dataclass(frozen=True, slots=True)
class Share:
    """At least this part of a limit."""

    part: float
    limit: LimitName

    def __str__(self) -> str:
        return f"{self.part:g} × limit"


@dataclass(frozen=True, slots=True)
class Most:
    """At most this much, in the unit of the figure."""

    value: float

    def __str__(self) -> str:
        return f"≤ {self.value:g}"


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of a workload. Without a target it is for information."""

    label: str
    unit: str
    target: Share | Most | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """One workload: `run` returns a value for each of its measures."""

    name: str
    measures: Mapping[str, Measure]
    run: Callable[[Bench], Awaitable[Mapping[str, float]]]
    is_sized: bool = False  # also run with the larger state
    has_processes: bool = False  # also run by the processes of `stepwell worker`
    repeats: int = 3

    @property
    def limits(self) -> list[LimitName]:
        """The limits that its figures are parts of."""
        targets = [measure.target for measure in self.measures.values()]
        return list(dict.fromkeys(target.limit for target in targets if isinstance(target, Share)))


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of repetitions, with the least and the most of them."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Figure:
    """A measure in one variant, beside its limit."""

    workload: str
    variant: str
    measure: Measure
    ours: Spread
    limit: Spread | None  # before, between and after the repetitions

    @property
    def ratio(self) -> float | None:
        return self.ours.median / self.limit.median if self.limit else None

    @property
    def is_met(self) -> bool | None:
        """Whether the target is reached; None if there is none."""
        match self.measure.target:
            case Share(part=part):
                return None if self.ratio is None else self.ratio >= part
            case Most(value=value):
                return self.ours.median <= value
            case None:
                return None


def percentile(values: Sequence[float], percent: int) -> float:
    """The value that `percent` percent of the values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]
