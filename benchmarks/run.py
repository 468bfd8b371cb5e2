"""`make bench`: every workload between measures of its limit; then a table, and a JSON file in `benchmarks/results`."""

from __future__ import annotations

import argparse
import cProfile
import logging
import pstats
import sys
from datetime import UTC, datetime
from time import perf_counter

from benchmarks import limit, server, workloads
from benchmarks.bench import LARGE, PLAIN, TWO_PROCESSES, Bench, Variant
from benchmarks.figures import Figure, LimitName, Share, Spread, Workload
from benchmarks.loop import run
from benchmarks.progress import say
from benchmarks.report import Report, number


def main(arguments: list[str] | None = None) -> None:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    logging.getLogger("stepwell").setLevel(logging.ERROR)
    with server.chosen(options.url) as url:
        run(Benchmark(url, options).run())


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"some of: {', '.join(workloads.KNOWN)}")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, once: shows that it runs, measures nothing")
    parser.add_argument("--plain", action="store_true", help="without a 1 kB state and two processes")
    parser.add_argument("--profile", action="store_true", help="run each workload once more, under cProfile")
    parser.add_argument("--url", help="a Postgres to use instead of one of our own; databases are made in it")
    options = parser.parse_args(arguments)
    if unknown := set(options.workloads) - set(workloads.KNOWN):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(workloads.KNOWN)}")
    return options


class Benchmark:
    """One run over the chosen workloads."""

    def __init__(self, url: str, options: argparse.Namespace) -> None:
        self._url = url
        self._options = options
        self._chosen = [workloads.KNOWN[name] for name in options.workloads or workloads.ALL]
        self._began = perf_counter()
        self._last: dict[tuple[LimitName, Variant], float] = {}

    async def run(self) -> None:
        began = datetime.now(UTC)
        figures = [
            figure
            for variant in self._variants()
            for workload in self._chosen
            if _is_run_in(workload, variant)
            for figure in await self._measure(workload, variant)
        ]
        report = Report(
            began, " ".join(("make bench", *self._given())), perf_counter() - self._began,
            await server.settings(self._url), figures,
        )  # fmt: skip
        sys.stdout.write("\n" + report.table())
        if not self._options.quick:
            say(f"written to {report.write()}")
        if self._options.profile:
            for workload in self._chosen:
                await self._profile(workload)

    def _given(self) -> list[str]:
        flags = [f"--{name}" for name in ("quick", "plain") if getattr(self._options, name)]
        words = [*self._options.workloads, *flags]
        return [f'ARGS="{" ".join(words)}"'] if words else []

    def _variants(self) -> list[Variant]:
        others = () if self._options.plain else (LARGE, TWO_PROCESSES)
        return [PLAIN, *(v for v in others if any(_is_run_in(workload, v) for workload in self._chosen))]

    async def _limit(self, name: LimitName, variant: Variant) -> float:
        state = f'{{"note": "{variant.note}"}}'
        async with server.fresh_database(self._url) as url:
            bench = Bench(url, variant, self._options.quick)
            await limit.create(url)
            match name:
                case "steps":
                    return await limit.drain(url, bench.size(20_000, 400), state, bench.settle)
                case "inserts":
                    return await limit.insert(url, bench.size(5_000, 50), state)
                case "bulk inserts":
                    return await limit.insert_many(url, bench.size(20_000, 100), state)

    async def _measure(self, workload: Workload, variant: Variant) -> list[Figure]:
        """Measure a workload, and its limits before it, between its repetitions and after it: the speed of a shared
        machine changes every minute.
        """
        values: dict[str, list[float]] = {name: [] for name in workload.measures}
        limits: dict[LimitName, list[float]] = {name: [] for name in workload.limits}
        repeats = 1 if self._options.quick else workload.repeats
        for repeat in range(repeats):
            await self._add_limits(limits, variant)
            for name, value in (await self._once(workload, variant)).items():
                values[name].append(value)
            found = [(values[key][-1], measure.unit) for key, measure in workload.measures.items() if values[key]]
            shown = ", ".join(f"{number(value)} {unit}" for value, unit in found)
            say(f"{self._clock()} {workload.name}{_of(variant)}, {repeat + 1} of {repeats}: {shown}")
        await self._add_limits(limits, variant)
        beside = {name: Spread.of(found) for name, found in limits.items()}
        return [
            Figure(
                workload.name, variant.name, measure, Spread.of(values[key]),
                beside[measure.target.limit] if isinstance(measure.target, Share) else None,
            )
            for key, measure in workload.measures.items()
            if values[key]  # it may have none in this variant, or on this system
        ]  # fmt: skip

    async def _add_limits(self, limits: dict[LimitName, list[float]], variant: Variant) -> None:
        for name, found in limits.items():
            size = PLAIN if variant is TWO_PROCESSES else variant
            if not (self._options.quick and (name, size) in self._last):
                self._last[name, size] = await self._limit(name, size)
            found.append(self._last[name, size])
            say(f"{self._clock()} limit, {name}{_of(variant)}: {number(found[-1])} /s")

    async def _once(self, workload: Workload, variant: Variant) -> dict[str, float]:
        async with server.fresh_database(self._url) as url:
            return dict(await workload.run(Bench(url, variant, self._options.quick)))

    async def _profile(self, workload: Workload) -> None:
        profile = cProfile.Profile()
        async with server.fresh_database(self._url) as url:
            profile.enable()
            await workload.run(Bench(url, PLAIN, self._options.quick))
            profile.disable()
        say(f"\n{workload.name}, under cProfile, by own time:")
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)

    def _clock(self) -> str:
        minutes, seconds = divmod(round(perf_counter() - self._began), 60)
        return f"[{minutes}:{seconds:02}]"


def _is_run_in(workload: Workload, variant: Variant) -> bool:
    return (
        variant is PLAIN or (variant is LARGE and workload.is_sized)
        or (variant is TWO_PROCESSES and workload.has_processes)
    )  # fmt: skip


def _of(variant: Variant) -> str:
    return f" ({variant.name})" if variant.name else ""


if __name__ == "__main__":
    main()
