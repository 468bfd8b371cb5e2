"""Where the demo plays: a folder and a Postgres of its own, gone when it is over, however it ends."""

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
    """Notes signals, and cancels the play; never cuts off the building or the clearing of the stage."""

    def __init__(self) -> None:
        self.heard: int | None = None
        self._task: asyncio.Task[object] | None = None

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._hear) for number in SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def cancel_me(self) -> None:
        """Let a signal cancel the calling task; at once, if one was heard before."""
        self._task = asyncio.current_task()
        if self._task is not None and self.heard is not None:
            self._task.cancel()

    def _hear(self, number: int, _: FrameType | None) -> None:
        first, self.heard = self.heard is None, self.heard or number
        if first and self._task is not None:
            self._task.get_loop().call_soon_threadsafe(self._task.cancel)


@contextmanager
def staged(folder: Path) -> Iterator[str]:
    """Postgres in the folder, for the length of the block; gives the URL of its database."""
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
    # For root the server runs as `nobody`, who can enter data_home(), but perhaps not $TMPDIR.
    home = data_home() if os.geteuid() == 0 else Path(tempfile.gettempdir())
    return home / f"stepwell-demo-{secrets.token_hex(6)}"


def _remove_socket_folder(server: EmbeddedServer) -> None:
    """A long path makes the server put its socket elsewhere."""
    host = Path(parse_qs(urlsplit(server.url()).query)["host"][0])
    if host != server.folder:
        shutil.rmtree(host, ignore_errors=True)
