"""A worker in a process of its own: `python -m benchmarks.process URL`.

Prints a line of "steps committed, megabytes resident" every 50 ms, and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import resource
import sys
from pathlib import Path

from benchmarks import machines
from benchmarks.bench import QUEUES
from benchmarks.loop import run
from stepwell import Engine

EVERY = 0.05
STATM = Path("/proc/self/statm")


def megabytes() -> float:
    """What this process has in memory; where there is no /proc, the most it ever had."""
    if STATM.exists():
        return int(STATM.read_text().split()[1]) * resource.getpagesize() / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # macOS counts bytes


async def main(url: str) -> None:
    over = asyncio.Event()
    reader = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    reader.add_done_callback(lambda _: over.set())
    async with Engine(url, machines=machines.ALL, queues=QUEUES) as engine, engine.worker() as worker:
        while not over.is_set():
            sys.stdout.write(f"{worker.tally.committed} {megabytes():.1f}\n")
            sys.stdout.flush()
            await asyncio.sleep(EVERY)


if __name__ == "__main__":
    run(main(sys.argv[1]))
