"""`make growth`: each scenario beside an empty database, round by round; then a table, and a JSON file."""

from __future__ import annotations

import argparse
import logging
import sys
from dataclasses import replace
from datetime import UTC, datetime
from time import perf_counter

from benchmarks import server
from benchmarks.growth import scenarios
from benchmarks.growth.bulk import Bulk, bulks
from benchmarks.growth.comparing import NORMAL, QUICK, compare, sites
from benchmarks.growth.leavings import leavings
from benchmarks.growth.report import Figure, Report, cells
from benchmarks.growth.site import Site
from benchmarks.loop import run
from benchmarks.progress import say
from stepwell import Engine


def main(arguments: list[str] | None = None) -> None:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    logging.getLogger("stepwell").setLevel(logging.ERROR)
    with server.chosen(options.url) as url:
        run(Growth(url, options).run())


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make growth", description=__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"some of: {', '.join(scenarios.ALL)}")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs, measures nothing")
    parser.add_argument("--minutes", type=float, default=0.0, help="how long a transaction is held open, steps running")
    parser.add_argument("--url", help="a Postgres 18 to use instead of one of our own, on this machine")
    options = parser.parse_args(arguments)
    if unknown := set(options.scenarios) - set(scenarios.ALL):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(scenarios.ALL)}")
    return options


class Growth:
    """One run over the chosen scenarios."""

    def __init__(self, url: str, options: argparse.Namespace) -> None:
        self._url = url
        self._options = options
        self._sizes = replace(QUICK if options.quick else NORMAL, minutes=options.minutes)
        self._began = perf_counter()

    async def run(self) -> None:
        began = datetime.now(UTC)
        is_whole = not self._options.scenarios
        async with sites(self._url) as (alone, around):
            figures = [await self._measure(name, alone, around) for name in self._options.scenarios or scenarios.ALL]
            left = await leavings(alone, self._sizes.rows(20_000)) if is_whole else []
        many = await self._bulks() if is_whole else []
        given = " ".join(sys.argv[1:])
        report = Report(
            began, f'make growth ARGS="{given}"' if given else "make growth", perf_counter() - self._began,
            await server.settings(self._url), figures, left, many,
        )  # fmt: skip
        sys.stdout.write("\n" + report.table())
        if not self._options.quick:
            say(f"written to {report.write()}")

    async def _measure(self, name: str, alone: Site, around: Site) -> Figure:
        def filled() -> None:
            say(f"{self._clock()} {name}: filled")

        figure = await compare(scenarios.ALL[name], self._sizes, alone, around, filled)
        say(f"{self._clock()} {' | '.join(cells(figure))}")
        return figure

    async def _bulks(self) -> list[Bulk]:
        async with server.fresh_database(self._url) as url:
            await Engine(url).migrate()
            return await bulks(url, self._sizes.divisor)

    def _clock(self) -> str:
        minutes, seconds = divmod(round(perf_counter() - self._began), 60)
        return f"[{minutes}:{seconds:02}]"


if __name__ == "__main__":
    main()
