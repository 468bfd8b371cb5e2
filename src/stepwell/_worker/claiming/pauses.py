"""Rests of what another transaction keeps waiting: it is tried again after a pause, which grows."""

from __future__ import annotations

from time import perf_counter

SHORTEST = 0.02
LONGEST = 0.5


class Pauses:
    """Names that rest, each until its own time."""

    def __init__(self) -> None:
        self.until: dict[str, tuple[float, float]] = {}  # when it is tried again, and the pause before that

    def has(self, name: str) -> bool:
        """Whether a name rests now."""
        return name in self.until and self.until[name][0] > perf_counter()

    def add(self, name: str) -> None:
        """Let a name rest, longer than the last time."""
        _, last = self.until.get(name, (0.0, SHORTEST / 2))
        pause = min(last * 2, LONGEST)
        self.until[name] = perf_counter() + pause, pause

    def drop(self, name: str) -> None:
        """A name did not have to wait."""
        self.until.pop(name, None)

    def next_in(self) -> float | None:
        """Seconds until the next one is tried again; None if none rests."""
        if not self.until:
            return None
        return max(0.001, min(until for until, _ in self.until.values()) - perf_counter())
