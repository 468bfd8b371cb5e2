"""The background loop of every service: start, tick, rest, back off, stop."""

from __future__ import annotations

import asyncio
import logging
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from stepwell._core.store_errors import Contention, Outage
from stepwell._process.outages import Outages

log = logging.getLogger("stepwell")

FIRST_BACKOFF = 0.05
LONGEST_BACKOFF = 5.0
CONTENTION_BACKOFF = 0.02
STOP_GRACE = 2.0
CALM = 1.0


class Backoff:
    """The pause after an error: twice as long each time, with jitter, until it is reset."""

    def __init__(self) -> None:
        self.longest = LONGEST_BACKOFF
        self.is_failing = False  # the last tick failed because of the database
        self.is_used = False  # since the last reset
        self._pause = FIRST_BACKOFF

    def next(self) -> float:
        """Seconds to wait now."""
        pause, self.is_used = self._pause, True
        self._pause = min(self._pause * 2, self.longest)
        return pause * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret

    def reset(self) -> None:
        """Note that the work succeeded."""
        self._pause = FIRST_BACKOFF
        self.is_failing = self.is_used = False


class Service(ABC):
    """A loop that ticks until it is stopped. Errors never end it: it logs them and backs off with jitter."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.outages = Outages()  # its own, unless the owner shares one between services
        self._party: object = self  # its identity in `outages`
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._is_cutting = False  # stop() itself cancels the task
        self.is_cut_off = False  # the task was cancelled by other code of this process
        self.on_cut_off: Callable[[], None] = lambda: None
        self.woken = False
        self._until = float("inf")  # when to tick next; `wake_within` lowers it, also during a tick
        self._stirred = asyncio.Event()
        self._backoff = Backoff()

    @abstractmethod
    async def tick(self) -> float | None:
        """Do the work once; return the seconds to rest, or None to rest until woken."""

    def start(self, after: float | None = 0.0) -> None:
        """Start the loop; the first tick comes `after` that many seconds, or, with None, when the service is woken. A
        second call does nothing."""
        if self._task is None:
            self._stopping = False
            self._task = asyncio.create_task(self._run(after), name=f"stepwell {self.name}")

    async def stop(self) -> None:
        """Wait STOP_GRACE seconds for the current tick, then cancel it. Stopping twice does nothing."""
        self._stopping = True
        self._stirred.set()
        task, self._task = self._task, None
        if task is None:
            return
        try:
            await asyncio.wait([task], timeout=STOP_GRACE)
        finally:
            if not task.done():
                self._is_cutting = True
                task.cancel()
        await asyncio.wait([task])

    def cut(self) -> None:
        """Cancel the loop at once, without waiting for it."""
        self._stopping = True
        if self._task is not None:
            self._is_cutting = True
            self._task.cancel()

    def wake(self) -> None:
        """Tick now; if a tick is running, tick once more after it."""
        self.woken = True
        self._stirred.set()

    def wake_within(self, seconds: float) -> None:
        """Tick within that time at the latest."""
        until = asyncio.get_running_loop().time() + seconds
        if until < self._until:
            self._until = until
            self._stirred.set()

    def ended(self) -> None:  # noqa: B027 - most services have nothing to do then
        """Called when the loop has ended, for any reason."""

    async def _run(self, after: float | None) -> None:
        try:
            if after != 0.0:
                await self._rest(after)
            while not self._stopping:
                self.woken = False
                self._until = float("inf")
                pause = await self._tick_safely()
                await self._rest(pause)
        except asyncio.CancelledError:
            if not self._is_cutting:
                self.is_cut_off = True
                self.on_cut_off()
            raise
        finally:
            self.outages.left(self._party)
            self.ended()

    async def _tick_safely(self) -> float | None:
        try:
            pause = await self.tick()
        except Contention as error:
            log.debug("%s: %s", self.name, error)
            return random.uniform(0, CONTENTION_BACKOFF)  # noqa: S311 - jitter, not a secret
        except Outage as error:
            self._backoff.is_failing = True
            self.outages.failed(self._party, self.name, error)
            return self._back_off()
        except Exception as error:  # noqa: BLE001 - the outages log it, with its traceback
            self.outages.unexpected(self.name, error)
            return self._back_off()
        if self._backoff.is_used:
            if self._backoff.is_failing:
                self.outages.works(self._party)
            self._backoff.reset()
        return pause

    def _back_off(self) -> float:
        self.woken = False  # neither a wake nor a due time shortens a backoff
        self._until = float("inf")
        return self._backoff.next()

    async def _rest(self, pause: float | None) -> None:
        loop = asyncio.get_running_loop()
        if pause is not None:
            self._until = min(self._until, loop.time() + pause)
        while not self.woken and not self._stopping and self._until > loop.time():
            self._stirred.clear()
            try:
                async with asyncio.timeout_at(None if self._until == float("inf") else self._until):
                    await self._stirred.wait()
            except TimeoutError:
                return


async def all_of(*parts: Callable[[], Awaitable[object]]) -> None:
    """Run the parts of a tick in order; an error in one does not stop the next. Then raise the first error that is not
    a Contention, else the first."""
    failed: list[Exception] = []
    for part in parts:
        try:
            await part()
        except Exception as error:  # noqa: BLE001 - it is raised after the other parts
            failed.append(error)
    if failed:
        raise next((error for error in failed if not isinstance(error, Contention)), failed[0])


def calm(every: float) -> float:
    """Jittered initial delay of periodic maintenance, in seconds: a starting process works first, and processes that
    start together do not run their maintenance together."""
    return min(every, CALM) * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret


async def together(until: float, *works: Coroutine[Any, Any, Any]) -> bool:
    """Run coroutines concurrently until that time of the loop; False if one was late, and was cancelled."""
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(work, name=f"stepwell {getattr(work, '__qualname__', 'end')}") for work in works]
    try:
        done, late = await asyncio.wait(tasks, timeout=max(0.0, until - loop.time()))
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        raise
    for task in done:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("worker: %s failed: %r", task.get_name(), error)
    for task in late:
        task.cancel()
    return not late


def leave_behind(task: asyncio.Task[Any]) -> None:
    """Let `asyncio.run` end without waiting for a task that ignores its cancellation."""
    asyncio._unregister_task(task)  # noqa: SLF001 - documented under "Extending" in asyncio's reference
