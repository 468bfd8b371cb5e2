"""The processes of the example: a cluster that stays, a provider and workers that may be killed and started again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
APP: Final = "examples.csv_payments.app:engine"
TOKEN_KEYS: Final = "example:a-secret-of-at-least-32-bytes-from-a-vault"  # noqa: S105 - of an example
LONGEST_START: Final = 60.0  # seconds


class Running:
    """One process; it logs to a file."""

    def __init__(self, name: str, words: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
        self.name = name
        self._words = words
        self._env = {**own_environment(), **env}
        self._log = folder / f"{name}.log"
        self._process: Process | None = None

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    @property
    def has_ended(self) -> bool:
        return self._process is not None and self._process.returncode is not None

    async def start(self, *, prints_ready: bool = True) -> str:
        """Start it; returns its first line, unless it prints nothing when it is ready."""
        with self._log.open("ab") as log:
            # Its own session: Ctrl-C reaches only the parent, which then ends its processes.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", *self._words, stdin=PIPE, stdout=PIPE if prints_ready else DEVNULL, stderr=log,
                cwd=ROOT, env=self._env, start_new_session=True,
            )  # fmt: skip
        if self._process.stdout is None:
            return ""
        async with asyncio.timeout(LONGEST_START):
            line = (await self._process.stdout.readline()).decode().strip()
        if not line:
            raise RuntimeError(f"{self.name} did not start:\n{self.log}")
        return line

    async def kill(self) -> None:
        """Send kill -9, unless it has ended."""
        await self._send(signal.SIGKILL)

    async def end(self) -> None:
        await self._send(signal.SIGTERM)

    async def _send(self, number: int) -> None:
        if self._process is not None and not self.has_ended:
            self._process.send_signal(number)
            await self._process.wait()


class Processes:
    """Those of one run: `async with Processes(folder, url) as running:`."""

    def __init__(self, folder: Path, url: str, *, kafka: Mapping[str, Any] | None = None, **provider: object) -> None:
        self._folder = folder
        self._url = url
        self._kafka = json.dumps(kafka or {})
        self._provider_words = [f"--{name}={value}" for name, value in provider.items()]
        self._all: list[Running] = []
        self.brokers = ""

    async def __aenter__(self) -> Processes:
        topics = ("requests", "results", "results.dead")
        words = ["examples.csv_payments.cluster", *(f"csv-payments.payment.{topic}" for topic in topics)]
        self.brokers = await self._running("cluster", words).start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for running in reversed(self._all):
            await running.kill()

    async def provider(self) -> Running:
        """Start a provider."""
        words = ["examples.csv_payments.provider", f"--config={self._kafka}", *self._provider_words]
        running = self._running("provider", words)
        await running.start(prints_ready=False)
        return running

    async def worker(self, written: str = "yaml") -> Running:
        """Start a worker."""
        running = self._running("worker", ["stepwell", "worker", APP], CSV_PAYMENTS_WRITTEN=written)
        await running.start()
        return running

    @property
    def logs(self) -> str:
        names = dict.fromkeys(running.name for running in self._all)
        return "\n".join(f"{name}:\n{(self._folder / f'{name}.log').read_text(errors='replace')}" for name in names)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the app."""
        return {
            "STEPWELL_DATABASE_URL": self._url, "STEPWELL_TOKEN_KEYS": TOKEN_KEYS, "KAFKA_BROKERS": self.brokers,
            "CSV_PAYMENTS_KAFKA": self._kafka,
        }  # fmt: skip

    def _running(self, name: str, words: Sequence[str], **env: str) -> Running:
        self._all.append(Running(name, words, self._folder, {**self.environment, **env}))
        return self._all[-1]


def own_environment() -> dict[str, str]:
    """The environment of this process, without settings of other apps."""
    return {
        name: value for name, value in os.environ.items()
        if not name.startswith("STEPWELL_") or name == "STEPWELL_DATA_HOME"
    }  # fmt: skip
