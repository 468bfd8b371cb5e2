"""Effects of a test's steps outside of the engine, as they recorded them; no crash erases them."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Effect:
    """One effect outside of the engine."""

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
