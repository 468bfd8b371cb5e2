"""What a test's steps did to the world, as they recorded it; no crash erases it."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Effect:
    """Something that happened to the world."""

    name: str
    facts: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.facts.items())})"


class Effects:
    """A list that steps in the loop and in threads may write to."""

    def __init__(self) -> None:
        self._effects: list[Effect] = []
        self._writing = threading.Lock()

    def record(self, name: str, facts: dict[str, Any]) -> None:
        with self._writing:
            self._effects.append(Effect(name, dict(facts)))

    def all(self) -> list[Effect]:
        with self._writing:
            return list(self._effects)
