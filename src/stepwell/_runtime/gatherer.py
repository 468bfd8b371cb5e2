"""Natural groups of single calls: idle, one is sent at once; busy, what came meanwhile goes together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from stepwell._core.faults import Refusal, StoreFault

Item = TypeVar("Item")
Answer = TypeVar("Answer")

LARGEST_GROUP = 1_000
LARGEST_TEXT = 8_000_000  # of one group, as far as its items are not larger


class Gatherer(Generic[Item, Answer]):
    """Sends items, and gives every caller the answer to its own. Nothing is kept that nobody waits for.

    `send` answers in the order of its items, all or none; `size` tells how much text an item is. A caller that is
    cancelled before its group is sent takes its item with it. With `waits_a_turn`, who comes first lets those come
    along who are about to: worth it where many come at one moment, as answers of a broker do. What does not fit into
    the `largest` group goes beside it, up to `at_once` groups; it is for `send` to keep them apart where they must be.
    """

    def __init__(
        self, send: Callable[[list[Item]], Awaitable[Sequence[Answer]]], size: Callable[[Item], int] = lambda _: 0,
        *, waits_a_turn: bool = False, largest: int = LARGEST_GROUP, at_once: int = 1,
    ) -> None:  # fmt: skip
        self._send = send
        self._size = size
        self._waits_a_turn = waits_a_turn
        self._largest = largest
        self._at_once = at_once
        self._waiting: list[tuple[Item, asyncio.Future[Answer]]] = []
        self._under_way = 0
        self._groups: set[asyncio.Task[None]] = set()

    async def submit(self, item: Item) -> Answer:
        if self._under_way or self._waits_a_turn:
            answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
            self._waiting.append((item, answer))
            if not self._under_way:
                self._go_on()
            return await answer
        self._under_way += 1
        try:
            [own] = await self._send([item])
        finally:
            self._let_next()
        return own

    def _let_next(self) -> None:
        self._under_way -= 1
        self._go_on()

    def _go_on(self) -> None:
        """Send what has gathered, if anything has."""
        if self._waiting and self._under_way < self._at_once:
            self._under_way += 1
            group = asyncio.create_task(self._send_group(), name="stepwell group")
            self._groups.add(group)
            group.add_done_callback(self._groups.discard)

    async def _send_group(self) -> None:
        group = self._next_group()
        self._go_on()  # with what has no room in this one
        try:
            await self._answer(group)
        except BaseException:
            for _, answer in group:
                answer.cancel()
            raise
        finally:
            # Whoever was just answered runs before this, and may come again: those go together once more.
            asyncio.get_running_loop().call_soon(self._let_next)

    def _next_group(self) -> list[tuple[Item, asyncio.Future[Answer]]]:
        """What came first and is still waited for, as far as it fits into one statement."""
        self._waiting = [(item, answer) for item, answer in self._waiting if not answer.done()]
        number, text = 0, 0
        for item, _ in self._waiting[: self._largest]:
            text += self._size(item)
            if text > LARGEST_TEXT and number:
                break
            number += 1
        group, self._waiting = self._waiting[:number], self._waiting[number:]
        return group

    async def _answer(self, group: list[tuple[Item, asyncio.Future[Answer]]]) -> None:
        """Answer everybody. What Postgres refuses is sent one by one: a bad item fails none of its neighbours."""
        if not group:
            return
        try:
            answers = await self._send([item for item, _ in group])
        except Refusal as error:
            if len(group) == 1:
                _fail(group[0][1], error)
                return
            for one in group:
                await self._answer([one])
        except Exception as error:  # noqa: BLE001 - it is each caller's
            for _, future in group:
                _fail(future, error)
        else:
            for (_, future), answer in zip(group, answers, strict=True):
                if not future.done():
                    future.set_result(answer)


def _fail(future: asyncio.Future[Answer], error: Exception) -> None:
    """Raise it at a caller: a fault as one of its own, since a traceback grows with everybody who raises it."""
    if not future.done():
        own = type(error)(str(error)) if isinstance(error, StoreFault) else error
        own.__cause__ = error if own is not error else error.__cause__
        future.set_exception(own)
