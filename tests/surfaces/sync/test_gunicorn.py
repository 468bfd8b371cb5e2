"""`engine.sync` under a real gunicorn: the application is loaded before its workers are forked."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from stepwell import SyncEngine
from tests.support.processes import ROOT

WORKERS = 3
ENOUGH = 60  # requests, each on a connection of its own, so that they do not all reach one worker
PATIENCE = 60.0


@contextmanager
def gunicorn(url: str, log: Path, *options: str) -> Iterator[httpx.Client]:
    """Gunicorn with a preloaded application behind a socket that exists before it; ends cleanly, or the test fails."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listening:
        path = f"{folder}/http"
        listening.bind(path)
        listening.listen()
        command = [sys.executable, "-m", "gunicorn", "--preload", "--workers", str(WORKERS), *options,
                   "--bind", f"fd://{listening.fileno()}", "--env", f"STEPWELL_DATABASE_URL={url}",
                   "--log-file", str(log), "tests.surfaces.sync.flask_app:app"]  # fmt: skip
        environment = {**os.environ, "HOME": folder}  # where newer versions put a control socket
        with subprocess.Popen(command, cwd=ROOT, env=environment, pass_fds=[listening.fileno()]) as server:
            try:
                transport = httpx.HTTPTransport(uds=path)
                headers = {"Connection": "close"}
                with httpx.Client(
                    transport=transport, base_url="http://app", headers=headers, timeout=PATIENCE
                ) as client:
                    yield client
            finally:
                server.send_signal(signal.SIGTERM)
                assert server.wait(PATIENCE) == 0, log.read_text()


@pytest.mark.parametrize("options", [("--worker-class", "sync"), ("--threads", "4")], ids=["sync", "threads"])
def test_requests_in_several_forked_workers_start_instances_and_read_results(
    sync: SyncEngine, url: str, tmp_path: Path, options: tuple[str, ...]
) -> None:
    log = tmp_path / "gunicorn.log"
    seen: dict[int, list[int]] = {}

    with sync.worker(), gunicorn(url, log, *options) as client, ThreadPoolExecutor(8) as threads:
        for answer in threads.map(lambda number: client.get(f"/double/{number}").json(), range(ENOUGH)):
            seen.setdefault(answer["pid"], []).append(answer["result"])
            assert answer["first"] == 0

    assert len(seen) > 1
    assert sum(len(results) for results in seen.values()) == ENOUGH
    assert all(result % 2 == 0 for results in seen.values() for result in results)
    assert "Traceback" not in log.read_text()
