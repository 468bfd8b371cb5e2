"""A run as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.figures import Figure, Spread
from benchmarks.taken import Taken


@dataclass(frozen=True, slots=True)
class Report(Taken):
    """All figures of a run, and where they were taken."""

    figures: Sequence[Figure]

    def table(self) -> str:
        """Markdown: where, and every figure beside its limit and its target."""
        return "\n".join((*self.where(), "", *self._figure_rows(), ""))

    def _figure_rows(self) -> list[str]:
        head = ("workload", "unit", "ours (least–most)", "limit (least–most)", "ratio", "target", "met")
        rows = [f"| {' | '.join(head)} |", "|---|---|--:|--:|--:|--:|---|"]
        return rows + [f"| {' | '.join(_cells(figure))} |" for figure in self.figures]

    def _plain(self) -> dict[str, Any]:
        return {
            "figures": [
                asdict(figure)
                | {"ratio": figure.ratio, "is_met": figure.is_met, "target": str(figure.measure.target or "")}
                for figure in self.figures
            ],
        }


def _cells(figure: Figure) -> tuple[str, ...]:
    return (
        _titled(figure.measure.label, figure.variant),
        figure.measure.unit,
        _spread(figure.ours),
        "" if figure.limit is None else _spread(figure.limit),
        "" if figure.ratio is None else f"{figure.ratio:.2f}",
        "" if figure.measure.target is None else str(figure.measure.target),
        {None: "", True: "yes", False: "**no**"}[figure.is_met],
    )


def _titled(label: str, variant: str) -> str:
    return f"{label}, {variant}" if variant else label


def _spread(spread: Spread) -> str:
    if spread.least == spread.most:
        return number(spread.median)
    return f"{number(spread.median)} ({number(spread.least)}–{number(spread.most)})"


def number(value: float) -> str:
    """A figure for a reader: no more digits than it has."""
    for least, digits in ((1_000, -2), (100, 0), (10, 1)):
        if abs(value) >= least:
            return f"{round(value, digits):,.{max(0, digits)}f}"
    return f"{value:.2f}"
