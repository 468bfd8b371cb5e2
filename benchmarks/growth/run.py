"""`make growth`: each scenario beside an empty database, round by round; then a table, and a JSON file."""

from __future__ import annotations

import argparse
import logging
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import UTC, datetime
from time import perf_counter

from benchmarks import server
from benchmarks.bench import query
from benchmarks.growth import scenarios
from benchmarks.growth.bulk import bulks
from benchmarks.growth.leavings import leavings
from benchmarks.growth.report import Figure, Report, cells, median
from benchmarks.growth.scenarios import Scenario, Sizes
from benchmarks.growth.site import BATCH, Round, Site, opened
from benchmarks.loop import run
from benchmarks.progress import say
from stepwell import Engine

NORMAL = Sizes(rounds=25, warm_ups=5, turns=BATCH)
QUICK = Sizes(rounds=1, warm_ups=1, turns=3, divisor=1_000)


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
        async with AsyncExitStack() as stack:
            template = await stack.enter_async_context(server.fresh_database(self._url))
            await Engine(template).migrate()
            alone, around, bulk = [
                await stack.enter_async_context(server.fresh_database(self._url, template)) for _ in range(3)
            ]
            sites = [await stack.enter_async_context(opened(url)) for url in (alone, around)]
            figures = [await self._measure(name, *sites) for name in self._options.scenarios or scenarios.ALL]
            left = await leavings(sites[0], self._sizes.rows(20_000)) if is_whole else []
            many = await bulks(bulk, self._sizes.divisor) if is_whole else []
        given = " ".join(sys.argv[1:])
        report = Report(
            began, f'make growth ARGS="{given}"' if given else "make growth", perf_counter() - self._began,
            await server.settings(self._url), figures, left, many,
        )  # fmt: skip
        sys.stdout.write("\n" + report.table())
        if not self._options.quick:
            say(f"written to {report.write()}")

    async def _measure(self, name: str, alone: Site, around: Site) -> Figure:
        scenario = scenarios.ALL[name]
        async with AsyncExitStack() as stack:
            for site in (alone, around):
                await site.empty()
            if scenario.holds:
                await stack.enter_async_context(scenarios.held_open(around.url))
            await scenario.alone(alone, self._sizes)
            await scenario.around(around, self._sizes)
            say(f"{self._clock()} {name}: filled")
            if not self._options.quick:
                await query(self._url, "checkpoint")
            for site in (alone, around):
                await site.meter.meet()
            # By turns, so that what else the machine does meets both.
            sizes = self._sizes.of_turns if scenario.is_turns else self._sizes
            number = sizes.warm_ups + sizes.rounds
            rounds = [(await self._once(scenario, alone), await self._once(scenario, around)) for _ in range(number)]
        measured = rounds[sizes.warm_ups :]
        label = scenario.label
        if scenario.holds and self._options.minutes:
            label = f"a transaction held open for {self._options.minutes:g} minutes, {around.worked:,} steps meanwhile"
        figure = Figure(
            name, label, median([pair[0] for pair in measured]), median([pair[1] for pair in measured]),
            scenario.most,
        )  # fmt: skip
        say(f"{self._clock()} {' | '.join(cells(figure))}")
        return figure

    async def _once(self, scenario: Scenario, site: Site) -> Round:
        return await (site.turns(self._sizes.turns) if scenario.is_turns else site.round())

    def _clock(self) -> str:
        minutes, seconds = divmod(round(perf_counter() - self._began), 60)
        return f"[{minutes}:{seconds:02}]"


if __name__ == "__main__":
    main()
