"""`make bench-peers`: the limit, every workload of every system in turn, the limit again; then a table to paste.

The repetitions alternate: each system runs one before any runs the second, so that a noisy minute affects all alike.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

from benchmarks import limit, server
from benchmarks.figures import LimitName, Spread
from benchmarks.loop import run
from benchmarks.peers.child import Answer, measure
from benchmarks.peers.environments import OURS, SYSTEMS, pythons_of
from benchmarks.peers.idle import LOGGED, count_statements
from benchmarks.peers.table import ROWS, Comparison, Limits
from benchmarks.progress import say
from benchmarks.report import number

REPEATS = 3
MINUTE = 60.0
CUT_OFF = 60.0  # seconds that a repetition may take
BUDGET = 17 * MINUTE  # of all repetitions; a machine that is too slow for three runs fewer
WORKLOADS = tuple(dict.fromkeys(row.workload for row in ROWS))
LIMITS: tuple[LimitName, ...] = ("steps", "inserts", "bulk inserts")


def main(arguments: list[str] | None = None) -> None:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    logging.getLogger("stepwell").setLevel(logging.ERROR)
    with server.own_server(LOGGED) as url:
        run(Run(url, options).run())


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-peers", description=__doc__)
    parser.add_argument("systems", nargs="*", metavar="SYSTEM", help=f"some of: {', '.join(SYSTEMS)}")
    parser.add_argument("--only", nargs="+", metavar="WORKLOAD", default=WORKLOADS, choices=WORKLOADS)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--quick", action="store_true", help="tiny sizes, once: shows that it runs, measures nothing")
    parser.add_argument(
        "--try", nargs="+", default=[], metavar="SYSTEM.KNOB=VALUE", dest="tried", help="another setting of a system"
    )
    options = parser.parse_args(arguments)
    if unknown := set(options.systems) - set(SYSTEMS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(SYSTEMS)}")
    options.command = " ".join(("make bench-peers", *([f'ARGS="{" ".join(arguments)}"'] if arguments else [])))
    return options


class Run:
    """One run over the chosen systems; Stepwell is always one of them."""

    def __init__(self, url: str, options: argparse.Namespace) -> None:
        self._url = url
        self._options = options
        self._systems = [name for name in SYSTEMS if name == OURS or name in (options.systems or SYSTEMS)]
        self._answers: defaultdict[tuple[str, str], list[Answer]] = defaultdict(list)
        self._began = perf_counter()

    async def run(self) -> None:
        pythons = pythons_of(self._systems, say)
        self._systems = list(pythons)
        began, self._began = datetime.now(UTC), perf_counter()
        before = await self._limits("before")
        for repeat in range(1 if self._options.quick else self._options.repeats):
            if repeat and (perf_counter() - self._began) * (repeat + 1) / repeat > BUDGET:
                say(f"{self._clock()} no time for repetition {repeat + 1}")
                break
            for workload in (name for name in self._options.only if not name.endswith("idle")):
                for system in self._systems:
                    await self._measure(pythons[system], system, workload, repeat)
        await self._idle(pythons)
        after = await self._limits("after")
        limits = [Limits(name, before[name], after[name]) for name in LIMITS]
        comparison = Comparison(
            began, self._options.command, perf_counter() - self._began, await server.settings(self._url), limits,
            self._systems, self._answers,
        )  # fmt: skip
        sys.stdout.write("\n" + comparison.markdown())
        if not self._options.quick:
            say(f"\nwritten to {comparison.write()}")

    async def _measure(self, python: Path, system: str, workload: str, repeat: int) -> None:
        known = self._answers[system, workload]
        if known and not known[-1].values:
            return  # it is missing there, or was cut off and would be again
        async with server.fresh_database(self._url) as url:
            known.append(await measure(self._command(python, system, url, workload), CUT_OFF))
        say(f"{self._clock()} {workload}, {repeat + 1}, {system}: {shown(known[-1])}")

    async def _idle(self, pythons: dict[str, Path]) -> None:
        """All at once: an idle system disturbs no other."""
        chosen = [
            (system, workload) for system in self._systems for workload in ("idle", "fast_idle")
            if workload in self._options.only
        ]  # fmt: skip
        seconds = 2.0 if self._options.quick else MINUTE
        if chosen:
            say(f"{self._clock()} all idle for {seconds:g} s")
        found = await asyncio.gather(*(self._count(pythons[name], name, kind, seconds) for name, kind in chosen))
        for key, answer in zip(chosen, found, strict=True):
            self._answers[key].append(answer)
            say(f"{self._clock()} {key[1]}, {key[0]}: {shown(answer)}")

    async def _count(self, python: Path, system: str, workload: str, seconds: float) -> Answer:
        async with server.fresh_database(self._url) as url:
            return await count_statements(url, self._command(python, system, url, workload), seconds, CUT_OFF)

    def _command(self, python: Path, system: str, url: str, workload: str) -> list[str]:
        tried = [word.partition(".")[2] for word in self._options.tried if word.startswith(f"{system}.")]
        quick = ["--quick"] if self._options.quick else []
        return [str(python), "-m", f"benchmarks.peers.systems.{system}", url, workload, *tried, *quick]

    async def _limits(self, when: str) -> dict[LimitName, Spread]:
        found = {}
        for name in LIMITS:
            values = [await self._limit(name) for _ in range(1 if self._options.quick else REPEATS)]
            found[name] = Spread.of(values)
            say(f"{self._clock()} limit, {name}, {when}: {number(found[name].median)} /s")
        return found

    async def _limit(self, name: LimitName) -> float:
        part = 50 if self._options.quick else 1
        async with server.fresh_database(self._url) as url:
            await limit.create(url)
            match name:
                case "steps":
                    return await limit.drain(url, 20_000 // part, "{}", nothing)
                case "inserts":
                    return await limit.insert(url, 3_000 // part, "{}")
                case "bulk inserts":
                    return await limit.insert_many(url, 20_000 // part, "{}")

    def _clock(self) -> str:
        minutes, seconds = divmod(round(perf_counter() - self._began), 60)
        return f"[{minutes}:{seconds:02}]"


def shown(answer: Answer) -> str:
    if answer.values:
        return ", ".join(f"{name} {number(value)}" for name, value in answer.values.items())
    return answer.missing or answer.failed or "nothing"


async def nothing() -> None:
    """The limit's rows are few: there is nothing to settle."""


if __name__ == "__main__":
    main()
