"""The workers of a soak, in their own processes, and how many steps they have committed together."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).parents[2]


class Workers:
    """Processes of `benchmarks.process`, with these settings from their environment."""

    def __init__(self, url: str, number: int, settings: Mapping[str, object]) -> None:
        self._url = url
        self._number = number
        self._environment = os.environ | {f"STEPWELL_{name.upper()}": str(value) for name, value in settings.items()}
        self._committed: dict[int, int] = {}  # by pid
        self._processes: list[Process] = []
        self._readers: list[asyncio.Task[None]] = []

    @property
    def committed(self) -> int:
        """Steps, of all of them."""
        return sum(self._committed.values())

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    async def __aenter__(self) -> Self:
        for _ in range(self._number):
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "benchmarks.process", self._url,
                cwd=ROOT, stdin=PIPE, stdout=PIPE, env=self._environment,
            )  # fmt: skip
            self._processes.append(process)
            self._readers.append(asyncio.create_task(self._read(process)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()  # the end of its input ends it
        await asyncio.gather(*(process.wait() for process in self._processes), *self._readers)

    async def _read(self, process: Process) -> None:
        while process.stdout is not None and (line := await process.stdout.readline()):
            self._committed[process.pid] = int(line.split()[0])
