"""Processes that stop themselves between two statements, as their parent handles them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

from stepwell.errors import InvalidInput
from stepwell.testing.stops.child_process import Reference, packed, resolve
from stepwell.testing.stops.report import Gap
from stepwell.testing.stops.slowness import Computer

How: TypeAlias = Literal["halt", "kill"]
LARGEST_LINE = 1 << 24
LAST_LINES = 12
_SERVE = "import sys; from stepwell.testing.stops.child_process import serve; serve(sys.argv[1])"


class Process:
    """One worker or client process."""

    def __init__(self, log: Path) -> None:
        self.pid = 0
        self.backend = 0  # of the connection that had a transaction open when the process stopped itself
        self.passed: list[Gap] = []
        self.started = asyncio.Event()
        self.ready = asyncio.Event()
        self.stopped = asyncio.Event()
        self.ended = asyncio.Event()
        self.code: int | None = None
        self.problem = ""
        self._log = log

    def on_message(self, message: dict[str, Any]) -> None:
        """Take in one line of the process, or about it."""
        match message:
            case {"passed": [transaction, after, before]}:
                self.passed.append(Gap(transaction, after, before))
            case {"stopped": backend}:
                self.backend = backend
                self.stopped.set()
            case {"pid": pid}:
                self.pid = pid
                self.started.set()
            case {"ended": code}:
                self.code, self.problem = code, message.get("problem", "")
                for event in (self.started, self.ready, self.ended):
                    event.set()
            case _:
                self.ready.set()

    def resume(self) -> None:
        """Continue it after a halt."""
        self._send(signal.SIGCONT)

    async def end(self) -> int | None:
        """Let it drain and end."""
        self._send(signal.SIGTERM)
        await self.ended.wait()
        return self.code

    async def kill(self) -> None:
        self._send(signal.SIGKILL)
        await self.ended.wait()

    def last_words(self) -> str:
        """The end of its log."""
        if self.problem or not self._log.exists():
            return self.problem
        return "\n".join(self._log.read_text().splitlines()[-LAST_LINES:])

    def _send(self, number: int) -> None:
        if self.pid and not self.ended.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class Forks:
    """A process that has imported everything, and the processes that it has forked; it also measures how busy they
    keep the computer.
    """

    def __init__(self) -> None:
        self.computer = Computer()
        self._numbers = itertools.count()
        self._processes: dict[int, Process] = {}

    async def __aenter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="stepwell-stops-")
        self._server = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _SERVE, json.dumps([path or str(Path.cwd()) for path in sys.path]),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=LARGEST_LINE,
        )  # fmt: skip
        self._requests: Any = self._server.stdin
        self._answers: Any = self._server.stdout
        self._reader = asyncio.create_task(self._read_messages(), name="stepwell stops")
        self._measuring = asyncio.create_task(self.computer.run(), name="stepwell slowness")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._measuring.cancel()
        self._requests.close()  # with it, all its forks are killed
        await self._server.wait()
        await self._reader
        self._folder.cleanup()

    async def start(self, request: dict[str, Any]) -> Process:
        """Start a process."""
        number = next(self._numbers)
        log = Path(self._folder.name) / f"{number}.log"
        process = self._processes[number] = Process(log)
        self._requests.write((json.dumps({"id": number, "log": str(log), **request}) + "\n").encode())
        await process.started.wait()
        return process

    async def _read_messages(self) -> None:
        while line := await self._answers.readline():
            message = json.loads(line)
            self._processes[message["id"]].on_message(message)
        for process in self._processes.values():  # their parent has ended, and so have they
            process.on_message({"ended": process.code})


class Processes:
    """Starts processes that have the same machines and settings."""

    def __init__(self, forks: Forks, machines: Iterable[Any], options: dict[str, Any]) -> None:
        self._forks = forks
        self.computer = forks.computer
        self._common = {"machines": [reference_of(machine) for machine in machines], "options": packed(options)}

    async def start(
        self, url: str, *, gap: Gap | None = None, how: How = "halt", act: Reference | None = None,
        crash: str | None = None,
    ) -> Process:  # fmt: skip
        """Start a worker, or a client that acts; it stops itself where it reaches the gap for the first time."""
        wanted = None if gap is None else (gap.transaction, gap.after, gap.before)
        return await self._forks.start(
            {**self._common, "url": url, "gap": wanted, "how": how, "act": act, "crash": crash}
        )


def reference_of(thing: Any) -> Reference:
    """Where another process finds it: an importable module, and the name in it."""
    name = getattr(thing, "__qualname__", None)
    references = [(str(getattr(thing, "__module__", "")), str(name))] if name else []
    for module, found in list(sys.modules.items()):
        references += [(module, name) for name, value in list(vars(found).items()) if value is thing]
    for module, name in references:
        with contextlib.suppress(ImportError, AttributeError):
            if module != "__main__" and resolve((module, name)) is thing:
                return module, name
    raise InvalidInput("machines", f"{thing!r} cannot be found by another process; define it in a module, "
                       "not inside a function")
