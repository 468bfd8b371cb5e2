"""A run beside others: a table, the settings and footnotes under it, and JSON."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.figures import LimitName, Spread
from benchmarks.peers.child import Answer
from benchmarks.peers.environments import OURS
from benchmarks.report import number
from benchmarks.taken import Taken

NAMES = {
    "stepwell": "Stepwell", "pgqueuer": "pgqueuer", "chancy": "Chancy", "absurd": "Absurd",
    "procrastinate": "Procrastinate", "dbos": "DBOS",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    workload: str
    value: str
    label: str
    unit: str
    is_less_better: bool = False


ROWS = (
    Row("drain", "rate", "drain a backlog of one step each", "steps/s"),
    Row("drain_1kb", "rate", "drain, 1 kB each", "steps/s"),
    Row("drain_two", "rate", "drain, two processes", "steps/s"),
    Row("three_steps", "rate", "three durable steps each", "steps/s"),
    Row("three_steps_1kb", "rate", "three durable steps each, 1 kB", "steps/s"),
    Row("ten_steps", "rate", "ten durable steps each", "steps/s"),
    Row("start", "rate", "start, one by one from 10 tasks", "starts/s"),
    Row("start_many", "rate", "start in bulk", "starts/s"),
    Row("families", "rate", "20 parents × 100 children, start to last join", "children/s"),
    Row("parked", "rate", "500 parked, all signalled", "wakes/s"),
    Row("signal_latency", "p50", "idle: signal → end seen by the client, p50", "ms", is_less_better=True),
    Row("signal_latency", "p99", "idle: signal → end seen by the client, p99", "ms", is_less_better=True),
    Row("timer", "p50", "idle: a timer is late by, p50", "ms", is_less_better=True),
    Row("timer", "p99", "idle: a timer is late by, p99", "ms", is_less_better=True),
    Row("latency", "p50", "idle: started → step begins, p50", "ms", is_less_better=True),
    Row("latency", "p99", "idle: started → step begins, p99", "ms", is_less_better=True),
    Row("idle", "statements", "idle worker", "statements/min", is_less_better=True),
    Row("fast_latency", "p50", "the same, polling every 10 ms, p50", "ms", is_less_better=True),
    Row("fast_latency", "p99", "the same, polling every 10 ms, p99", "ms", is_less_better=True),
    Row("fast_idle", "statements", "idle worker, polling every 10 ms", "statements/min", is_less_better=True),
)

@dataclass(frozen=True, slots=True)
class Limits:
    """One limit, before all systems and after them."""

    name: LimitName
    before: Spread
    after: Spread

    @property
    def rate(self) -> float:
        return (self.before.median + self.after.median) / 2


Answers = Mapping[tuple[str, str], Sequence[Answer]]  # by system and workload, one for each repetition


@dataclass(frozen=True, slots=True)
class Comparison(Taken):
    """All answers of a run, and where they were taken."""

    kind = "peers-"

    limits: Sequence[Limits]
    systems: Sequence[str]
    answers: Answers

    def markdown(self) -> str:
        """Everything that can be pasted: where, the limit, the table, footnotes, what we lose, settings."""
        footnotes = Footnotes()
        rows = self._rows(footnotes)
        parts = (self.where(), self._limits(), rows, footnotes.lines(), self._lost(), self._settings())
        return "\n\n".join("\n".join(part) for part in parts if part) + "\n"

    def _limits(self) -> list[str]:
        rows = [
            f"| {limit.name} | {number(limit.before.median)} | {number(limit.after.median)} |" for limit in self.limits
        ]
        return ["| limit, per second | before | after |", "|---|--:|--:|", *rows] if rows else []

    def _rows(self, footnotes: Footnotes) -> list[str]:
        lines = [
            f"| workload | unit | {' | '.join(NAMES[system] for system in self.systems)} |",
            f"|---|---|{'--:|' * len(self.systems)}",
        ]
        for row in self._measured():
            best = self._best(row)
            cells = [self._cell(row, system, footnotes, is_best=system == best) for system in self.systems]
            lines.append(f"| {row.label} | {row.unit} | {' | '.join(cells)} |")
        return lines

    def _measured(self) -> list[Row]:
        asked = {workload for _, workload in self.answers}
        return [row for row in ROWS if row.workload in asked]

    def _cell(self, row: Row, system: str, footnotes: Footnotes, *, is_best: bool) -> str:
        answers = self.answers.get((system, row.workload), ())
        figure = self.figure(row, system)
        if figure is None:
            why = next((found.missing or found.failed for found in answers if found.missing or found.failed), None)
            return f"–{footnotes.mark(why)}"
        failed = next((found.failed for found in answers if found.failed), None)
        note = next((found.note for found in answers if found.note), None)
        shown = f"**{number(figure)}**" if is_best else number(figure)
        return shown + footnotes.mark(note) + footnotes.mark(failed and f"once: {failed}")

    def figure(self, row: Row, system: str) -> float | None:
        """The median of the repetitions that succeeded."""
        answers = self.answers.get((system, row.workload), ())
        values = [found.values[row.value] for found in answers if row.value in found.values]
        return statistics.median(values) if values else None

    def _best(self, row: Row) -> str | None:
        figures = {system: figure for system in self.systems if (figure := self.figure(row, system)) is not None}
        choose = min if row.is_less_better else max
        return choose(figures, key=lambda system: figures[system]) if len(figures) > 1 else None

    def _lost(self) -> list[str]:
        """The rows in which another system is better."""
        lines = []
        for row in self._measured():
            best, ours = self._best(row), self.figure(row, OURS)
            theirs = None if best is None else self.figure(row, best)
            if best in (None, OURS) or ours is None or theirs is None:
                continue
            lines.append(f"- {row.label}: {NAMES[best]} {number(theirs)}, Stepwell {number(ours)} {row.unit}")
        return ["Where Stepwell loses:", "", *lines] if lines else []

    def _settings(self) -> list[str]:
        lines = []
        for system in self.systems:
            answers = [found for key, some in self.answers.items() if key[0] == system for found in some]
            if found := next((answer for answer in answers if answer.settings), None):
                packages = ", ".join(f"{name} {value}" for name, value in found.versions.items())
                lines.append(f"- **{NAMES[system]}** ({packages}): {found.settings}.")
        return ["Settings:", "", *lines] if lines else []

    def _plain(self) -> dict[str, Any]:
        return {
            "limits": [asdict(limit) | {"rate": limit.rate} for limit in self.limits],
            "answers": [
                {"system": system, "workload": workload, "repetitions": [asdict(found) for found in some]}
                for (system, workload), some in self.answers.items()
            ],
        }  # fmt: skip


class Footnotes:
    """Numbered from one, the same text once."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def mark(self, text: str | None) -> str:
        if not text:
            return ""
        shown = " ".join(text.split())
        if shown not in self._texts:
            self._texts.append(shown)
        return f" ({self._texts.index(shown) + 1})"

    def lines(self) -> list[str]:
        return [f"{number_}. {text}." for number_, text in enumerate(self._texts, 1)]
