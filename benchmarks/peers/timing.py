"""The workloads and their clocks, the same for every system: the part of the harness that runs in its process.

A rate counts from the moment the first step began to the moment the last one is finished in the tables, so that
neither the start of a worker nor what it keeps in memory counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from itertools import accumulate
from time import perf_counter

from benchmarks.peers.contract import IDLE, LOOK_EVERY, Missing, System, say

TASKS = 10
WARM = 20
PAUSE = (0.03, 0.07)  # seconds between two starts of an idle system, at random, so that no polls coincide with them
SAMPLES = 120
TIMERS = 100
APART = (0.015, 0.035)  # seconds between the times of two of them, at random
BETWEEN = 0.005  # seconds between two timers that are set: they must not wait for one another
FIRST_DUE = 1.5  # seconds: the first of them; all are set by then
FAST_POLL = 0.01  # seconds; of a system that only polls, where it should be quick
PARENTS, FEWEST_PARENTS, CHILDREN, PARKED = 20, 4, 100, 500
MILLISECONDS = 1_000

Values = dict[str, float]


@dataclass(frozen=True, slots=True)
class Sizes:
    """The amount of work: less for a slow system, next to nothing for a trial run."""

    scale: float
    is_quick: bool

    def of(self, normal: int, least: int = TASKS) -> int:
        return max(least, round(normal * (0.005 if self.is_quick else self.scale)))

    def fixed(self, normal: int) -> int:
        return TASKS if self.is_quick else normal


async def drain(system: System, sizes: Sizes) -> Values:
    number = sizes.of(10_000)
    await system.start_many(number)
    return {"rate": await _work_off(system, number)}


async def drain_two(system: System, sizes: Sizes) -> Values:
    """The same by two processes, which begin together; the client is in the first."""
    number = sizes.of(10_000)
    await system.start_many(number)
    await system.settle()
    async with second_process(system), system.working():
        return {"rate": await _rate(system, number)}


async def three_steps(system: System, sizes: Sizes) -> Values:
    return await _chains(system, sizes.of(3_000), 3)


async def ten_steps(system: System, sizes: Sizes) -> Values:
    return await _chains(system, sizes.of(500), 10)


async def start(system: System, sizes: Sizes) -> Values:
    each = sizes.of(3_000) // TASKS

    async def start_some(number: int) -> None:
        for _ in range(number):
            await system.start(0)

    await asyncio.gather(*(start_some(2) for _ in range(TASKS)))  # then the pools have their connections
    await system.settle()
    began = perf_counter()
    await asyncio.gather(*(start_some(each) for _ in range(TASKS)))
    return {"rate": each * TASKS / (perf_counter() - began)}


async def start_many(system: System, sizes: Sizes) -> Values:
    number = sizes.of(20_000)
    await system.start_many(TASKS)
    await system.settle()
    began = perf_counter()
    await system.start_many(number)
    return {"rate": number / (perf_counter() - began)}


async def latency(system: System, sizes: Sizes) -> Values:
    """From the return of `start` to the begin of the step, at random moments of an idle system."""
    started: dict[int, float] = {}
    samples = sizes.fixed(SAMPLES)
    async with system.working():
        await _warm(system)
        for number in range(samples):
            await system.start(number)
            started[number] = perf_counter()
            await asyncio.sleep(random.uniform(*PAUSE))  # noqa: S311 - a pause is no secret
        await system.finish(WARM + samples)
    return _percentiles([system.times[number] - began for number, began in started.items()])


async def signal_latency(system: System, sizes: Sizes) -> Values:
    """From the call of `signal` until the client sees the end of what was parked, at random moments."""
    took: list[float] = []

    async def signal_one(number: int) -> None:
        began = perf_counter()
        await system.signal(number)
        await system.ended(number)
        took.append(perf_counter() - began)

    samples = sizes.fixed(SAMPLES)
    async with system.working():
        await _warm(system)
        await system.park(WARM + samples)
        await asyncio.gather(*map(signal_one, range(WARM)))
        took.clear()
        async with asyncio.TaskGroup() as group:
            for number in range(WARM, WARM + samples):
                group.create_task(signal_one(number))
                await asyncio.sleep(random.uniform(*PAUSE))  # noqa: S311 - a pause is no secret
    return _percentiles(took)


async def timer(system: System, sizes: Sizes) -> Values:
    """How late a delayed step begins. All are set before the first is due: then no start wakes a system that polls."""
    samples = sizes.fixed(TIMERS)
    pauses = (random.uniform(*APART) for _ in range(samples - 1))  # noqa: S311 - the same
    async with system.working():
        await _warm(system)
        for number, seconds in enumerate(accumulate(pauses, initial=FIRST_DUE)):
            await system.start_later(number, seconds)
            await asyncio.sleep(BETWEEN)
        await system.finish(WARM + samples)
    return _percentiles([system.times[number] - due for number, due in system.due.items()])


async def families(system: System, sizes: Sizes) -> Values:
    parents, children = sizes.of(PARENTS, FEWEST_PARENTS), sizes.fixed(CHILDREN)
    async with system.working():
        await _warm(system)
        began = perf_counter()
        await system.start_families(parents, children)
        await system.finish(WARM + parents * children)
        return {"rate": parents * children / (perf_counter() - began)}


async def parked(system: System, sizes: Sizes) -> Values:
    number = sizes.fixed(PARKED)
    async with system.working():
        await _warm(system)
        await system.park(number)
        began = perf_counter()
        await system.wake()
        await system.finish(WARM + number)
        return {"rate": number / (perf_counter() - began)}


async def idle(system: System, _: Sizes) -> Values:
    """Nothing happens until standard input ends; the harness counts statements in the server's log."""
    async with system.working():
        await _warm(system)
        say(ready=True)
        await asyncio.to_thread(sys.stdin.read)
    return {}


