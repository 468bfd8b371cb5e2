"""Arm the engine's named points: wait until one is reached, hold the engine there, or let the process die there."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

from stepwell._process import probes


class Point:
    """One armed point: how often it was reached, with what facts, and whether it holds."""

    def __init__(self, *, hold: bool, fault: Callable[[dict[str, Any]], None] | None) -> None:
        self.facts: list[dict[str, Any]] = []
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Condition()
        self._gate = asyncio.Event()
        self._fault = fault
        if not hold:
            self._gate.set()

    async def reached(self, times: int = 1, *, patience: float = 30.0) -> dict[str, Any]:
        """Wait until the point was reached the given number of times; returns the facts of that time."""
        async with asyncio.timeout(patience), self._changed:
            await self._changed.wait_for(lambda: len(self.facts) >= times)
        return self.facts[times - 1]

    def release(self) -> None:
        """Let held and later callers continue."""
        self._gate.set()

    async def _pass(self, facts: dict[str, Any]) -> None:
        """Called by the engine, in any of its threads."""
        if asyncio.get_running_loop() is not self._loop:
            asyncio.run_coroutine_threadsafe(self._note(facts), self._loop)
        else:
            await self._note(facts)
            await self._gate.wait()
        if self._fault is not None:
            self._fault(facts)

    async def _note(self, facts: dict[str, Any]) -> None:
        async with self._changed:
            self.facts.append(facts)
            self._changed.notify_all()


@contextmanager
def armed(point: str, *, hold: bool = False, fault: Callable[[dict[str, Any]], None] | None = None) -> Iterator[Point]:
    """Arm a point while the block runs; `hold` stops the engine there, `fault` may raise there."""
    check_point(point)
    made = Point(hold=hold, fault=fault)
    probes.hooks[point] = made._pass  # noqa: SLF001 - the two belong together
    try:
        yield made
    finally:
        probes.hooks.pop(point, None)
        made.release()


def crash(point: str, *, nth: int = 1) -> None:
    """Kill this process with SIGKILL when the point is reached for the nth time. For worker processes of tests."""
    check_point(point)
    left = nth

    def die(_: dict[str, Any]) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    probes.hooks[point] = die


def check_point(point: str) -> None:
    """Refuse an unknown point."""
    if point not in probes.POINTS:
        close = get_close_matches(str(point), probes.POINTS, n=1)
        near = f"; did you mean {close[0]!r}?" if close else f"; there are: {', '.join(probes.POINTS)}"
        raise ValueError(f"no point {point!r}{near}")
