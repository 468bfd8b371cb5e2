"""Bulk calls through the engine's API at its default settings: `start_many`, and a spawn to its join."""

from __future__ import annotations

import resource
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import perf_counter, process_time

from benchmarks import machines
from benchmarks.bench import query
from benchmarks.growth.meter import nanoseconds
from benchmarks.machines import Family, Once
from stepwell import Engine

HEAD = ("at once", "seconds", "Python, CPU s", "server, CPU s", "more memory in Python, MB")
STARTS, CHILDREN = 100_000, 10_000
PATIENCE = 600.0

_BACKENDS = "select pid from pg_stat_activity where datname = current_database() and application_name like 'stepwell%'"


@dataclass(frozen=True, slots=True)
class Bulk:
    """What one such call took, to its end."""

    label: str
    seconds: float
    python: float
    server: float
    memory: float

    def cells(self) -> tuple[str, ...]:
        return (
            self.label, f"{self.seconds:.1f}", f"{self.python:.1f}", f"{self.server:.1f}", f"{self.memory:,.0f}",
        )  # fmt: skip


async def bulks(url: str, divisor: int) -> list[Bulk]:
    """On a migrated database: start many, then spawn many with a worker in this process."""
    starts, children = STARTS // divisor, CHILDREN // divisor
    async with Engine(url, machines=machines.ALL) as engine:
        entries = [Once.child({"note": ""})] * starts

        async def start() -> None:
            await engine.start_many(entries)

        async def spawn() -> None:
            handle = await engine.start(Family, {"children": children})
            await handle.result(PATIENCE)

        started = await _bulk(f"`start_many` of {starts:,}", url, start)
        await query(url, "truncate stepwell.instances, stepwell.instance_data")
        async with engine.worker():
            spawned = await _bulk(f"a spawn of {children:,}, from start to join, 50 slots", url, spawn)
    return [started, spawned]


async def _bulk(label: str, url: str, work: Callable[[], Awaitable[None]]) -> Bulk:
    server, memory, python, began = await _server(url), _most_memory(), process_time(), perf_counter()
    await work()
    seconds, used = perf_counter() - began, process_time() - python
    return Bulk(label, seconds, used, await _server(url) - server, _most_memory() - memory)


async def _server(url: str) -> float:
    """Seconds on a core, of the engine's backends."""
    return sum(nanoseconds(row["pid"]) for row in await query(url, _BACKENDS)) / 1e9


def _most_memory() -> float:
    """The most memory that this process ever had, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
