"""When and where figures were taken, and by what command: the head of every report, and its file."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar

PACKAGES = ("stepwell", "asyncpg", "msgspec", "uvloop")
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Taken(ABC):
    """What the reports of all benchmarks share; each adds its figures."""

    kind: ClassVar[str] = ""  # the beginning of its file's name

    began: datetime
    command: str
    seconds: float
    server: Mapping[str, str]

    def where(self, workload: str | None = None) -> list[str]:
        """Three lines for a reader."""
        shown = ", ".join(f"{name} {value}" for name, value in versions().items() if value)
        server = ", ".join(f"{name} {value}" for name, value in self.server.items() if name != "server_version")
        return [
            f"{self.began:%Y-%m-%d %H:%M} UTC, {self.seconds:.0f} s, `{self.command}`"
            + ("" if workload is None else f": {workload}"),
            f"{machine()}; {shown}",
            f"PostgreSQL {self.server.get('server_version')}: {server}",
        ]

    def write(self, folder: Path | None = None) -> Path:
        """Write the JSON file, beside the others if no folder is given; returns where."""
        folder = RESULTS if folder is None else folder
        folder.mkdir(exist_ok=True)
        path = folder / f"{self.kind}{self.began:%Y-%m-%dT%H%M%S}.json"
        head = {
            "date": self.began.isoformat(timespec="seconds"), "command": self.command,
            "seconds": round(self.seconds, 1), "machine": machine(), "versions": versions(),
            "server": dict(self.server),
        }  # fmt: skip
        path.write_text(json.dumps(head | self._plain(), indent=2, ensure_ascii=False) + "\n", "utf-8")
        return path

    @abstractmethod
    def _plain(self) -> dict[str, Any]:
        """Its own figures, for the file."""


def machine() -> str:
    """The machine in a few words."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores ({_processor()}), {memory:.0f} GB, {platform.system()} {platform.release()}"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


def versions() -> dict[str, str | None]:
    """Of Python and of what the figures depend on; None for what is not installed."""
    return {"Python": platform.python_version(), "commit": _commit()} | {name: _version(name) for name in PACKAGES}


def _commit() -> str | None:
    git = shutil.which("git")
    if git is None:
        return None
    described = subprocess.run(  # noqa: S603 - fixed arguments
        [git, "describe", "--always", "--dirty"], cwd=RESULTS.parent, capture_output=True, text=True, check=False
    )
    return described.stdout.strip() or None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