async def _chains(system: System, number: int, steps: int) -> Values:
    await system.start_chains(number, steps)
    return {"rate": await _work_off(system, steps * number)}


async def _work_off(system: System, steps: int) -> float:
    await system.settle()
    async with system.working():
        return await _rate(system, steps)


async def _rate(system: System, steps: int) -> float:
    await system.finish(steps)
    return steps / (perf_counter() - min(system.begun))


def _percentiles(seconds: list[float]) -> Values:
    late = sorted(max(0.0, each) * MILLISECONDS for each in seconds)
    return {"p50": late[(len(late) - 1) // 2], "p99": late[-(len(late) // 100) - 1]}


async def _warm(system: System) -> None:
    """Work a little, so that whatever is created at the first use exists."""
    for _ in range(WARM):
        await system.start(-1)
    await system.finish(WARM)


@asynccontextmanager
async def second_process(system: System) -> AsyncIterator[None]:
    """This command once more, which is told to work now; its steps count as begun here. Their clocks are the same."""

    async def listen(process: Process) -> None:
        async for line in process.stdout or asyncio.StreamReader():
            message = json.loads(line)
            system.begun.extend([message["at"]] * message["begun"])

    process = await asyncio.create_subprocess_exec(*sys.orig_argv, "--second", stdin=PIPE, stdout=PIPE)
    if process.stdin is None or process.stdout is None or not await process.stdout.readline():
        raise RuntimeError("the second process ended before it was ready")
    listening = asyncio.create_task(listen(process))
    process.stdin.write(b"work\n")
    yield
    process.stdin.close()
    await listening
    if await process.wait():
        raise RuntimeError(f"the second process ended with {process.returncode}")


async def be_second(system: System) -> None:
    """Work when told to, report how many steps have begun, and end with the standard input."""
    await system.open()
    say(ready=True)
    await asyncio.to_thread(sys.stdin.readline)
    over = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    reported = 0
    async with system.working():
        while not over.done():
            await asyncio.sleep(LOOK_EVERY)
            if some := system.begun[reported:]:
                say(begun=len(some), at=some[0])
                reported += len(some)
    await system.close()


WORKLOADS: Mapping[str, Callable[[System, Sizes], Awaitable[Values]]] = {
    "drain": drain, "drain_1kb": drain, "drain_two": drain_two, "three_steps": three_steps,
    "three_steps_1kb": three_steps, "ten_steps": ten_steps, "start": start, "start_many": start_many,
    "families": families, "parked": parked, "signal_latency": signal_latency, "timer": timer, "latency": latency,
    "idle": idle, "fast_latency": latency, "fast_idle": idle,
}  # fmt: skip


def main(kind: type[System]) -> None:
    """The process of one system: one workload, once."""
    parser = argparse.ArgumentParser(description=kind.__doc__)
    parser.add_argument("url")
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("knobs", nargs="*", metavar="KNOB=VALUE")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--second", action="store_true", help="only work, beside the process that measures")
    options = parser.parse_args()
    knobs = {name: float(value) for name, _, value in (word.partition("=") for word in options.knobs)}
    if unknown := set(knobs) - set(kind.knobs):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(kind.knobs) or 'none'}")
    settings = kind.settings.format(**{name: f"{value:g}" for name, value in {**kind.knobs, **knobs}.items()})
    if kind.default_poll is not None and options.workload.endswith(IDLE):
        knobs["poll"] = kind.default_poll if options.workload in ("latency", "idle") else FAST_POLL
    uvloop = import_module("uvloop").new_event_loop if find_spec("uvloop") else None
    with asyncio.Runner(loop_factory=uvloop) as runner:
        system = kind(options.url, options.workload, knobs)
        if options.second:
            runner.run(be_second(system))
            return
        say(settings=settings, versions={package: version(package) for package in kind.packages})
        runner.run(_measure(kind, system, is_quick=options.quick))


async def _measure(kind: type[System], system: System, *, is_quick: bool) -> None:
    if system.workload.startswith("fast_") and kind.default_poll is None:
        say(missing="the database notifies it of a start, it does not wait for a poll")
        return
    try:
        await system.install()
        await system.open()
        values = await WORKLOADS[system.workload](system, Sizes(kind.scale, is_quick))
        await system.close()
        await system.asker.close()
        say(values=values, note=kind.notes.get(system.workload))
    except Missing as why:
        say(missing=str(why))
