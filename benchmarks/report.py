"""A run as a table for people and as JSON for programs."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, LimitName, Spread

PACKAGES = ("stepwell", "asyncpg", "msgspec", "uvloop")
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Limits:
    """One limit in one variant, before the workloads and after them."""

    name: LimitName
    variant: str
    before: Spread
    after: Spread

    @property
    def rate(self) -> float:
        return (self.before.median + self.after.median) / 2


@dataclass(frozen=True, slots=True)
class Report:
    """All figures of a run, and where they were taken."""

    began: datetime
    command: str
    seconds: float
    server: Mapping[str, str]
    limits: Sequence[Limits]
    figures: Sequence[Figure]

    def table(self) -> str:
        """Markdown: where, the limits, and every figure beside its limit and its target."""
        limits = [*self._limit_rows(), ""] if self.limits else []
        return "\n".join((self._where(), "", *limits, *self._figure_rows(), ""))

    def _where(self) -> str:
        shown = ", ".join(f"{name} {value}" for name, value in versions().items() if value)
        server = ", ".join(f"{name} {value}" for name, value in self.server.items() if name != "server_version")
        return (
            f"{self.began:%Y-%m-%d %H:%M} UTC, {self.seconds:.0f} s, `{self.command}`\n{machine()}; {shown}\n"
            f"PostgreSQL {self.server.get('server_version')}: {server}"
        )

    def _limit_rows(self) -> list[str]:
        rows = ["| limit | before | after |", "|---|--:|--:|"]
        rows += [
            f"| {_titled(limit.name, limit.variant)} | {_spread(limit.before)} | {_spread(limit.after)} |"
            for limit in self.limits
        ]
        return rows

    def _figure_rows(self) -> list[str]:
        head = ("workload", "unit", "ours (least–most)", "limit", "ratio", "target", "met")
        rows = [f"| {' | '.join(head)} |", "|---|---|--:|--:|--:|--:|---|"]
        return rows + [f"| {' | '.join(_cells(figure))} |" for figure in self.figures]

    def write(self, folder: Path = RESULTS) -> Path:
        """Write the JSON file; returns where."""
        folder.mkdir(exist_ok=True)
        path = folder / f"{self.began:%Y-%m-%dT%H%M%S}.json"
        path.write_text(json.dumps(self._plain(), indent=2, ensure_ascii=False) + "\n", "utf-8")
        return path

    def _plain(self) -> dict[str, Any]:
        return {
            "date": self.began.isoformat(timespec="seconds"),
            "command": self.command,
            "seconds": round(self.seconds, 1),
            "machine": machine(),
            "versions": versions(),
            "server": dict(self.server),
            "limits": [asdict(limit) | {"rate": limit.rate} for limit in self.limits],
            "figures": [
                asdict(figure)
                | {"ratio": figure.ratio, "is_met": figure.is_met, "target": str(figure.measure.target or "")}
                for figure in self.figures
            ],
        }


def machine() -> str:
    """The machine in a few words."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores ({_processor()}), {memory:.0f} GB, {platform.system()} {platform.release()}"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


def versions() -> dict[str, str | None]:
    """Of Python and of what the figures depend on; None for what is not installed."""
    return {"Python": platform.python_version(), "commit": _commit()} | {name: _version(name) for name in PACKAGES}


def _commit() -> str | None:
    git = shutil.which("git")
    if git is None:
        return None
    described = subprocess.run(  # noqa: S603 - no word of it comes from outside
        [git, "describe", "--always", "--dirty"], cwd=RESULTS.parent, capture_output=True, text=True, check=False
    )
    return described.stdout.strip() or None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cells(figure: Figure) -> tuple[str, ...]:
    return (
        _titled(figure.measure.label, figure.variant),
        figure.measure.unit,
        _spread(figure.ours),
        "" if figure.limit is None else number(figure.limit),
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
    """A figure as a person reads it: no more digits than it has."""
    for least, digits in ((1_000, -2), (100, 0), (10, 1)):
        if abs(value) >= least:
            return f"{round(value, digits):,.{max(0, digits)}f}"
    return f"{value:.2f}"
