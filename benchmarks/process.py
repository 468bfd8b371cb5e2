"""A worker in its own process: `python -m benchmarks.process URL`, or `… URL streams` for the pipelines.

Prints a line of "steps committed, megabytes resident" every 50 ms, and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks import machines
from benchmarks.bench import QUEUES
from benchmarks.loop import run
from stepwell import Engine

EVERY = 0.05
STATM = Path("/proc/self/statm")


def megabytes() -> float:
    """The memory of this process; without /proc, the most it ever had."""
    if STATM.exists():
        return int(STATM.read_text().split()[1]) * resource.getpagesize() / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # macOS counts bytes


def run_by(name: str) -> dict[str, Any]:
    """What the worker runs; pipelines are only imported if they are run."""
    return {"machines": machines.ALL} if name == "machines" else dict(import_module(f"benchmarks.{name}").engine())


async def main(url: str, name: str = "machines") -> None:
    over = asyncio.Event()
    reader = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    reader.add_done_callback(lambda _: over.set())
    async with Engine(url, queues=QUEUES, **run_by(name)) as engine, engine.worker() as worker:
        while not over.is_set():
            sys.stdout.write(f"{worker.stats.committed} {megabytes():.1f}\n")
            sys.stdout.flush()
            await asyncio.sleep(EVERY)


if __name__ == "__main__":
    run(main(*sys.argv[1:]))
