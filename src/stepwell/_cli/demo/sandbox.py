"""The demo's own folder and Postgres, removed at the end, however the demo ends."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Self
from urllib.parse import parse_qs, urlsplit

from stepwell.embedded import EmbeddedServer, data_home

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Notes signals and cancels the scenario; never interrupts the setup or the removal of the sandbox."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._task: asyncio.Task[object] | None = None

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def cancel_me(self) -> None:
        """Let a signal cancel the calling task; cancel it at once if a signal came before."""
        self._task = asyncio.current_task()
        if self._task is not None and self.received is not None:
            self._task.cancel()

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        first, self.received = self.received is None, self.received or number
        if first and self._task is not None:
            self._task.get_loop().call_soon_threadsafe(self._task.cancel)


@contextmanager
def sandbox_postgres(folder: Path) -> Iterator[str]:
    """Run Postgres in the folder while the block runs; yields the URL of its database."""
    server = EmbeddedServer(folder / "postgres")
    try:
        yield server.join()
    finally:
        server.stop("immediate")  # nothing of it is kept
        server.leave()
        _remove_socket_folder(server)
        shutil.rmtree(folder, ignore_errors=True)


def new_folder() -> Path:
    """A name for the folder; the server creates it, with the modes it needs."""
    # Under root the server runs as `nobody`, which can enter data_home(), but perhaps not $TMPDIR.
    home = data_home() if os.geteuid() == 0 else Path(tempfile.gettempdir())
    return home / f"stepwell-demo-{secrets.token_hex(6)}"


def _remove_socket_folder(server: EmbeddedServer) -> None:
    """Remove the folder that the server makes for its socket if the path is long."""
    host = Path(parse_qs(urlsplit(server.url()).query)["host"][0])
    if host != server.folder:
        shutil.rmtree(host, ignore_errors=True)
