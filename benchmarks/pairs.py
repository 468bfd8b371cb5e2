"""`make bench-pairs`: measures another revision and this tree in turns, and says which rows have become slower.

One measurement says little on a machine if its speed changes by the minute. The two runs of a pair share that speed:
their ratio is that of the code, and the median over several pairs is the cost of a change.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import server, workloads
from benchmarks.progress import say
from benchmarks.report import number

ROOT = Path(__file__).resolve().parent.parent
LEAST = 0.95  # of the figure before: a row below it is named
SLOW = ("claims", "csv_payments", "idle", "memory", "streams", "webhooks")  # they take minutes; name them to run them

Row = tuple[str, str]
"""The label of a figure, with its variant, and its unit."""


@dataclass(frozen=True, slots=True)
class Compared:
    """One row of all pairs. A ratio above 1 is an improvement, whatever the unit."""

    row: Row
    before: float
    now: float
    ratios: Sequence[float]

    @classmethod
    def of(cls, row: Row, before: Sequence[float], now: Sequence[float]) -> Compared:
        is_rate = row[1].endswith("/s")
        ratios = [n / b if is_rate else b / n for b, n in zip(before, now, strict=True) if b and n]
        return cls(row, statistics.median(before), statistics.median(now), ratios or [1.0])

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def is_slower(self) -> bool:
        return self.ratio < LEAST

    def __str__(self) -> str:
        label, unit = self.row
        spread = f"{self.ratio:.2f} ({min(self.ratios):.2f}–{max(self.ratios):.2f})"
        shown = (label, unit, number(self.before), number(self.now), spread, "**slower**" if self.is_slower else "")
        return f"| {' | '.join(shown)} |"


def main(arguments: list[str] | None = None) -> None:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    with (
        tempfile.TemporaryDirectory(prefix="stepwell-pairs-") as folder,
        checked_out(options.base, Path(folder)) as tree,
        server.own_server() as url,
    ):
        pairs = [
            (measure(tree, url, options, f"{turn} of {options.pairs}, before"),
             measure(ROOT, url, options, f"{turn} of {options.pairs}, now"))
            for turn in range(1, options.pairs + 1)
        ]  # fmt: skip
    compared = compare(pairs)
    sys.stdout.write(table(options.base, compared))
    sys.exit(1 if any(row.is_slower for row in compared) else 0)


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-pairs", description=__doc__.partition("\n")[0])
    chosen = [name for name in workloads.ALL if name not in SLOW]
    shown = f"by default {', '.join(chosen)}"
    parser.add_argument("workloads", nargs="*", default=chosen, metavar="WORKLOAD", help=shown)
    parser.add_argument("--base", required=True, metavar="REV", help="the revision to compare with")
    parser.add_argument("--pairs", type=int, default=5, metavar="N", help="how often each side is measured (5)")
    parser.add_argument("--plain", action="store_true", help="without a 1 kB state and two processes")
    return parser.parse_args(arguments)


@contextmanager
def checked_out(revision: str, folder: Path) -> Iterator[Path]:
    """The tree of a revision, while the block runs."""
    tree = folder / "before"
    _git("worktree", "add", "--quiet", "--detach", str(tree), revision)
    try:
        yield tree
    finally:
        _git("worktree", "remove", "--force", str(tree))


def measure(tree: Path, url: str, options: argparse.Namespace, what: str) -> dict[Row, float]:
    """The figures of one run of a tree's own benchmark, by a process that imports that tree only."""
    say(f"pair {what}")
    results = tree / "benchmarks" / "results"
    known = set(results.glob("*.json"))
    flags = ["--plain"] if options.plain else []
    subprocess.run(  # noqa: S603 - fixed arguments, and names of workloads
        [sys.executable, "-m", "benchmarks.run", "--url", url, *flags, *options.workloads],
        cwd=tree, env=os.environ | {"PYTHONPATH": str(tree / "src")}, stdout=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    [written] = set(results.glob("*.json")) - known
    return read(json.loads(written.read_text("utf-8")))


def read(report: Mapping[str, Any]) -> dict[Row, float]:
    """The medians of a report, by row."""
    return {
        (", ".join(filter(None, (figure["measure"]["label"], figure["variant"]))), figure["measure"]["unit"]):
            figure["ours"]["median"]
        for figure in report["figures"]
    }  # fmt: skip


def compare(pairs: Sequence[tuple[Mapping[Row, float], Mapping[Row, float]]]) -> list[Compared]:
    """The rows that both sides have, in the order of the table."""
    rows = [row for row in pairs[0][1] if all(row in before and row in now for before, now in pairs)]
    return [Compared.of(row, [b[row] for b, _ in pairs], [n[row] for _, n in pairs]) for row in rows]


def table(base: str, compared: Sequence[Compared]) -> str:
    """Markdown: every row before and now, with the median ratio of the pairs, and the least and the most of them."""
    head = [f"| workload | unit | {base:.12} | now | ratio (least–most) | |", "|---|---|--:|--:|--:|---|"]
    return "\n".join(["", *head, *map(str, compared), ""])


def _git(*arguments: str) -> None:
    subprocess.run(["git", "-C", str(ROOT), *arguments], check=True)  # noqa: S603, S607 - fixed arguments, git by its name


if __name__ == "__main__":
    main()
