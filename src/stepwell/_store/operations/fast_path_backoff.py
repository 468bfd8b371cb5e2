"""Pauses a fast path for single keys after it failed for them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from time import perf_counter
from typing import Generic, NamedTuple, TypeVar

FIRST_PAUSE = 0.05  # seconds of the first pause
LONGEST_PAUSE = 1.0  # seconds of the longest pause, after consecutive failures
MOST_REMEMBERED = 10_000

T = TypeVar("T", bound=Hashable)


class _Pause(NamedTuple):
    """The end of a pause, and its length."""

    until: float
    length: float


class FastPathBackoff(Generic[T]):
    """Keys with a paused fast path, with exponential backoff. Beyond MOST_REMEMBERED keys, it forgets all."""

    def __init__(self) -> None:
        self._pauses: dict[T, _Pause] = {}

    def __len__(self) -> int:
        return len(self._pauses)

    def has(self, key: T) -> bool:
        """Whether the fast path of this key is paused now."""
        pause = self._pauses.get(key)
        return pause is not None and perf_counter() < pause.until

    def add(self, keys: Iterable[T]) -> None:
        """Pause the fast path of these keys, each time twice as long as the last time."""
        if len(self._pauses) > MOST_REMEMBERED:
            self._pauses.clear()
        for key in keys:
            last = self._pauses.get(key)
            length = FIRST_PAUSE if last is None else min(last.length * 2, LONGEST_PAUSE)
            self._pauses[key] = _Pause(perf_counter() + length, length)

    def drop(self, keys: Iterable[T]) -> None:
        """Forget keys: their fast path worked."""
        if self._pauses:
            for key in keys:
                self._pauses.pop(key, None)
