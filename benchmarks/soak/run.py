"""`make soak-steps`: a feeder, workers in their own processes, a sample every N steps; then the verdict."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from datetime import UTC, datetime
from time import perf_counter

import asyncpg

from benchmarks import machines, server
from benchmarks.loop import run
from benchmarks.machines import Count
from benchmarks.progress import say
from benchmarks.soak.cores import Cores
from benchmarks.soak.report import Report, cells
from benchmarks.soak.samples import PARTS, Part, Sample, look
from benchmarks.soak.workers import Workers
from stepwell import Engine

CHUNK = 1_000  # instances of one start_many, at most
LOOK_EVERY = 0.02  # seconds between two reads of the workers' counters
# A million steps take a minute or two. What is pruned and vacuumed once a minute has no steady state in that time.
OFTEN = {"autovacuum_naptime": "10s"}
STALLED = 60.0  # seconds without a step


def main(arguments: list[str] | None = None) -> None:
    options = parse(sys.argv[1:] if arguments is None else arguments)
    logging.getLogger("stepwell").setLevel(logging.ERROR)
    given = dict(pair.split("=", 1) for pair in options.server)
    with server.chosen(options.url, OFTEN | given) as url:
        run(Soak(url, options).run())


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make soak-steps", description=__doc__)
    parser.add_argument("--steps", type=int, default=5_000_000, help="of the whole soak")
    parser.add_argument("--every", type=int, help="steps between two samples; by default a fiftieth of all")
    parser.add_argument("--length", type=int, default=10, help="steps of an instance")
    parser.add_argument("--run-ahead", type=int, default=16)
    parser.add_argument("--retention", type=float, default=30.0, help="seconds")
    parser.add_argument("--prune", type=float, default=5.0, help="seconds between two looks for what to prune")
    parser.add_argument("--warm-up", type=float, default=50.0, help="seconds before the first step that counts: the "
                        "first ones are pruned then, and vacuum has been there")
    parser.add_argument("--processes", type=int, default=1, help="workers, each in a process of its own")
    parser.add_argument("--backlog", type=int, default=5_000, help="instances that wait or run at most")
    parser.add_argument("--set", action="append", default=[], metavar="TABLE.OPTION=VALUE", help="try another setting")
    parser.add_argument("--server", action="append", default=[], metavar="NAME=VALUE", help="the same, of our Postgres")
    parser.add_argument("--url", help="a Postgres to use instead of one of our own; a database is made in it")
    options = parser.parse_args(arguments)
    options.every = options.every or options.steps // (PARTS * 10)
    return options


class Soak:
    """One soak."""

    def __init__(self, url: str, options: argparse.Namespace) -> None:
        self._url = url
        self._options = options
        self._samples: list[Sample] = []

    async def run(self) -> None:
        began, clock = datetime.now(UTC), perf_counter()
        async with server.fresh_database(self._url) as url:
            await self._prepare(url)
            watcher = await asyncpg.connect(url)
            try:
                await self._soak(url, watcher)
                rebuilt = await rebuild(watcher)
            finally:
                await watcher.close()
        given = " ".join(sys.argv[1:])
        report = Report(
            began, f'make soak-steps ARGS="{given}"' if given else "make soak-steps",
            perf_counter() - clock, await server.settings(self._url), self._workload(), self._samples, rebuilt,
        )  # fmt: skip
        sys.stdout.write("\n" + report.table())
        say(f"written to {report.write()}")

    def _workload(self) -> str:
        options = self._options
        return (
            f"{options.steps:,} steps of instances of {options.length} steps, run_ahead {options.run_ahead}, retention "
            f"{options.retention:g} s, prune {options.prune:g} s, {options.processes} worker process(es), at most "
            f"{options.backlog:,} unfinished, after {options.warm_up:g} s of the same"
        )

    async def _prepare(self, url: str) -> None:
        await Engine(url, machines=machines.ALL).migrate()
        connection = await asyncpg.connect(url)
        for setting in self._options.set:
            table, _, option = setting.partition(".")
            await connection.execute(f"alter table stepwell.{table} set ({option})")
        await connection.close()

    async def _soak(self, url: str, watcher: asyncpg.Connection) -> None:
        options = self._options
        settings = {"run_ahead": options.run_ahead, "retention": options.retention, "prune": options.prune}
        engine = Engine(url, machines=machines.ALL)
        async with engine, Workers(url, options.processes, settings) as workers:
            feeder = asyncio.create_task(self._feed(engine, workers))
            try:
                await asyncio.wait([feeder], timeout=options.warm_up)
                await self._count(watcher, workers, feeder)
            finally:
                feeder.cancel()

    async def _count(self, watcher: asyncpg.Connection, workers: Workers, feeder: asyncio.Task[None]) -> None:
        """Take a sample every N steps, until all are done."""
        origin = str(await watcher.fetchval("select pg_current_wal_insert_lsn()::text"))
        began, before, cores = perf_counter(), workers.committed, Cores()
        first = await cores.look(watcher, workers.pids)
        self._samples.append(await look(watcher, Count.name, 0, 0.0, origin, first))
        while (last := self._samples[-1].steps) < self._options.steps:
            await reached(workers, before + min(last + self._options.every, self._options.steps), feeder)
            passed = perf_counter() - began
            cpu = await cores.look(watcher, workers.pids)
            self._samples.append(await look(watcher, Count.name, workers.committed - before, passed, origin, cpu))
            part = Part.between(self._samples[-2], self._samples[-1:])
            say(f"[{passed:.0f} s] {' | '.join(cells(part))}")

    async def _feed(self, engine: Engine, workers: Workers) -> None:
        """Keep a bounded backlog: instances that have been started and still have steps to run."""
        length, started = self._options.length, 0
        entry = Count.child({"left": length})
        chunk = min(CHUNK, self._options.backlog)
        while True:
            if started - workers.committed // length < self._options.backlog:
                await engine.start_many([entry] * chunk)
                started += chunk
            else:
                await asyncio.sleep(LOOK_EVERY)


async def reached(workers: Workers, steps: int, feeder: asyncio.Task[None]) -> None:
    """Wait until this many steps are committed."""
    seen, since = workers.committed, perf_counter()
    while workers.committed < steps:
        await asyncio.sleep(LOOK_EVERY)
        if feeder.done():
            feeder.result()
        if workers.committed > seen:
            seen, since = workers.committed, perf_counter()
        elif perf_counter() - since > STALLED:
            raise RuntimeError(f"no step was committed in {STALLED:g} s, after {seen:,}")


async def rebuild(watcher: asyncpg.Connection) -> dict[str, int]:
    """The size of the same rows when tables and indexes are rewritten, in bytes."""
    await watcher.execute("vacuum full stepwell.instances", timeout=600)
    await watcher.execute("vacuum full stepwell.instance_data", timeout=600)
    sample = await look(watcher, Count.name, 0, 0.0, "0/0")
    return dict(sample.sizes)


if __name__ == "__main__":
    main()
