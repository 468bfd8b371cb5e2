"""The effects of the demo's steps, kept in a file that no rollback reaches."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

VARIABLE = "STEPWELL_DEMO_EFFECTS"


@dataclass(frozen=True, slots=True)
class Effect:
    """The start or the end of one run of a step, in some process."""

    at: float
    pid: int
    step: str
    attempt: int
    event: Literal["begins", "ends"]


def note(step: str, attempt: int, event: Literal["begins", "ends"]) -> None:
    """Append to the file that the demo watches; do nothing without one, as in an app of your own."""
    if path := os.environ.get(VARIABLE):
        line = json.dumps(asdict(Effect(time.time(), os.getpid(), step, attempt, event)))
        with Path(path).open("a") as file:
            file.write(f"{line}\n")


def read(path: Path) -> list[Effect]:
    """All effects so far, without a line that is still being written."""
    if not path.exists():
        return []
    return [Effect(**json.loads(line)) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
