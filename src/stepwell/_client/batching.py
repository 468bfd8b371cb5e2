"""Batches single calls: an idle batcher sends a call at once, a busy one sends the calls that arrived meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from stepwell._core.store_errors import Refusal, StoreFault

Item = TypeVar("Item")
Result = TypeVar("Result")

LARGEST_GROUP = 1_000
LARGEST_TEXT = 8_000_000  # characters in one group; a single item may be larger


class Batcher(Generic[Item, Result]):
    """Sends items in groups, and returns to every caller the result of its own item.

    `send` returns results in the order of its items, all or none; `size` is the characters of an item. If a caller is
    cancelled before its group is sent, its item is dropped. With `waits_a_turn`, even the first call waits for one turn
    of the loop: calls that arrive in the same turn, such as those of a broker, share its group. Up to `at_once` groups
    of at most `largest` items are sent concurrently.
    """

    def __init__(
        self, send: Callable[[list[Item]], Awaitable[Sequence[Result]]], size: Callable[[Item], int] = lambda _: 0,
        *, waits_a_turn: bool = False, largest: int = LARGEST_GROUP, at_once: int = 1,
    ) -> None:  # fmt: skip
        self._send = send
        self._size = size
        self._waits_a_turn = waits_a_turn
        self._largest = largest
        self._at_once = at_once
        self._waiting: list[tuple[Item, asyncio.Future[Result]]] = []
        self._sending = 0
        self._groups: set[asyncio.Task[None]] = set()

    async def submit(self, item: Item) -> Result:
        if self._sending or self._waits_a_turn:
            future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
            self._waiting.append((item, future))
            if not self._sending:
                self._send_next()
            return await future
        self._sending += 1
        try:
            [result] = await self._send([item])
        finally:
            self._finish_group()
        return result

    def _finish_group(self) -> None:
        self._sending -= 1
        self._send_next()

    def _send_next(self) -> None:
        """Send the next group, if items wait and fewer than `at_once` groups are sent now."""
        if self._waiting and self._sending < self._at_once:
            self._sending += 1
            group = asyncio.create_task(self._send_group(), name="stepwell group")
            self._groups.add(group)
            group.add_done_callback(self._groups.discard)

    async def _send_group(self) -> None:
        group = self._next_group()
        self._send_next()  # with the items that did not fit into this group
        try:
            await self._settle(group)
        except BaseException:
            for _, future in group:
                future.cancel()
            raise
        finally:
            # Callers with new results run before this, and may submit again: those items share a group.
            asyncio.get_running_loop().call_soon(self._finish_group)

    def _next_group(self) -> list[tuple[Item, asyncio.Future[Result]]]:
        """The oldest items with a waiting caller, as many as fit into one statement."""
        self._waiting = [(item, future) for item, future in self._waiting if not future.done()]
        number, text = 0, 0
        for item, _ in self._waiting[: self._largest]:
            text += self._size(item)
            if text > LARGEST_TEXT and number:
                break
            number += 1
        group, self._waiting = self._waiting[:number], self._waiting[number:]
        return group

    async def _settle(self, group: list[tuple[Item, asyncio.Future[Result]]]) -> None:
        """Send a group and set the results. If Postgres refuses it, send its items one by one: a bad item fails only
        itself."""
        if not group:
            return
        try:
            results = await self._send([item for item, _ in group])
        except Refusal as error:
            if len(group) == 1:
                _fail(group[0][1], error)
                return
            for one in group:
                await self._settle([one])
        except Exception as error:  # noqa: BLE001 - every caller raises it
            for _, future in group:
                _fail(future, error)
        else:
            for (_, future), result in zip(group, results, strict=True):
                if not future.done():
                    future.set_result(result)


def _fail(future: asyncio.Future[Result], error: Exception) -> None:
    """Raise the error at one caller; a StoreFault as a copy, since each raise lengthens an exception's traceback."""
    if not future.done():
        raised = type(error)(str(error)) if isinstance(error, StoreFault) else error
        raised.__cause__ = error if raised is not error else error.__cause__
        future.set_exception(raised)
