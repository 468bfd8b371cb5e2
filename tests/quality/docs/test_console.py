"""Commands on the pages exist, and the tutorial can be followed from its first line to its last."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from stepwell._cli.main import COMMANDS, _build_parser
from tests.conftest import MakeHarness
from tests.quality.docs.pages import ROOT, Block, blocks, pages, rows

TUTORIAL = ROOT / "docs" / "tutorial.md"
OTHERS = {"curl", "pip", "pytest", "make", "kill", ".ci/run", "git", "python", "node", "npm", "psql", "export"}
PATIENCE = 60.0
ORDER = '{"items": ["teapot", "cup", "spoon"], "seconds": 1}'  # as in the tutorial, but in less time


def _commands() -> Iterator[tuple[Block, list[str]]]:
    for page in pages():
        for block in blocks(page):
            if block.language == "console":
                for line in block.text.splitlines():
                    if line.startswith("$ "):
                        yield block, shlex.split(line.removeprefix("$ "), comments=True)


@pytest.mark.parametrize("command", [
    pytest.param(words[1:], id=f"{block.where} {shlex.join(words)}")
    for block, words in _commands() if words[0] == "stepwell"
])  # fmt: skip
def test_every_stepwell_command_on_a_page_parses(command: list[str]) -> None:
    args = _build_parser(command[0]).parse_args(command)

    assert command[0] in COMMANDS
    assert callable(args.run)


@pytest.mark.parametrize("command", [
    pytest.param(words[3:], id=f"{block.where} {shlex.join(words)}")
    for block, words in _commands() if words[:3] == ["python", "manage.py", "stepwell"]
])  # fmt: skip
def test_every_django_command_on_a_page_parses(command: list[str]) -> None:
    parser = _build_parser(command[0], "manage.py stepwell", "stepwell.contrib.django:engine")

    assert callable(parser.parse_args(command).run)


def test_every_other_command_on_a_page_is_available_to_readers() -> None:
    unknown = [f"{block.where}: {words[0]}" for block, words in _commands() if words[0] not in {"stepwell", *OTHERS}]

    assert unknown == []


def test_the_table_of_settings_has_the_flags_of_the_worker() -> None:
    table = rows(ROOT / "docs" / "guides" / "workers.md", "Every setting")
    shown = {row[3].strip("`") for row in table if row[3]}

    parser = _build_parser("worker")
    for flag in shown:
        value = "default=1" if flag == "--queue" else "1"
        parser.parse_args(["worker", "app:engine", flag, value])
    for setting in (row[0].strip("`") for row in table if not row[3]):
        with pytest.raises(SystemExit):
            parser.parse_args(["worker", "app:engine", f"--{setting.replace('_', '-')}", "1"])


class Reader:
    """A reader with a terminal, in a folder with the files that the tutorial tells to save."""

    def __init__(self, folder: Path, database: str) -> None:
        self.folder = folder
        self._environment = {**os.environ, "STEPWELL_DATABASE_URL": database, "PYTHONUNBUFFERED": "1"}
        for block in blocks(TUTORIAL):
            if block.file_name is not None:
                (folder / block.file_name).write_text(block.text, "utf-8")

    async def run(self, *words: str) -> str:
        """Run a command to its end; returns what it printed."""
        process = await self._start(*words)
        async with asyncio.timeout(PATIENCE):
            output, _ = await process.communicate()
        assert process.returncode == 0, output.decode()
        return output.decode()

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[Process]:
        """A worker in another terminal, ready; killed at the end if it still runs."""
        process = await self._start("stepwell", "worker", "shop:engine")
        try:
            await read_until(process, "ready: default=50")
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            await process.communicate()

    async def _start(self, *words: str) -> Process:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", *words, cwd=self.folder, env=self._environment, stdout=PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip


async def read_until(process: Process, text: str) -> str:
    """Read the lines of a process up to the one with this text; returns them."""
    seen = ""
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE):
        while line := (await process.stdout.readline()).decode():
            seen += line
            if text in line:
                return seen
    raise AssertionError(f"{text!r} never came: {seen}")


async def test_the_tutorial_can_be_followed_and_its_order_survives_kill_9(
    make_harness: MakeHarness, tmp_path: Path
) -> None:
    h = await make_harness()
    reader = Reader(tmp_path, h.url)

    async with reader.worker() as first:
        order = await reader.run("stepwell", "start", "shop:engine", "Order", ORDER)
        before = await read_until(first, "packing cup, attempt 0")
        os.kill(first.pid, signal.SIGKILL)
        await first.wait()
    killed = await reader.run("stepwell", "show", order.strip())
    async with reader.worker() as second:
        after = await read_until(second, "packing spoon, attempt 0")
        instance = await h.engine.wait(int(order), timeout=PATIENCE)
        second.send_signal(signal.SIGINT)
        assert await second.wait() == 0
    listed = await reader.run("stepwell", "ls")

    assert "packing teapot, attempt 0" in before
    assert "executing" in killed
    assert '"packed": 1' in killed
    assert "packing cup, attempt 1" in after
    assert "teapot" not in after
    assert instance.result == {"items": 3, "parcel": f"P-{order.strip()}"}
    assert listed.splitlines()[1].split()[:5] == [order.strip(), "Order", "ship", "done", "0"]


async def test_the_test_that_the_tutorial_shows_passes(tmp_path: Path) -> None:
    reader = Reader(tmp_path, "")

    output = await reader.run("pytest", "-q", "-p", "no:cacheprovider", "test_shop.py")

    assert "1 passed" in output
