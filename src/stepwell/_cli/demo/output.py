"""The output of the demo: lines with the seconds since its start, coloured on a terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stepwell._cli.output import Paint, Table

COLOURS = {"A": "cyan", "B": "magenta", "C": "yellow"}
FATES = {"committed": "green", "killed": "red", "lost": "red"}


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one step, and how it ended."""

    step: str
    attempt: int
    worker: str
    pid: int
    began: float
    ended: float | None
    fate: Literal["committed", "killed", "lost"]


class Reporter:
    """Prints what happens, when it happens; nothing in quiet mode."""

    def __init__(self, paint: Paint, *, quiet: bool) -> None:
        self.paint = paint
        self._quiet = quiet
        self._began = time.time()

    def since(self, at: float | None = None) -> float:
        """Seconds from the demo's start to a moment, or to now."""
        return round((time.time() if at is None else at) - self._began, 2)

    def line(self, text: str = "") -> None:
        if not self._quiet:
            print(text, flush=True)

    def event(self, text: str, *, at: float | None = None, worker: str | None = None, style: str = "") -> None:
        """Print one event."""
        mark = " " if worker is None else self.paint(worker, COLOURS.get(worker, "dim"), "bold")
        stamp = self.paint(f"{self.since(at):5.1f} s", "dim")
        self.line(f"{stamp}  {mark}  {self.paint(text, style) if style else text}")

    def detail(self, text: str) -> None:
        """Print a command or its output, below the event it belongs to."""
        for line in text.splitlines():
            self.line(f"{'':12}{self.paint(line, 'dim')}")

    def runs(self, runs: Sequence[Run]) -> None:
        """Print the table of all runs of all steps."""
        table = Table("step", "attempt", "worker", "pid", "began", "ended", "", paint=self.paint, indent="  ")
        rows = [
            (run.step, str(run.attempt), run.worker, str(run.pid), f"{run.began:.1f} s",
             "-" if run.ended is None else f"{run.ended:.1f} s", run.fate)
            for run in runs
        ]  # fmt: skip
        styles = [["", "", COLOURS.get(run.worker, ""), "dim", "dim", "dim", FATES[run.fate]] for run in runs]
        for line in table.lines(rows, styles):
            self.line(line)
