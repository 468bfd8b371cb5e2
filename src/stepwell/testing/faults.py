"""Faults inside this process: a worker of a drain that dies at a named point, like a killed process."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from stepwell._core.instance import Claim
from stepwell._process import probes
from stepwell.testing.probes import check_point

_AT_WORK: ContextVar[object] = ContextVar("stepwell drain")
_NOT_IN_DRAIN = ("heartbeat.", "pruner.", "reaper.", "reconciler.")


class Fault:
    """One planned death: at a point, when it is reached for the nth time (by that step, if one is named)."""

    def __init__(self, point: str, *, nth: int = 1, step: str | None = None, is_sure: bool = True) -> None:
        check_point(point)
        if point.startswith(_NOT_IN_DRAIN):
            raise ValueError(f"a drain never reaches {point!r}; let a real process die there: stepwell.testing.crash")
        if isinstance(nth, bool) or not isinstance(nth, int) or nth < 1:
            raise ValueError(f"nth: expected a whole number from 1, got {nth!r}")
        self.point = point
        self.nth = nth
        self.step = step
        self.is_sure = is_sure  # False: not reaching the point is no error
        self.reached = 0

    @property
    def is_spent(self) -> bool:
        return self.reached >= self.nth

    def strikes(self, point: str, claim: Claim | None) -> bool:
        """Whether the worker dies here."""
        if point != self.point or self.is_spent or not self._concerns(claim):
            return False
        self.reached += 1
        return self.is_spent

    def _concerns(self, claim: Claim | None) -> bool:
        return self.step is None or (claim is not None and self.step in (claim.step, f"{claim.machine}.{claim.step}"))

    def __str__(self) -> str:
        where = "" if self.step is None else f" of step {self.step!r}"
        return f"{self.point!r}{where}" + (f", time {self.nth}" if self.nth > 1 else "")


class Watch:
    """Sees the points that one worker passes; holds it forever where a fault strikes."""

    def __init__(self, look: Callable[[str, dict[str, Any]], bool]) -> None:
        self.died = asyncio.Event()
        self._look = look

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Watch what is started inside of the block; other workers of this process are not watched."""
        before = dict(probes.hooks)
        token = _AT_WORK.set(self)
        hooks = {point: self._hook(point, before.get(point)) for point in probes.POINTS}
        probes.hooks.update(hooks)
        try:
            yield
        finally:
            _AT_WORK.reset(token)
            for point, hook in hooks.items():
                if probes.hooks.get(point) is hook:
                    probes.hooks.pop(point)
                    if point in before:
                        probes.hooks[point] = before[point]

    def _hook(self, point: str, before: probes.Hook | None) -> probes.Hook:
        async def pass_by(facts: dict[str, Any]) -> None:
            if before is not None:
                waiting = before(facts)
                if inspect.isawaitable(waiting):
                    await waiting
            if _AT_WORK.get(None) is self and self._look(point, facts):
                self.died.set()
                await asyncio.get_running_loop().create_future()  # forever: a dead worker does not continue

        return pass_by
