"""A transport of the tests' own: keeps what it was given to send, and does what a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from stepwell.errors import CompletionRefused
from stepwell.transports import Admit, Answer, Dispatch, Transport

SOON = timedelta(milliseconds=20)
NO_REPLY = object()


class Recording(Transport):
    """Sends nowhere.

    `acts` come one per dispatch, the last one stays: an error to raise, an Event to wait for, or None. With a `reply`
    (or a function that makes one of the interaction) every interaction that was sent is completed.
    """

    def __init__(
        self, name: str = "there", *, acts: list[Any] | None = None, reply: Any = NO_REPLY, max_in_flight: int = 50
    ) -> None:
        self.name = name
        self.max_in_flight = max_in_flight
        self.sent: list[Dispatch] = []
        self.acts = acts if acts is not None else [None]
        self.opened = self.closed = 0
        self.at_open: BaseException | asyncio.Event | None = None
        self.flying = self.most_flying = 0
        self._reply = reply
        self._answers: asyncio.Queue[Answer] = asyncio.Queue()

    async def open(self) -> None:
        self.opened += 1
        await _act(self.at_open)

    async def close(self) -> None:
        self.closed += 1

    async def send(self, dispatch: Dispatch, /) -> Mapping[str, Any] | None:
        self.sent.append(dispatch)
        self.flying += 1
        self.most_flying = max(self.most_flying, self.flying)
        try:
            await _act(self.acts.pop(0) if len(self.acts) > 1 else self.acts[0])
        finally:
            self.flying -= 1
        if self._reply is not NO_REPLY:
            reply = self._reply(dispatch) if isinstance(self._reply, Callable) else self._reply  # type: ignore[arg-type]
            self._answers.put_nowait(Answer(reply=reply, correlation=dispatch.correlation_id, tenant=dispatch.tenant))
        return {"number": len(self.sent)}

    async def receive(self, admit: Admit, /) -> None:
        while True:
            with suppress(CompletionRefused):
                await admit(await self._answers.get())

    def backoff(self, attempt: int, /) -> timedelta:
        return SOON

    def ids(self) -> list[str]:
        return [dispatch.interaction_id for dispatch in self.sent]


async def _act(act: Any) -> None:
    if isinstance(act, asyncio.Event):
        await act.wait()
    elif act is not None:
        raise act
