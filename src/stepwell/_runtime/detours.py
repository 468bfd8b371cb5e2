"""What could not go the short way: for a moment it is not tried again."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from time import perf_counter
from typing import Generic, NamedTuple, TypeVar

LONG_WAY = 0.05  # seconds, for which the short way is not tried; at first
LONGEST_WAY = 1.0  # the same, where it was no way again and again
MOST_REMEMBERED = 10_000

T = TypeVar("T", bound=Hashable)


class _Moment(NamedTuple):
    """Until when, and how long that is in all."""

    until: float
    length: float


class Detours(Generic[T]):
    """Who goes the long way: units whose answers had to be judged fully, queues whose head needs more than slots of
    limits. If there are very many, all are forgotten."""

    def __init__(self) -> None:
        self._moments: dict[T, _Moment] = {}

    def __len__(self) -> int:
        return len(self._moments)

    def has(self, who: T) -> bool:
        """Whether it is to go the long way now."""
        moment = self._moments.get(who)
        return moment is not None and perf_counter() < moment.until

    def add(self, those: Iterable[T]) -> None:
        """Let them go the long way for a moment, for a longer one if it was so the last time."""
        if len(self._moments) > MOST_REMEMBERED:
            self._moments.clear()
        for who in those:
            last = self._moments.get(who)
            length = LONG_WAY if last is None else min(last.length * 2, LONGEST_WAY)
            self._moments[who] = _Moment(perf_counter() + length, length)

    def drop(self, those: Iterable[T]) -> None:
        """Forget what went the short way."""
        if self._moments:
            for who in those:
                self._moments.pop(who, None)
