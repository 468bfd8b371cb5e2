"""examples/csv_payments with 10,000 rows, from the start of the pipeline to the output file, over Kafka on loopback."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from time import perf_counter

from benchmarks.bench import QUEUES, Bench
from benchmarks.figures import Measure, Share, Workload
from examples.csv_payments.listing import list_folder
from examples.csv_payments.pipeline import in_python
from examples.csv_payments.processes import TOKEN_KEYS, Processes
from examples.csv_payments.samples import write_sample
from examples.csv_payments.writing import read_output
from stepwell import Engine
from stepwell.pipelines import Pipeline

ROWS = 10_000
REJECT = 0.08
PATIENCE = 300
LARGE = {"window": 2_000, "batch": 1_000, "max_in_flight": 1_000}  # so that a statement has many rows


async def run(bench: Bench) -> dict[str, float]:
    number = bench.size(ROWS, 20)
    with tempfile.TemporaryDirectory(prefix="stepwell-bench-") as home:
        async with _working(bench, Path(home)) as (engine, pipeline):
            await _pay(engine, pipeline, Path(home) / "first", 1)  # then both sides have joined their groups
            return {"rate": number / await _pay(engine, pipeline, Path(home) / "payments", number)}


@asynccontextmanager
async def _working(bench: Bench, logs: Path) -> AsyncIterator[tuple[Engine, Pipeline]]:
    """A worker in this process; the provider and the cluster each have their own."""
    async with AsyncExitStack() as stack:
        processes = await stack.enter_async_context(Processes(logs, bench.url, reject=REJECT))
        await processes.provider()
        pipeline = in_python(processes.brokers, **LARGE)
        engine = Engine(
            bench.url, machines=[pipeline], transports=pipeline.transports, token_keys=TOKEN_KEYS, queues=QUEUES
        )
        await engine.migrate()
        await stack.enter_async_context(engine)
        await stack.enter_async_context(engine.worker())
        yield engine, pipeline


async def _pay(engine: Engine, pipeline: Pipeline, folder: Path, rows: int) -> float:
    """Seconds for this many payments; checks that each is in the output."""
    _write(folder, rows)
    began = perf_counter()
    started = await engine.start(pipeline, list_folder(folder))
    await started.result(timeout=PATIENCE)
    seconds = perf_counter() - began
    if [row["CSV Id"] for row in read_output(folder / "payments.csv.out")] != [str(n) for n in range(1, rows + 1)]:
        raise RuntimeError("the output is not as expected")
    return seconds


def _write(folder: Path, rows: int) -> None:
    folder.mkdir()
    write_sample(folder / "payments.csv", rows)


WORKLOAD = Workload(
    "csv_payments",
    {"rate": Measure("csv-payments: 10,000 rows over Kafka, from file to file", "rows/s", Share(0.03, "steps"))},
    run,
)
