"""The one background loop: start, tick, rest, back off, stop. Every service of the engine is one of these."""

from __future__ import annotations

import asyncio
import logging
import random
from abc import ABC, abstractmethod

from stepwell._core.faults import Contention, Outage

log = logging.getLogger("stepwell")

FIRST_BACKOFF = 0.05
LONGEST_BACKOFF = 5.0
CONTENTION_BACKOFF = 0.02
STOP_GRACE = 2.0
CALM = 1.0


class Service(ABC):
    """A loop that ticks until it is stopped. Errors never end it: it says so, backs off with jitter, and comes back."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._woken = False
        self._until = float("inf")  # when to tick next; lowered by hasten, also while a tick is under way
        self._stirred = asyncio.Event()
        self._backoff = FIRST_BACKOFF
        self._longest_backoff = LONGEST_BACKOFF

    @abstractmethod
    async def tick(self) -> float | None:
        """Do the work once; return the seconds to rest, None to rest until woken."""

    def start(self, after: float | None = 0.0) -> None:
        """Start the loop, with its first tick after so many seconds, or, with None, when it is woken; a second call
        does nothing."""
        if self._task is None:
            self._stopping = False
            self._task = asyncio.create_task(self._run(after), name=f"stepwell {self.name}")

    async def stop(self) -> None:
        """Let the current tick end, for a moment; cut it if it does not. Stopping twice does nothing."""
        self._stopping = True
        self._stirred.set()
        task, self._task = self._task, None
        if task is None:
            return
        await asyncio.wait([task], timeout=STOP_GRACE)
        if not task.done():
            task.cancel()
            await asyncio.wait([task])

    def wake(self) -> None:
        """Tick now; if a tick is under way, once more after it."""
        self._woken = True
        self._stirred.set()

    def hasten(self, seconds: float) -> None:
        """Tick in that time at the latest."""
        until = asyncio.get_running_loop().time() + seconds
        if until < self._until:
            self._until = until
            self._stirred.set()

    def ended(self) -> None:  # noqa: B027 - most services have nothing to do then
        """Called when the loop is over, for whatever reason."""

    async def _run(self, after: float | None) -> None:
        try:
            await self._loop(after)
        finally:
            self.ended()

    async def _loop(self, after: float | None) -> None:
        if after != 0.0:
            await self._rest(after)
        while not self._stopping:
            self._woken = False
            self._until = float("inf")
            pause = await self._tick_safely()
            await self._rest(pause)

    async def _tick_safely(self) -> float | None:
        try:
            pause = await self.tick()
        except Contention as error:
            log.debug("%s: %s", self.name, error)
            return random.uniform(0, CONTENTION_BACKOFF)  # noqa: S311 - jitter, not a secret
        except Outage as error:
            log.warning("%s: the database is away (%s); trying again", self.name, error)
            return self._back_off()
        except Exception:
            log.exception("%s: unexpected error; trying again", self.name)
            return self._back_off()
        self._backoff = FIRST_BACKOFF
        return pause

    def _back_off(self) -> float:
        pause = self._backoff
        self._backoff = min(self._backoff * 2, self._longest_backoff)
        self._woken = False  # neither a wake nor a due time shortens a backoff
        self._until = float("inf")
        return pause * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret

    async def _rest(self, pause: float | None) -> None:
        loop = asyncio.get_running_loop()
        if pause is not None:
            self._until = min(self._until, loop.time() + pause)
        while not self._woken and not self._stopping and self._until > loop.time():
            self._stirred.clear()
            try:
                async with asyncio.timeout_at(None if self._until == float("inf") else self._until):
                    await self._stirred.wait()
            except TimeoutError:
                return


def calm(every: float) -> float:
    """Seconds until what looks after others every so often looks for the first time: who starts is to work first, and
    has its statements to plan. Those who start together do not look together."""
    return min(every, CALM) * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
