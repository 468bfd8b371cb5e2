"""Shows the progress of a run: bars that grow in a terminal, lines everywhere else."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Final, TextIO

WIDTH: Final = 40
STEP: Final = 10  # percent between two lines


class Progress:
    """Bars from 0 to `total`, by name, and lines above them."""

    def __init__(self, total: int, out: TextIO = sys.stdout) -> None:
        self._total = max(total, 1)
        self._out = out
        self._began = time.monotonic()
        self._is_live = out.isatty()
        self._drawn = 0  # lines of bars that are drawn below
        self._bars: list[str] = []
        self._shown = -1

    def say(self, line: str) -> None:
        """Print a line that stays."""
        self._wipe()
        self._out.write(f"{time.monotonic() - self._began:6.1f} s  {line}\n")
        self._draw()

    def show(self, counts: Mapping[str, int]) -> None:
        """Show the counts."""
        if self._is_live:
            self._wipe()
            self._bars = [self._bar(name, count) for name, count in counts.items()]
            self._draw()
            return
        part = min(counts.values()) * 100 // self._total // STEP
        if part > self._shown:
            self._shown = part
            self.say(", ".join(f"{name} {count:,}" for name, count in counts.items()) + f" of {self._total:,}")

    def finish(self) -> None:
        """Leave the bars as they are."""
        self._drawn, self._bars = 0, []

    def _bar(self, name: str, count: int) -> str:
        full = WIDTH * count // self._total
        return f"          {name:<10} {'█' * full}{'░' * (WIDTH - full)} {count:>7,} of {self._total:,}"

    def _draw(self) -> None:
        for bar in self._bars:
            self._out.write(bar + "\n")
        self._drawn = len(self._bars)
        self._out.flush()

    def _wipe(self) -> None:
        if self._drawn:
            self._out.write(f"\x1b[{self._drawn}A\x1b[J")
            self._drawn = 0
