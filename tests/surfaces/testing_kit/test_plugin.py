"""The pytest plugin, in runs of its own: with pytest-asyncio, with anyio, with neither."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.quality.docs.pages import blocks

ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "docs" / "guides" / "testing.md"

AUTO = ("-p", "asyncio", "-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function")
MACHINE = """
import pytest
from stepwell import Done, Machine, step

class Greeting(Machine):
    @step
    async def start(self, ctx):
        return Done("hello")
"""

ASYNC = """
async def test_one_line(stepwell_harness):
    h = await stepwell_harness([Greeting])
    greeting = await h.engine.start(Greeting)
    await h.drain()
    await h.assert_done(greeting, "hello")

async def test_of_two(stepwell_harness):
    one, other = await stepwell_harness([Greeting]), await stepwell_harness([Greeting], queues={"a": 1})
    assert one.url != other.url
"""

BLOCKING = """
def test_without_await(stepwell_blocking_harness):
    h = stepwell_blocking_harness([Greeting])
    greeting = h.engine.start(Greeting, key="g")
    assert h.drain().total == 1
    assert h.assert_done(greeting, "hello").key == "g"
    assert greeting.result(timeout=5) == "hello"
    with pytest.raises(AssertionError, match="to have failed"):
        h.assert_failed("g")
"""

MISUSED = """
def test_not_async(stepwell_harness):
    pass

@pytest.fixture
async def early(stepwell_harness):
    return await stepwell_harness([Greeting])

async def test_too_early(early):
    pass
"""


def run(tmp_path: Path, tests: str, *options: str) -> str:
    """What pytest prints for these tests."""
    (tmp_path / "test_it.py").write_text(MACHINE + tests)
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "stepwell_pytest", *options, "."],
        cwd=tmp_path, env=_environment(), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    return ended.stdout + ended.stderr


def _environment() -> dict[str, str]:
    """A run without the plugins of this run: those that are wanted are named."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    return {**kept, "PYTHONPATH": str(ROOT / "src"), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def save_guide(folder: Path) -> None:
    """The tests that the guide shows, as a reader would save them."""
    shown = [block for block in blocks(GUIDE) if block.language == "python"]
    for block in shown:
        if block.file_name is not None:
            (folder / block.file_name).write_text(block.text)
    others = [block.text for block in shown if "def test_" in block.text and block.file_name is None]
    head = "from datetime import timedelta\nfrom shop import *\nfrom stepwell.testing import Harness\n"
    (folder / "test_others.py").write_text(head + "\n".join(others))


def test_the_plugin_runs_async_tests_with_pytest_asyncio_and_plain_ones(tmp_path: Path) -> None:
    save_guide(tmp_path)

    told = run(tmp_path, ASYNC + BLOCKING + MISUSED, *AUTO)

    assert "6 passed, 2 errors" in told, told
    assert "test_not_async is no `async def`: use stepwell_blocking_harness in it" in told
    assert "stepwell_harness was called before test_too_early began" in told


def test_the_plugin_runs_async_tests_with_anyio(tmp_path: Path) -> None:
    backend = "\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n\npytestmark = pytest.mark.anyio\n"

    told = run(tmp_path, backend + ASYNC, "-p", "anyio")

    assert "2 passed" in told, told


def test_a_run_that_does_not_use_the_plugin_imports_nothing_of_stepwell() -> None:
    told = subprocess.run(
        [sys.executable, "-c", "import sys, stepwell_pytest; print([m for m in sys.modules if m == 'stepwell'])"],
        env={"PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip

    assert told == "[]\n"


def test_pytest_finds_the_plugin_by_its_entry_point() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())

    assert config["project"]["entry-points"]["pytest11"] == {"stepwell": "stepwell_pytest"}
