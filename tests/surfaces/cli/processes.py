"""The command line as a shell runs it: real processes, their output, their exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from stepwell._cli import commands
from tests.support.process_forker import run_forked

ROOT = Path(__file__).parents[3]
PATIENCE = 60.0
APP = "tests.surfaces.cli.app:engine"
COMMANDS = ["stepwell._cli.main", *(module.name for module in iter_modules(commands.__path__, f"{commands.__name__}."))]


@dataclass(frozen=True)
class Finished:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


async def stepwell(*args: object, url: str | None = None, given: str = "", cwd: str = "", **env: str) -> Finished:
    """Run `python -m stepwell` to its end, by a process that has imported what it needs."""
    async with asyncio.timeout(PATIENCE):
        ended = await run_forked(
            "stepwell", [*map(str, args)], imports=COMMANDS, cwd=cwd or str(ROOT), env=_environment(url, env),
            given=given,
        )  # fmt: skip
    return Finished(*ended)


class Running:
    """A command that runs in the background."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.pid = process.pid

    async def line(self) -> str:
        """Its next line on stdout."""
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            return (await self._process.stdout.readline()).decode().rstrip("\n")

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    async def says(self, text: str) -> None:
        """Wait until its log on stderr says so."""
        assert self._process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            while text not in (line := await self._process.stderr.readline()).decode():
                assert line, f"it ended without saying {text!r}"

    def close_stdout(self) -> None:
        """Stop reading, as `head` does."""
        self._process._transport.get_pipe_transport(1).close()  # type: ignore[attr-defined]  # asyncio has no door for it

    async def ended(self) -> Finished:
        """Wait for its end; returns what was not read before."""
        async with asyncio.timeout(PATIENCE):
            out, err = await self._process.communicate()
        assert self._process.returncode is not None
        return Finished(self._process.returncode, out.decode(), err.decode())

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
            await self._process.communicate()


@asynccontextmanager
async def running(*args: object, url: str | None = None, cwd: str = "", **env: str) -> AsyncIterator[Running]:
    """Run `python -m stepwell` in the background; killed at the end of the block if it still runs."""
    started = Running(await _start(args, url, cwd, env, stdin=DEVNULL))
    try:
        yield started
    finally:
        await started.kill()


async def _start(args: tuple[object, ...], url: str | None, cwd: str, env: dict[str, str], stdin: int) -> Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "stepwell", *map(str, args),
        stdin=stdin, stdout=PIPE, stderr=PIPE, cwd=cwd or ROOT, env=_environment(url, env),
    )  # fmt: skip


def _environment(url: str | None, env: dict[str, str]) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name != "STEPWELL_DATABASE_URL"}
    return inherited | ({} if url is None else {"STEPWELL_DATABASE_URL": url}) | env
