"""Transports that are wrong, each in one way that is likely in a first version."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

import msgspec

from stepwell import CompletionRefused
from stepwell.transports import Admit, Answer, Dispatch
from tests.features.transports.memory import Memory


class Nameless(Memory):
    name = ""


class Restless(Memory):
    def backoff(self, attempt: int, /) -> timedelta:
        return timedelta(0)


class Breathless(Memory):
    send_timeout = timedelta(0)


class Shortening(Memory):
    """Leaves out unknown fields."""

    async def send(self, dispatch: Dispatch, /) -> None:
        envelope = dispatch.envelope()
        del envelope["resumeToken"]
        await self.broker.put(msgspec.json.encode(envelope))


class Renaming(Memory):
    """Makes a new id with each sending."""

    async def send(self, dispatch: Dispatch, /) -> None:
        envelope = {**dispatch.envelope(), "correlationId": f"cor-{dispatch.attempt}"}
        await self.broker.put(msgspec.json.encode(envelope))


class Stuttering(Memory):
    async def send(self, dispatch: Dispatch, /) -> None:
        for _ in range(2):
            await self.broker.put(msgspec.json.encode(dispatch.envelope()))


class Forgetful(Memory):
    """Sends one at a time, and forgets the rest."""

    sending = False

    async def send(self, dispatch: Dispatch, /) -> None:
        if self.sending:
            return
        self.sending = True
        await asyncio.sleep(0)
        await super().send(dispatch)
        self.sending = False


class Talkative(Memory):
    async def send(self, dispatch: Dispatch, /) -> Mapping[str, Any]:
        await super().send(dispatch)
        return {"broker": {1, 2}}


class Careless(Memory):
    """Takes what failed for sent."""

    async def send(self, dispatch: Dispatch, /) -> None:
        with suppress(Exception):
            await super().send(dispatch)


class Hopeful(Memory):
    """Has no idea of never."""

    async def send(self, dispatch: Dispatch, /) -> None:
        if self.broker.is_gone:
            raise ConnectionError("no such topic")
        await super().send(dispatch)


class OneLife(Memory):
    """Can be opened once."""

    lives = 1

    async def open(self) -> None:
        if not self.lives:
            raise RuntimeError("closed")
        self.lives -= 1
        await super().open()


class Hanging(Memory):
    """Does not detect that it was closed."""

    async def send(self, dispatch: Dispatch, /) -> None:
        await asyncio.sleep(0.01)
        if not self.is_open:
            await asyncio.Event().wait()


class Clinging(Memory):
    """Suppresses its cancellation."""

    async def receive(self, admit: Admit, /) -> None:
        while True:
            try:
                await super().receive(admit)
            except asyncio.CancelledError:
                if not self.is_open:
                    raise


class Locking(Memory):
    """Keeps its lock when it is cancelled."""

    async def open(self) -> None:
        await super().open()
        self.lock = asyncio.Lock()

    async def send(self, dispatch: Dispatch, /) -> None:
        await self.lock.acquire()
        await asyncio.sleep(0)
        await super().send(dispatch)
        self.lock.release()


class Deaf(Memory):
    """Starts with the messages that arrive after its start."""

    async def open(self) -> None:
        await super().open()
        self.broker.answers.clear()


class Hasty(Memory):
    """Acknowledges first."""

    async def receive(self, admit: Admit, /) -> None:
        while True:
            message = await self.broker.next()
            self.broker.acknowledge()
            await self.settle(message, admit)


class Unacknowledging(Memory):
    """Goes through the list, and never says that it is done with anything."""

    async def receive(self, admit: Admit, /) -> None:
        at = 0
        while True:
            async with self.broker.changed:
                await self.broker.changed.wait_for(lambda: len(self.broker.answers) > at)  # noqa: B023 - waited for here
            at += await self.settle(self.broker.answers[at], admit)


class Impatient(Memory):
    """Gives up after the first refusal."""

    async def settle(self, message: bytes, admit: Admit) -> bool:
        with suppress(CompletionRefused):
            await admit(msgspec.json.decode(message, type=Answer))
        return True


class Insisting(Memory):
    """Tries for ever whatever is not taken."""

    async def settle(self, message: bytes, admit: Admit) -> bool:
        try:
            await admit(msgspec.json.decode(message, type=Answer))
        except Exception:  # noqa: BLE001 - that is what is wrong with it
            return False
        return True


class Fragile(Memory):
    """Ends with the first trouble."""

    async def settle(self, message: bytes, admit: Admit) -> bool:
        await admit(msgspec.json.decode(message, type=Answer))
        return True


class Dropping(Memory):
    """Takes an outage for a no."""

    async def settle(self, message: bytes, admit: Admit) -> bool:
        await super().settle(message, admit)
        return True


class Blurring(Memory):
    """Loses the actor of a completion."""

    async def settle(self, message: bytes, admit: Admit) -> bool:
        return await super().settle(msgspec.json.encode({**msgspec.json.decode(message), "actor": None}), admit)
