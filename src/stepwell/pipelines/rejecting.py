"""Items that must not stop the run: put aside, with the reason, where the author wants them."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait
from contextvars import ContextVar
from typing import Any, Final, TypeAlias

import msgspec

from stepwell._runtime.threads import LOOK_EVERY, RunThread

log = logging.getLogger("stepwell")


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """One item that was put aside."""

    pipeline: str
    instance_id: int
    step: str
    item: Any
    reason: str
    place: str | None = None  # where it came from, as "line 7"


Sink: TypeAlias = Callable[[Rejected], Awaitable[None] | None]
Rejection: TypeAlias = tuple[Any, str, str | None]
"""An item, the reason, and the place."""
Spill: TypeAlias = Callable[[list[Rejection]], None]

MOST_HELD: Final = 1_000  # rejections, until code in a thread waits for the sink


class Hearing:
    """What one step rejects: `with hearing:` around its code. Around that may be another step, with its own."""

    __slots__ = ("_before", "pending", "spill")

    def __init__(self, spill: Spill | None = None) -> None:
        self.pending: list[Rejection] = []
        self.spill = spill  # for code in a thread that rejects more than is to be held
        self._before: Hearing | None = None

    def __enter__(self) -> None:
        self._before = _hearing.get()
        _hearing.set(self)

    def __exit__(self, *_: object) -> None:
        _hearing.set(self._before)

    def take(self) -> list[Rejection]:
        """What was rejected since the last look."""
        if not self.pending:
            return []
        taken, self.pending = self.pending, []
        return taken


_hearing: ContextVar[Hearing | None] = ContextVar("stepwell rejected", default=None)


def reject(item: Any, reason: str, *, place: str | None = None) -> None:
    """Put an item aside from within a step, and go on: a broken row of a file, with its line as the place."""
    hearing = _hearing.get()
    if hearing is None:
        raise RuntimeError("reject() is called outside of a step of a pipeline")
    hearing.pending.append((item, reason, place))
    if hearing.spill is not None and len(hearing.pending) >= MOST_HELD and not _is_in_loop():
        hearing.spill(hearing.take())


class Teller:
    """Tells the author's sink what was put aside: a plain one in the thread of the run, as it may block."""

    def __init__(self, pipeline: str, instance_id: int, sink: Sink) -> None:
        self._pipeline = pipeline
        self._instance_id = instance_id
        self._sink = sink
        self._is_async = inspect.iscoroutinefunction(sink)

    async def tell(self, step: str, rejections: list[Rejection], thread: Callable[[], RunThread]) -> None:
        """From the loop."""
        if self._is_async:
            await self._tell_async(step, rejections)
        else:
            for told in await thread().call(self._tell_plain, step, rejections):
                await told

    def spill(self, step: str) -> Spill:
        """How code in the thread puts aside what is too much to hold until it gives something."""
        loop = asyncio.get_running_loop()

        def tell(rejections: list[Rejection]) -> None:
            if self._is_async:
                _wait_for(asyncio.run_coroutine_threadsafe(self._tell_async(step, rejections), loop), loop)
                return
            for told in self._tell_plain(step, rejections):
                _wait_for(asyncio.run_coroutine_threadsafe(_done(told), loop), loop)

        return tell

    async def _tell_async(self, step: str, rejections: list[Rejection]) -> None:
        for rejection in rejections:
            told = self._sink(self._rejected(step, *rejection))
            if told is not None:
                await told

    def _tell_plain(self, step: str, rejections: list[Rejection]) -> list[Awaitable[None]]:
        """Returns what is left to be awaited, in the loop: a plain function may give that too."""
        told = [self._sink(self._rejected(step, *rejection)) for rejection in rejections]
        return [later for later in told if inspect.isawaitable(later)]

    def _rejected(self, step: str, item: Any, reason: str, place: str | None) -> Rejected:
        return Rejected(
            pipeline=self._pipeline, instance_id=self._instance_id, step=step, item=item, reason=reason, place=place
        )


async def _done(told: Awaitable[None]) -> None:
    await told


def _wait_for(future: Future[None], loop: asyncio.AbstractEventLoop) -> None:
    """In the thread: wait, unless the loop is gone."""
    while not future.done() and not loop.is_closed():
        wait([future], LOOK_EVERY)
    if future.done() and not future.cancelled():
        future.result()


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def log_rejected(rejected: Rejected) -> None:
    """Where rejected items go unless the pipeline says otherwise: to the log, without their content."""
    where = "" if rejected.place is None else f", {rejected.place}"
    log.warning("pipeline %s #%d: %s rejected an item%s: %s", rejected.pipeline, rejected.instance_id, rejected.step,
                where, rejected.reason)
