"""How busy the computer is, by others or by a run's own processes."""

from __future__ import annotations

import asyncio
import hashlib
import time
from math import inf

EVERY = 1.0
_BLOCK = bytes(1 << 20)
_ROUNDS = 16  # some 30 ms of one processor


class Computer:
    """Repeats the same work, and notes how much longer it takes than it computes."""

    def __init__(self) -> None:
        self._found: list[tuple[float, float, float]] = []  # when, how long it took, how long it computed

    async def run(self) -> None:
        while True:
            took, computed = await asyncio.to_thread(_work)
            self._found.append((time.monotonic(), took, computed))
            await asyncio.sleep(EVERY)

    def slowness(self, since: float, until: float = inf) -> float:
        """How many times longer than on a free computer work took between two moments; at least 1."""
        found = [(took, computed) for at, took, computed in self._found if since <= at <= until] or [
            (took, computed) for _, took, computed in self._found[-1:]
        ]
        computed = sum(computed for _, computed in found)
        return max(1.0, sum(took for took, _ in found) / computed) if computed else 1.0


def _work() -> tuple[float, float]:
    begun, computed = time.monotonic(), time.thread_time()
    for _ in range(_ROUNDS):
        hashlib.sha256(_BLOCK).digest()  # releases the interpreter's lock
    return time.monotonic() - begun, time.thread_time() - computed
