"""An idle worker: its statements per minute, and its part of a core.

Both are measured in a few seconds. For the statements every interval is a tenth of its default, so that 9 seconds are
a minute and a half; `tests/store/test_idle.py` counts them to the last one. For the core the settings are the
defaults.
"""

from __future__ import annotations

import asyncio
from time import perf_counter, process_time

from benchmarks.bench import Bench
from benchmarks.figures import Measure, Most, Workload
from stepwell import Engine
from stepwell._notify.notifier import PROBE_EVERY
from stepwell._worker.worker import Worker
from stepwell.config import Settings

FASTER = 10
INTERVALS = ("poll", "max_poll", "heartbeat", "lease", "reap", "prune")
MINUTE = 60.0


async def run(bench: Bench) -> dict[str, float]:
    seconds = 0.2 if bench.is_quick else 9.0
    defaults = Settings()
    async with bench.working() as _:
        await asyncio.sleep(seconds / 6)  # it started a moment ago, and polls slower from now on
        core, began = process_time(), perf_counter()
        await asyncio.sleep(seconds)
        share = (process_time() - core) / (perf_counter() - began)
    async with bench.working(**{name: getattr(defaults, name) / FASTER for name in INTERVALS}) as (engine, worker):
        await asyncio.sleep(seconds / 6)
        before = _sent(engine, worker)
        await asyncio.sleep(seconds)
        sent = (_sent(engine, worker) - before) * MINUTE / (seconds * FASTER)
    probes = MINUTE / PROBE_EVERY  # no setting makes them faster: nearly none of them falls into the window
    return {"statements": sent + probes, "core": share * 100}


def _sent(engine: Engine, worker: Worker) -> int:
    counted = engine._opened, worker._database, worker  # noqa: SLF001 - counters for tests and benchmarks only
    return sum(each.statements for each in counted)


WORKLOAD = Workload(
    "idle",
    {
        "statements": Measure("idle worker", "statements/min", Most(30)),
        "core": Measure("idle worker", "% of a core", Most(0.5)),
    },
    run,
    repeats=1,
)
