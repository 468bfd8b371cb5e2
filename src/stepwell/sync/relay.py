"""Carries statements from the loop thread back to the calling thread, whose connection no other thread may touch."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

from stepwell._store.borrowed import Borrowed, Call, lend
from stepwell._store.borrowed.call import Rows
from stepwell.sync.thread import wait_for

R = TypeVar("R")


class Relay(Borrowed):
    """Stands in for a caller's blocking connection: the loop thread asks, the calling thread sends."""

    def __init__(self, connection: object) -> None:
        self._lent = lend(connection)
        self._asked: SimpleQueue[tuple[Call, Future[Rows]] | None] = SimpleQueue()  # None: there is no more to come

    async def fetch(self, call: Call) -> Rows:
        """In the loop thread: have the calling thread send it."""
        answer: Future[Rows] = Future()
        self._asked.put((call, answer))
        return await asyncio.wrap_future(answer)

    def wait_for(self, result: Future[R]) -> R:
        """In the calling thread: send what is asked for until the result is there."""
        result.add_done_callback(lambda _: self._asked.put(None))
        try:
            while (asked := self._asked.get()) is not None:
                self._send(*asked)
        except BaseException:  # the waiting was interrupted
            result.cancel()
            raise
        return wait_for(result)

    def _send(self, call: Call, answer: Future[Rows]) -> None:
        if not answer.set_running_or_notify_cancel():
            return
        try:
            answer.set_result(self._lent.fetch(call))
        except Exception as error:  # noqa: BLE001 - the call under way raises it, and with it the door
            answer.set_exception(error)
