"""The server's clock, moved by libfaketime where the machine has it."""

from __future__ import annotations

import time
from pathlib import Path

from tests.chaos.servers import Server

LIBRARIES = (Path("/usr/lib/x86_64-linux-gnu/faketime"), Path("/usr/lib/aarch64-linux-gnu/faketime"))
NAME = "libfaketimeMT.so.1"
TOLERANCE = 60.0


class Clock:
    """A file that every process of the server reads: by how many seconds its clock is off."""

    def __init__(self, home: Path) -> None:
        self._file = home / "clock"
        self._library = next((folder / NAME for folder in LIBRARIES if (folder / NAME).exists()), None)
        self._problem: str | None = None
        self._is_known = False
        self.settings: list[tuple[float, int]] = []  # when it was moved, and by how many seconds it is off since
        if self._library is not None:
            self._write(0)

    @property
    def environment(self) -> dict[str, str]:
        """What the server is started with."""
        if self._library is None:
            return {}
        return {
            "LD_PRELOAD": str(self._library), "FAKETIME_TIMESTAMP_FILE": str(self._file), "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1", "DONT_FAKE_MONOTONIC": "1",
        }  # fmt: skip

    async def problem(self, server: Server) -> str | None:
        """Why the clock cannot be changed here; the check changes it once and changes it back."""
        if self._library is None:
            return "libfaketime is not installed; on Debian: apt install libfaketime"
        if not self._is_known:
            self._is_known = True
            self._write(600)
            moved = await self._offset(server)
            self._write(0)
            back = await self._offset(server)
            if abs(moved - 600) > TOLERANCE or abs(back) > TOLERANCE:
                self._problem = f"libfaketime does not move this server's clock (by {moved:.0f} s instead of 600)"
        return self._problem

    async def _offset(self, server: Server) -> float:
        [row] = await server.query("select extract(epoch from clock_timestamp())::float8 as seconds")
        return float(row["seconds"]) - time.time()

    def move(self, seconds: int) -> None:
        self.settings.append((time.time(), seconds))
        self._write(seconds)

    def _write(self, seconds: int) -> None:
        partial = self._file.with_suffix(".new")
        partial.write_text(f"{seconds:+d}\n")
        partial.chmod(0o644)
        partial.rename(self._file)
