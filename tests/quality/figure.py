"""A figure of the package structure, beside its target."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
SOURCE = ROOT / "src" / "stepwell"


@dataclass(frozen=True)
class Figure:
    name: str
    now: str
    target: str
    is_met: bool
    items: list[str]
    notes: tuple[str, ...] = ()


def relative(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def excepted(reasons: dict[str, str]) -> tuple[str, ...]:
    """One note per reason, with all that it excuses."""
    return tuple(
        f"excepted: {', '.join(what for what, why in reasons.items() if why == reason)} ({reason})"
        for reason in dict.fromkeys(reasons.values())
    )
