"""Items that must not stop the run: rejected with a reason, and passed to the author's sink."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait
from contextvars import ContextVar
from typing import Any, Final, TypeAlias

import msgspec

from stepwell._process.threads import LOOK_EVERY, RunThread

log = logging.getLogger("stepwell")


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """One item that was rejected."""

    pipeline: str
    instance_id: int
    step: str
    item: Any
    reason: str
    place: str | None = None  # its origin, such as "line 7"


Sink: TypeAlias = Callable[[Rejected], Awaitable[None] | None]
Rejection: TypeAlias = tuple[Any, str, str | None]
"""An item, the reason, and the place."""
Spill: TypeAlias = Callable[[list[Rejection]], None]

MOST_HELD: Final = 1_000  # rejections, until code in a thread waits for the sink


class Collector:
    """Collects what one step rejects: `with hearing:` around its code. Another step with its own may be around that."""

    __slots__ = ("_before", "pending", "spill")

    def __init__(self, spill: Spill | None = None) -> None:
        self.pending: list[Rejection] = []
        self.spill = spill  # for code in a thread that rejects more than may be held
        self._before: Collector | None = None

    def __enter__(self) -> None:
        self._before = _rejects.get()
        _rejects.set(self)

    def __exit__(self, *_: object) -> None:
        _rejects.set(self._before)

    def take(self) -> list[Rejection]:
        """The rejections since the last call."""
        if not self.pending:
            return []
        taken, self.pending = self.pending, []
        return taken


_rejects: ContextVar[Collector | None] = ContextVar("stepwell rejected", default=None)


def reject(item: Any, reason: str, *, place: str | None = None) -> None:
    """Reject an item from within a step, and continue: a broken row of a file, with its line as the place."""
    rejects = _rejects.get()
    if rejects is None:
        raise RuntimeError("reject() was called outside of a step of a pipeline")
    rejects.pending.append((item, reason, place))
    if rejects.spill is not None and len(rejects.pending) >= MOST_HELD and not _is_in_loop():
        rejects.spill(rejects.take())


class SinkCaller:
    """Passes rejections to the author's sink: a plain one in the thread of the run, as it may block."""

    def __init__(self, pipeline: str, instance_id: int, sink: Sink) -> None:
        self._pipeline = pipeline
        self._instance_id = instance_id
        self._sink = sink
        self._is_async = inspect.iscoroutinefunction(sink)

    async def send(self, step: str, rejections: list[Rejection], thread: Callable[[], RunThread]) -> None:
        """Pass rejections to the sink, from the loop."""
        if self._is_async:
            await self._send_async(step, rejections)
        else:
            for returned in await thread().call(self._send_plain, step, rejections):
                await returned

    def spill(self, step: str) -> Spill:
        """Pass on rejections of code in the thread that are too many to hold until its next item."""
        loop = asyncio.get_running_loop()

        def send(rejections: list[Rejection]) -> None:
            if self._is_async:
                _wait_for(asyncio.run_coroutine_threadsafe(self._send_async(step, rejections), loop), loop)
                return
            for returned in self._send_plain(step, rejections):
                _wait_for(asyncio.run_coroutine_threadsafe(_done(returned), loop), loop)

        return send

    async def _send_async(self, step: str, rejections: list[Rejection]) -> None:
        for rejection in rejections:
            returned = self._sink(self._rejected(step, *rejection))
            if returned is not None:
                await returned

    def _send_plain(self, step: str, rejections: list[Rejection]) -> list[Awaitable[None]]:
        """Returns what is left to be awaited in the loop: a plain function may return that too."""
        returned = [self._sink(self._rejected(step, *rejection)) for rejection in rejections]
        return [later for later in returned if inspect.isawaitable(later)]

    def _rejected(self, step: str, item: Any, reason: str, place: str | None) -> Rejected:
        return Rejected(
            pipeline=self._pipeline, instance_id=self._instance_id, step=step, item=item, reason=reason, place=place
        )


async def _done(returned: Awaitable[None]) -> None:
    await returned


def _wait_for(future: Future[None], loop: asyncio.AbstractEventLoop) -> None:
    """Wait in the thread, unless the loop has ended."""
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
    """The default sink: a line in the log, without the content of the item."""
    where = "" if rejected.place is None else f", {rejected.place}"
    log.warning("pipeline %s #%d: %s rejected an item%s: %s", rejected.pipeline, rejected.instance_id, rejected.step,
                where, rejected.reason)
