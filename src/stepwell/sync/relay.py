"""Relays statements from the loop thread to the calling thread: no other thread may use its connection."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

from stepwell._store.drivers import Borrowed, Call, lend
from stepwell._store.drivers.call import Rows
from stepwell.sync.loop_thread import wait_for

R = TypeVar("R")


class Relay(Borrowed):
    """Replaces a caller's blocking connection: the loop thread asks, the calling thread sends."""

    def __init__(self, connection: object) -> None:
        self._lent = lend(connection)
        self._calls: SimpleQueue[tuple[Call, Future[Rows]] | None] = SimpleQueue()  # None ends the queue

    async def fetch(self, call: Call) -> Rows:
        """In the loop thread: let the calling thread send it."""
        result: Future[Rows] = Future()
        self._calls.put((call, result))
        return await asyncio.wrap_future(result)

    def wait_for(self, result: Future[R]) -> R:
        """In the calling thread: send the statements that arrive until the result is there."""
        result.add_done_callback(lambda _: self._calls.put(None))
        try:
            while (asked := self._calls.get()) is not None:
                self._send(*asked)
        except BaseException:  # the wait was interrupted
            result.cancel()
            raise
        return wait_for(result)

    def _send(self, call: Call, result: Future[Rows]) -> None:
        if not result.set_running_or_notify_cancel():
            return
        try:
            result.set_result(self._lent.fetch(call))
        except Exception as error:  # noqa: BLE001 - the call under way raises it, and so does the blocking method
            result.set_exception(error)
