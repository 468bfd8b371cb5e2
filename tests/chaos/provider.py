"""The external system: completes what was sent, sometimes twice, sometimes with another reply."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

from stepwell import CompletionRefused, Engine
from tests.chaos.conversations import WRONG, points
from tests.chaos.findings import Findings
from tests.chaos.replicas import Replicas
from tests.chaos.workload import Workload

OPEN = """
select q.id::text, q.request ->> 'subject' as subject, (q.request ->> 'number')::integer as number,
       u.machine = 'ranking' as is_scored
from stepwell.interactions q
join stepwell.await_units u on u.id = q.unit_id
where q.status in ('dispatching', 'dispatched')
limit 1000
"""
PAUSE = 0.1
AT_ONCE = 8


class Provider:
    def __init__(
        self, engine: Engine, replicas: Replicas, wire: Path, workload: Workload, findings: Findings, seed: int
    ) -> None:
        self._engine = engine
        self._wire = wire
        self._read = 0  # bytes of it
        self._received: set[str] = set()
        self._replicas = replicas
        self._workload = workload
        self._findings = findings
        self._dice = random.Random(f"{seed} provider")  # noqa: S311 - not a secret
        self._under_way: dict[str, asyncio.Task[None]] = {}
        self.admitted = 0
        self.repeated: Counter[str] = Counter()
        self.ambiguous: set[str] = set()  # interactions that may have either reply

    async def run(self) -> None:
        """Complete interactions until cancelled."""
        while True:
            try:
                rows = await self._replicas.primary.query(OPEN, timeout=5)
                self._receive()
            except Exception as error:  # noqa: BLE001 - the server may be down: it is asked again
                self.repeated[type(error).__name__] += 1
                rows = []
            for row in rows:
                is_new = row["id"] in self._received and row["id"] not in self._under_way
                if is_new and len(self._under_way) < AT_ONCE:
                    task = asyncio.create_task(self._answer(row))
                    self._under_way[row["id"]] = task
                    task.add_done_callback(lambda _, id_=row["id"]: self._under_way.pop(id_))
            await asyncio.sleep(PAUSE)

    def _receive(self) -> None:
        with self._wire.open("rb") as wire:
            wire.seek(self._read)
            text = wire.read()
        self._read += len(text)
        self._received |= set(text.decode().split())

    async def _answer(self, row: Any) -> None:
        failovers = self._workload.failovers
        if not await self._complete(row, points(row["number"])) or self._dice.random() > 0.3:
            return
        if self._dice.random() < 0.5:
            await self._complete(row, points(row["number"]))
            return
        question = f"{row['subject']}/{row['number']}"
        self.ambiguous.add(question)
        admitted = await self._complete(row, points(row["number"]) + WRONG)
        if failovers == self._workload.failovers:
            if admitted:
                self._findings.doubled.append(f"{question} took two different answers")
            if admitted is False:
                self.ambiguous.discard(question)

    async def _complete(self, row: Any, value: int) -> bool | None:
        """Whether the completion was accepted; None if that is unknown."""
        reply = {"number": row["number"], "points": value} if row["is_scored"] else value
        try:
            await self._engine.complete(interaction=row["id"], reply=reply)
        except CompletionRefused:
            return False
        except Exception as error:  # noqa: BLE001 - the provider repeats it when it finds the question open
            self.repeated[type(error).__name__] += 1
            return None
        self.admitted += 1
        return True
