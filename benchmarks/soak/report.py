"""A soak as tables and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.report import number
from benchmarks.soak.samples import MOST, Change, Part, Sample, changes, parts
from benchmarks.taken import Taken

MEGABYTE = 1_000_000
SMALL = 1 * MEGABYTE  # below this, a size is a matter of pages
TABLES = ("instances", "instance_data", "signals", "workers")
HEAD = (
    "steps", "steps/s", "Python µs/step", "server µs/step", "WAL B/step", "HOT", "dead", "vacuums", "oldest ended, s",
    "tables, MB", "indexes, MB",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Report(Taken):
    """All samples of a soak, where they were taken, and the sizes of indexes after a rebuild."""

    kind = "soak-"

    workload: str
    samples: Sequence[Sample]
    rebuilt: Mapping[str, int]  # bytes

    def table(self) -> str:
        found = parts(self.samples)
        lines = [
            *self.where(self.workload), "",
            f"| {' | '.join(HEAD)} |", "|" + "--:|" * len(HEAD), *(f"| {' | '.join(cells(part))} |" for part in found),
            "", "| | second part | last part | last / second | flat | by steps/s | at the end | made anew |",
            "|---|--:|--:|--:|---|--:|--:|--:|", *(self._change(change, pace(found)) for change in changes(found)), "",
            self.verdict(), "",
        ]  # fmt: skip
        return "\n".join(lines)

    def _change(self, change: Change, paced: float) -> str:
        is_size = change.name in self.samples[-1].sizes
        second, last = ((value / MEGABYTE if is_size else value) for value in (change.second, change.last))
        end = number(self.samples[-1].sizes[change.name] / MEGABYTE) if is_size else ""
        anew = number(self.rebuilt[change.name] / MEGABYTE) if change.name in self.rebuilt else ""
        flat = "yes" if change.is_flat else "small" if is_small(change) else "**no**"
        title = f"`{change.name}`, MB" if is_size else change.name
        # What is kept for some seconds grows with the speed.
        by_rate = f"{change.ratio / paced:.2f}" if is_size else ""
        shown = (title, number(second), number(last), f"{change.ratio:.2f}", flat, by_rate, end, anew)
        return f"| {' | '.join(shown)} |"

    def verdict(self) -> str:
        bent = [c.name for c in changes(parts(self.samples)) if not (c.is_flat or is_small(c))]
        if bent:
            return f"Not flat, by more than {MOST:.0%}: {', '.join(bent)}."
        return f"Flat: throughput, tables and indexes of the last part are within {MOST:.0%} of the second."

    def _plain(self) -> dict[str, Any]:
        return {
            "workload": self.workload, "verdict": self.verdict(), "rebuilt": dict(self.rebuilt),
            "parts": [asdict(part) for part in parts(self.samples)],
            "samples": [asdict(sample) for sample in self.samples],
        }  # fmt: skip


def pace(found: Sequence[Part]) -> float:
    """How much faster the last part was than the second."""
    return changes(found)[0].ratio


def is_small(change: Change) -> bool:
    """A few pages more or less of something that has only a few."""
    return change.name != "steps/s" and max(change.second, change.last) < SMALL


def cells(part: Part) -> tuple[str, ...]:
    """The row of one part."""
    tables = sum(size for name, size in part.sizes.items() if name in TABLES)
    indexes = sum(part.sizes.values()) - tables
    return (
        f"{part.steps:,}", number(part.rate), number(part.python), number(part.server), number(part.wal),
        f"{part.hot:.2f}", f"{part.dead:.0%}", str(part.vacuums), number(part.oldest), number(tables / MEGABYTE),
        number(indexes / MEGABYTE),
    )  # fmt: skip
