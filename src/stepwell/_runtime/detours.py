"""Units whose answers could not be taken in the short way: for a moment they are not tried again."""

from __future__ import annotations

from collections.abc import Iterable
from time import perf_counter
from typing import NamedTuple

LONG_WAY = 0.05  # seconds, for which the answers of a unit are judged fully where one of them had to be; at first
LONGEST_WAY = 1.0  # the same, where it was so again and again: a unit whose answers go on by themselves
MOST_REMEMBERED = 10_000  # of such units


class _Moment(NamedTuple):
    """Until when, and how long that is in all."""

    until: float
    length: float


class Detours:
    """Who goes the long way, by unit; if there are very many, all are forgotten."""

    def __init__(self) -> None:
        self._moments: dict[int, _Moment] = {}

    def __len__(self) -> int:
        return len(self._moments)

    def has(self, unit_id: int) -> bool:
        """Whether its answers are to go the long way now."""
        moment = self._moments.get(unit_id)
        return moment is not None and perf_counter() < moment.until

    def add(self, unit_ids: Iterable[int]) -> None:
        """Let units go the long way for a moment, for a longer one if it was so the last time."""
        if len(self._moments) > MOST_REMEMBERED:
            self._moments.clear()
        for unit_id in unit_ids:
            last = self._moments.get(unit_id)
            length = LONG_WAY if last is None else min(last.length * 2, LONGEST_WAY)
            self._moments[unit_id] = _Moment(perf_counter() + length, length)

    def drop(self, unit_ids: Iterable[int]) -> None:
        """Forget units whose answers went the short way."""
        if self._moments:
            for unit_id in unit_ids:
                self._moments.pop(unit_id, None)
