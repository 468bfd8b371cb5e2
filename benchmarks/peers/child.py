"""The process of one system that measures one workload: its values, or why there are none."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TAIL = 400  # characters of its standard error, if it failed


@dataclass(frozen=True, slots=True)
class Answer:
    """What one process found. Without values it says why: the system lacks the feature, or it failed."""

    values: Mapping[str, float] = field(default_factory=dict)
    note: str | None = None
    missing: str | None = None
    failed: str | None = None
    settings: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)


async def measure(command: Sequence[str], seconds: float) -> Answer:
    """Run it to its end, or for `seconds` at most."""
    async with started(command) as process:
        try:
            async with asyncio.timeout(seconds):
                written, complaint = await ended(process)
        except TimeoutError:
            return Answer(failed=f"cut off after {seconds:g} s")
    return read(written.decode(), process.returncode, complaint.decode(errors="replace"))


@asynccontextmanager
async def started(command: Sequence[str]) -> AsyncIterator[Process]:
    """The process, with everything that it starts in one group, which does not outlive the block."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def ended(process: Process) -> tuple[bytes, bytes]:
    """What it wrote, once it has ended; its standard input is closed."""
    if process.stdin is not None:
        process.stdin.close()
    return await process.communicate()


async def until_ready(process: Process) -> tuple[bool, str]:
    """Read until it is ready; False if it ends before. With it the lines so far."""
    lines: list[str] = []
    stream = process.stdout or asyncio.StreamReader()
    async for line in stream:
        if "ready" in json.loads(line):
            return True, "".join(lines)
        lines.append(line.decode())
    return False, "".join(lines)


def read(written: str, code: int | None, complaint: str) -> Answer:
    """The answer in the lines of a process."""
    facts: dict[str, Any] = {}
    for line in written.splitlines():
        facts |= json.loads(line)
    facts.pop("ready", None)
    if code != 0 or not facts.keys() & {"values", "missing"}:
        facts |= {"failed": f"ended with {code}: …{complaint.strip()[-TAIL:]}", "values": {}}
    return Answer(**facts)


