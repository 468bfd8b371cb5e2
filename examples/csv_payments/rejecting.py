"""Keeps broken lines: `<input>.rejected`, one JSON object per line, the same after every run over the same input."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from examples.csv_payments.records import REJECTED_SUFFIX
from stepwell.pipelines import Rejected

TAIL = 65_536  # bytes: more than one line has


class RejectedLine(msgspec.Struct, frozen=True, rename="camel"):
    """One broken line in the file of rejected ones."""

    file: str
    line: int
    reason: str
    text: str


def forget(path: Path) -> None:
    """Remove what an earlier run rejected of a file that is now read from its beginning."""
    _beside(path).unlink(missing_ok=True)


def keep(rejected: Rejected) -> None:
    """The sink of the pipeline. Lines come in their order; one that is already in the file is not added."""
    path, _, number = (rejected.place or "").rpartition(":")
    line = RejectedLine(path, int(number), rejected.reason, str(rejected.item))
    with _beside(Path(path)).open("a+b") as file:
        if _last_line(file) < line.line:
            file.write(msgspec.json.encode(line) + b"\n")


def read_rejected(path: Path) -> list[RejectedLine]:
    """What was rejected of an input file."""
    kept = _beside(path)
    if not kept.exists():
        return []
    return [msgspec.json.decode(line, type=RejectedLine) for line in kept.read_bytes().splitlines()]


def _beside(path: Path) -> Path:
    return path.with_name(path.name + REJECTED_SUFFIX)


def _last_line(file: Any) -> int:
    """The number of the last line that is kept."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - TAIL))
    lines: list[bytes] = file.read().splitlines()
    return msgspec.json.decode(lines[-1], type=RejectedLine).line if lines else 0
