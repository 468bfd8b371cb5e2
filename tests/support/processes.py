"""Worker processes of tests: started, frozen, woken, killed, and gone when the test has ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from tests.support.process_forker import Forked

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0


class WorkerProcess:
    """One `tests.support.worker_process`."""

    def __init__(self, process: Forked) -> None:
        self._process = process
        self.pid = process.pid

    @classmethod
    async def start(
        cls, url: str, *, crash: str | None = None, nth: int = 1, module: str = "worker_process",
        options: Sequence[str] = (), **settings: Any,
    ) -> Self:  # fmt: skip
        """Start it; settings are as for an engine, with times as seconds in floats."""
        armed = () if crash is None else ("--crash", crash, "--nth", str(nth))
        given = (url, "--settings", json.dumps(settings), *armed, *options)
        return cls(await Forked.start(f"tests.support.{module}", given))

    async def ready(self) -> int:
        """Wait until its worker has started; returns the worker's id."""
        async with asyncio.timeout(PATIENCE):
            word, _, worker_id = (await self._process.stdout.readline()).decode().partition(" ")
        assert word == "ready", f"the worker process ended with {self._process.returncode}"
        return int(worker_id)

    async def ended(self) -> int:
        """Wait for its end; returns the exit code, negative for a signal."""
        async with asyncio.timeout(PATIENCE):
            return await self._process.wait()

    async def ended_within(self, seconds: float) -> bool:
        """Wait for its end, but not for long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._process.wait()
        return not self.is_alive

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    async def stop(self) -> None:
        """Let it drain and end."""
        self._process.terminate()
        assert await self.ended() == 0

    async def kill(self) -> None:
        if self.is_alive:
            self._process.kill()
        await self.ended()
        await self._process.stdout.read()


class WorkerProcesses:
    """Starts worker processes, and ends those that are left."""

    def __init__(self) -> None:
        self._started: list[WorkerProcess] = []

    async def start(self, url: str, **options: Any) -> WorkerProcess:
        self._started.append(await WorkerProcess.start(url, **options))
        return self._started[-1]

    async def end(self) -> None:
        for worker in self._started:
            await worker.kill()


@asynccontextmanager
async def worker_processes() -> AsyncIterator[WorkerProcesses]:
    started = WorkerProcesses()
    try:
        yield started
    finally:
        await started.end()
