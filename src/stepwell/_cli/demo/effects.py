"""The effects of the demo's steps: what a step did to the world, noted where no rollback reaches it."""

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
    """A run of a step begins or ends, in some process."""

    at: float
    pid: int
    step: str
    attempt: int
    event: Literal["begins", "ends"]


def note(step: str, attempt: int, event: Literal["begins", "ends"]) -> None:
    """Append to the file the demo watches; without one, as in an app of your own, do nothing."""
    if path := os.environ.get(VARIABLE):
        line = json.dumps(asdict(Effect(time.time(), os.getpid(), step, attempt, event)))
        with Path(path).open("a") as file:
            file.write(f"{line}\n")


def read(path: Path) -> list[Effect]:
    """All effects so far; a line that is still being written counts next time."""
    if not path.exists():
        return []
    return [Effect(**json.loads(line)) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
