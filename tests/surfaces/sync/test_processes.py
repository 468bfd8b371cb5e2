"""`engine.sync` in processes that fork, and in processes that end: real ones."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwell._store.testing import databases
from stepwell.embedded import EmbeddedServer
from tests.support.processes import ROOT
from tests.surfaces.sync.forking import CHILDREN

PATIENCE = 90.0


def run(module: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program of this folder that reports what it did not close; if it hangs, its children end with it."""
    command = [sys.executable, "-W", "always", "-m", f"tests.surfaces.sync.{module}", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True,
        env={**os.environ, **environment},
    ) as process:  # fmt: skip
        try:
            out, err = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def test_processes_forked_during_calls_work_and_leave_the_parent_alone(url: str) -> None:
    ended = run("forking", url)

    assert (ended.returncode, ended.stderr) == (0, "")
    *children, parent = sorted(ended.stdout.splitlines())
    assert children == ["child 8 True True"] * CHILDREN
    assert parent == "parent 100 {0} True True"


@pytest.mark.parametrize("how", ["call", "worker", "thread"])
def test_a_program_that_closes_nothing_ends_at_once_and_quietly(url: str, how: str) -> None:
    ended = run("leaving", how, url)

    assert (ended.returncode, ended.stdout) == (0, "end\n")
    assert ended.stderr == ""
    assert asyncio.run(_left(url)) == (0, 0)


def test_a_program_that_closes_nothing_leaves_the_embedded_server(home: Path) -> None:
    ended = run("leaving", "worker", STEPWELL_DATA_HOME=str(home), STEPWELL_DATABASE_URL="")

    warned = [line for line in ended.stderr.splitlines() if not line.startswith("embedded: as root, ")]
    assert (ended.returncode, ended.stdout, warned) == (0, "end\n", [])
    assert EmbeddedServer(home / "postgres-18")._status() is None


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder that the server's user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="stepwell-sync-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


async def _left(url: str) -> tuple[int, int]:
    """Connections and workers that still exist."""
    connections = "select count(*) from pg_stat_activity where datname = current_database()"
    [connected] = await databases.query(url, f"{connections} and application_name like 'stepwell%'")
    [entered] = await databases.query(url, "select count(*) from stepwell.workers where not has_left")
    return connected[0], entered[0]
