"""Growing pauses before retries of what another transaction has locked."""

from __future__ import annotations

from time import perf_counter

SHORTEST = 0.02
LONGEST = 0.5


class Pauses:
    """The paused names, each with the end of its pause."""

    def __init__(self) -> None:
        self.until: dict[str, tuple[float, float]] = {}  # the end of the pause, and its length

    def has(self, name: str) -> bool:
        """Whether a name is paused now."""
        return name in self.until and self.until[name][0] > perf_counter()

    def add(self, name: str) -> None:
        """Pause a name, twice as long as the last time."""
        _, last = self.until.get(name, (0.0, SHORTEST / 2))
        pause = min(last * 2, LONGEST)
        self.until[name] = perf_counter() + pause, pause

    def drop(self, name: str) -> None:
        """Forget a name: its retry succeeded."""
        self.until.pop(name, None)

    def next_in(self) -> float | None:
        """Seconds until the next retry; None if no name is paused."""
        if not self.until:
            return None
        return max(0.001, min(until for until, _ in self.until.values()) - perf_counter())
