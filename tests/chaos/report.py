"""The report of a run: one entry per kind of fault, and what was lost, doubled or stuck."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from tests.chaos.findings import Findings
from tests.chaos.recovery import DEFINITION, Recovery
from tests.chaos.schedule import FAULTS

SHOWN = 20
LONG = 15.0  # minutes, in which each fault happens
FOUND, INCOMPLETE = 1, 2  # exit codes


@dataclass
class Report:
    """Everything that is known at the end of a run."""

    head: str
    findings: Findings
    minutes: float = 0.0
    chosen: Sequence[str] = tuple(FAULTS)
    recoveries: dict[str, list[tuple[int, Recovery]]] = field(default_factory=lambda: defaultdict(list))
    lacking: dict[str, str] = field(default_factory=dict)  # what this machine lacks for a fault
    missed: dict[str, str] = field(default_factory=dict)  # why a fault did not happen in its turn
    companions: Counter[str] = field(default_factory=Counter)  # faults that came beside another one
    impossible: list[str] = field(default_factory=list)  # those that could not
    notes: list[str] = field(default_factory=list)
    details: list[str] = field(default_factory=list)  # of rows that did not move

    @property
    def is_long(self) -> bool:
        """Whether each fault has to happen."""
        return self.minutes >= LONG

    @property
    def exit_code(self) -> int:
        if not self.findings.is_clean:
            return FOUND
        return INCOMPLETE if self.is_long and self.missing() else 0

    def possible(self) -> list[str]:
        return [name for name in self.chosen if name not in self.lacking]

    def missing(self) -> list[str]:
        """Faults that can happen here, and have not."""
        return [name for name in self.possible() if not self.recoveries.get(name)]

    def lines(self) -> list[str]:
        notes = [*self._missing(), *self.notes]
        return [self.head, DEFINITION, "", *self._table(), "", *notes, "", *self.details, *self._verdict()]

    def _table(self) -> list[str]:
        rows = [["fault", "counted from", "times", "first commit", "recovery", "workers", "at most", "still",
                 "worst in"]]
        for name, fault in FAULTS.items():
            if found := self.recoveries.get(name):
                rows.append([name, f"its {fault.counts_from}", str(len(found)), *_worst(found)])
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]

    def _missing(self) -> list[str]:
        lines = []
        for name, fault in FAULTS.items():
            if not self.recoveries.get(name):
                lines.append(f"did not run: {name}: {self._reason(name)}")
            elif fault.cheap and not self.companions[name]:
                lines.append(f"did not run beside another fault: {name}: the seed did not choose it, or see below")
        return [*lines, *self.impossible]

    def _reason(self, name: str) -> str:
        if name not in self.chosen:
            return "not chosen by --only"
        return self.lacking.get(name) or self.missed.get(name) or "the time was over before its turn"

    def _verdict(self) -> list[str]:
        found = self.findings.kinds()
        lines = []
        for what, entries in found.items():
            lines += [f"  {what}: {entry}" for entry in entries[:SHOWN]]
            lines += [f"  {what}: and {len(entries) - SHOWN} more"] if len(entries) > SHOWN else []
        if missing := self.missing():
            lines.append(f"incomplete: {len(missing)} of {len(self.possible())} faults did not run")
        counts = ", ".join(f"{what} {len(entries)}" for what, entries in found.items())
        every = [recovery for found_ in self.recoveries.values() for _, recovery in found_]
        worst = max((r.seconds for r in every if r.seconds is not None), default=0.0)
        missed = sum(r.seconds is None for r in every)
        return [*lines, f"{counts}; worst recovery {worst:.1f} s" + (f", {missed} not at all" if missed else "")]


def _worst(found: list[tuple[int, Recovery]]) -> list[str]:
    """The strike that was nearest to its limit, or furthest beyond it."""
    number, slowest = max(found, key=lambda pair: _longest(pair[1]) - pair[1].at_most)
    first = max((r.first_commit or 0.0 for _, r in found), default=0.0)
    still = max(r.standstill for _, r in found)
    seconds = f"not ({slowest.unmoved} due)" if slowest.seconds is None else f"{slowest.seconds:.1f} s"
    workers = "not all" if slowest.workers is None else f"{slowest.workers:.1f} s"
    return [f"{first:.1f} s", seconds, workers, f"{slowest.at_most:.1f} s", f"{still:.1f} s", f"strike {number}"]


def _longest(recovery: Recovery) -> float:
    return max(inf if seconds is None else seconds for seconds in (recovery.seconds, recovery.workers))
