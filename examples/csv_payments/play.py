"""The demonstration: payments continue while the worker and the provider are killed; then the output is checked."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import asyncpg

from examples.csv_payments.listing import list_folder
from examples.csv_payments.pipeline import WRITTEN
from examples.csv_payments.processes import TOKEN_KEYS, Processes, Running
from examples.csv_payments.progress import Progress
from examples.csv_payments.reading import read_lines
from examples.csv_payments.records import OUTPUT_SUFFIX
from examples.csv_payments.rules import COMPLETE, REJECTED, judge
from examples.csv_payments.writing import read_output
from stepwell import Engine, Handle

LOOK_EVERY: Final = 0.1  # seconds
LONGEST: Final = 600.0
COUNTS: Final = """
select (select count(*) from stepwell.interactions q where q.instance_id = $1
         and q.status not in ('queued', 'waiting')) as asked,
       (select count(*) from stepwell.interactions q where q.instance_id = $1 and q.status = 'completed') as answered,
       (select count(*) from stepwell.instances i where i.parent_id = $1 and i.status = 'done') as settled
"""


class PlayFailed(Exception):
    """The demonstration did not go as expected."""


@dataclass
class Play:
    """One run over a folder with one sample file."""

    url: str
    processes: Processes
    source: Path
    rows: int
    reject: float
    written: str = "yaml"
    kills: bool = True
    progress: Progress = field(init=False)

    def __post_init__(self) -> None:
        self.progress = Progress(self.rows)

    async def perform(self) -> None:
        """Run from the start to the checked file."""
        pipeline = WRITTEN[self.written](self.processes.brokers)
        async with Engine(
            self.url, machines=[pipeline], transports=pipeline.transports, token_keys=TOKEN_KEYS
        ) as engine:
            worker, provider = await self.processes.worker(self.written), await self.processes.provider()
            self._say(f"worker {worker.pid}, provider {provider.pid} and a Kafka cluster run; the pipeline is written "
                      f"in {self.written}")  # fmt: skip
            folder = list_folder(self.source.parent)
            run = await engine.start(pipeline, folder, key=f"csv-payments:{folder.path}")
            self._say(f"csv-payments #{run.id} is started over {folder.path}, with {self.rows:,} payments")
            async with asyncio.timeout(LONGEST):
                await self._follow(run, [provider, worker] if self.kills else [])
        self._check()

    def _say(self, line: str) -> None:
        self.progress.say(line)

    async def _follow(self, run: Handle, to_kill: Sequence[Running]) -> None:
        """Show the progress; kill one process after the other meanwhile."""
        victims = [(self.rows * (place + 1) // 4, one) for place, one in enumerate(to_kill)]
        connection = await asyncpg.connect(self.url)
        try:
            while (instance := await run.wait(timeout=LOOK_EVERY)).finished_at is None:
                counts = await self._counts(connection, run.id)
                if victims and counts["answered"] >= victims[0][0]:
                    await self._kill(victims.pop(0)[1])
            await self._counts(connection, run.id)
        finally:
            await connection.close()
        self.progress.finish()
        if instance.error is not None:
            raise PlayFailed(f"the pipeline failed: {instance.error}")
        if victims:
            raise PlayFailed("it had ended before all processes were killed; take more rows")

    async def _counts(self, connection: Any, instance_id: int) -> dict[str, int]:
        counts = dict(await connection.fetchrow(COUNTS, instance_id))
        self.progress.show(counts)
        return counts

    async def _kill(self, running: Running) -> None:
        await running.kill()
        self._say(f"kill -9 {running.pid}: the {running.name} is dead")
        another = await (self.processes.worker(self.written) if running.name == "worker" else self.processes.provider())
        self._say(f"another {running.name} runs, process {another.pid}")

    def _check(self) -> None:
        """Check that the output has one line per payment, in their order, each with the provider's reply."""
        path = self.source.with_name(self.source.name + OUTPUT_SUFFIX)
        found = read_output(path)
        payments = [line.payment for line in read_lines(self.source) if line.payment is not None]
        expected = [(one.csv_id, str(one.amount), judge(one, self.reject).message) for one in payments]
        if [(row["CSV Id"], row["Amount"], row["Message"]) for row in found] != expected:
            raise PlayFailed(f"{path} is not as expected")
        messages = Counter(row["Message"] for row in found)
        self._say(f"{path} has all {len(found):,} payments, each once, in the order of the input")
        self._say(f"{messages[COMPLETE[1]]:,} approved, {messages[REJECTED[1]]:,} not")
