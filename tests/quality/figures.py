"""The figures of the package structure, beside their targets: `python -m tests.quality.figures`, part of `make check`.

They are printed and fail nothing. `--list callbacks|folders|classes|sql|words|who|job` prints what a figure counts;
`--no-job` leaves out the one that runs a job.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from tests.quality.figure import Figure
from tests.quality.job_path import job_path
from tests.quality.structure import callbacks, folders, large_classes, statements
from tests.quality.words import banned_words, who_words

FIGURES: dict[str, Callable[[], Figure]] = {
    "job": job_path, "callbacks": callbacks, "folders": folders, "classes": large_classes, "sql": statements,
    "words": banned_words, "who": who_words,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", choices=FIGURES, help="print what this figure counts")
    parser.add_argument("--no-job", action="store_true", help="leave out the figure for which a job runs")
    given = parser.parse_args()
    if given.list:
        print(*FIGURES[given.list]().items, sep="\n")
        return
    for name, measure in FIGURES.items():
        if name == "job" and given.no_job:
            continue
        try:
            figure = measure()
        except Exception as error:  # noqa: BLE001 - a figure fails nothing, also where no Postgres starts
            print(f"{name}: not measured: {error!r}")
            continue
        print(f"{figure.name:<58}{figure.now:>10}   target {figure.target:<16}{'' if figure.is_met else 'NOT MET'}")
        for note in figure.notes:
            print(f"    {note}")


if __name__ == "__main__":
    main()
