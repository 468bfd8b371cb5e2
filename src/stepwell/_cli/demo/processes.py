"""The processes of the demo: workers that can be killed, and commands that start and signal."""

from __future__ import annotations

import asyncio
import shlex
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from pathlib import Path

APP = "stepwell._cli.demo.app:engine"


class WorkerProcess:
    """`stepwell worker` on the demo's app; its log goes to a file."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self._folder = folder
        self._log = folder / f"worker-{name}.log"
        self._process: Process | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process is not None and self._process.returncode is not None

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    async def start(self) -> bool:
        """Start it; True once it reports that it is ready, False if it ends instead."""
        with self._log.open("wb") as log:
            # Its own session: Ctrl-C reaches only the demo, which then ends its workers.
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "stepwell", "worker", APP, "--queue", "default=4",
                stdin=DEVNULL, stdout=PIPE, stderr=log, cwd=self._folder, start_new_session=True,
            )  # fmt: skip
        if self._process.stdout is None:
            return False
        return b" ready: " in await self._process.stdout.readline()

    async def kill(self) -> None:
        """Send kill -9, unless it has ended."""
        if self._process is not None and not self.has_ended:
            self._process.send_signal(signal.SIGKILL)
            await self._process.wait()

    async def end(self) -> None:
        """Send SIGTERM, and wait while it drains."""
        if self._process is not None and not self.has_ended:
            self._process.terminate()
            await self._process.wait()


class Command:
    """One `stepwell` command, run to its end in a process of its own."""

    def __init__(self, *words: str) -> None:
        self._words = words
        self.pid = 0
        self.output = ""

    def __str__(self) -> str:
        return shlex.join(("stepwell", *self._words))

    async def run(self, folder: Path) -> bool:
        """Run it; True if it exits with 0. `output` has all that it printed."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "stepwell", *self._words,
            stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, cwd=folder, start_new_session=True,
        )  # fmt: skip
        self.pid = process.pid
        try:
            self.output = (await process.communicate())[0].decode(errors="replace")
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return process.returncode == 0
