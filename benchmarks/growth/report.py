"""The costs as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.growth import bulk, leavings
from benchmarks.growth.bulk import Bulk
from benchmarks.growth.leavings import Leaving
from benchmarks.growth.meter import Cost
from benchmarks.growth.site import Round
from benchmarks.report import number
from benchmarks.taken import Taken

HEAD = (
    "around the 100 rows", "claim, CPU ms", "× empty", "commit, CPU ms", "all, CPU ms", "× empty", "buffers", "× empty",
    "wall ms", "× empty", "at most", "met",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Figure:
    """One scenario: the median round beside that of its empty case."""

    name: str
    label: str
    alone: Round
    around: Round
    most: float | None

    @property
    def claim(self) -> float:
        """How many times as much of a core, for the claim alone."""
        return self.around.claim.cpu / self.alone.claim.cpu

    @property
    def cpu(self) -> float:
        """How many times as much of a core."""
        return self.around.all.cpu / self.alone.all.cpu

    @property
    def buffers(self) -> float:
        return self.around.all.buffers / self.alone.all.buffers

    @property
    def wall(self) -> float:
        return self.around.all.wall / self.alone.all.wall

    @property
    def is_met(self) -> bool | None:
        """Whether neither the core nor the buffers are above the bound; None if there is none."""
        return None if self.most is None else max(self.cpu, self.buffers) <= self.most


def median(rounds: Sequence[Round]) -> Round:
    """The median of each part."""
    return Round(
        Cost.median([found.claim for found in rounds]), Cost.median([found.begin for found in rounds]),
        Cost.median([found.commit for found in rounds]),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Report(Taken):
    """All figures of a run, and where they were taken."""

    kind = "growth-"

    figures: Sequence[Figure]
    leavings: Sequence[Leaving] = ()
    bulks: Sequence[Bulk] = ()

    def table(self) -> str:
        rows = [f"| {' | '.join(HEAD)} |", "|---|" + "--:|" * (len(HEAD) - 2) + "---|"]
        rows += [f"| {' | '.join(cells(figure))} |" for figure in self.figures]
        for head, others in ((leavings.HEAD, self.leavings), (bulk.HEAD, self.bulks)):
            if others:
                rows += ["", f"| {' | '.join(head)} |", "|---|" + "--:|" * (len(head) - 1)]
                rows += [f"| {' | '.join(other.cells())} |" for other in others]
        return "\n".join((*self.where(), "", *rows, ""))

    def _plain(self) -> dict[str, Any]:
        ratios = [
            asdict(figure) | {"ratios": {"claim": figure.claim, "cpu": figure.cpu, "buffers": figure.buffers,
                                         "wall": figure.wall},
                              "is_met": figure.is_met}
            for figure in self.figures
        ]  # fmt: skip
        return {
            "figures": ratios,
            "leavings": [asdict(found) for found in self.leavings], "bulks": [asdict(found) for found in self.bulks],
        }  # fmt: skip


def cells(figure: Figure) -> tuple[str, ...]:
    """The row of one figure."""
    found = figure.around
    return (
        figure.label,
        number(found.claim.cpu), f"{figure.claim:.2f}", number(found.commit.cpu), number(found.all.cpu),
        f"{figure.cpu:.2f}",
        f"{found.all.buffers:,.0f}", f"{figure.buffers:.2f}", number(found.all.wall), f"{figure.wall:.2f}",
        "" if figure.most is None else f"{figure.most:g} ×",
        {None: "", True: "yes", False: "**no**"}[figure.is_met],
    )  # fmt: skip
