"""A broker in memory, and a transport over it: right, and wrong in ways that are likely in a first version."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from stepwell import CompletionRefused, InvalidInput, UnknownInteraction
from stepwell.testing import AnsweringSide
from stepwell.transports import Admit, Answer, Dispatch, Transport, Undeliverable

TRIES = 5  # of a completion of an unknown interaction


class Broker:
    """Two lists of messages. A received completion comes back unless it is acknowledged."""

    def __init__(self) -> None:
        self.questions: list[bytes] = []
        self.answers: deque[bytes] = deque()
        self.dead: list[bytes] = []
        self.changed = asyncio.Condition()
        self.is_down = False
        self.is_gone = False

    async def put(self, message: bytes) -> None:
        if self.is_gone:
            raise Undeliverable("no such topic")
        if self.is_down:
            raise ConnectionRefusedError("the broker is down")
        async with self.changed:
            self.questions.append(message)
            self.changed.notify_all()

    async def reply(self, message: bytes) -> None:
        async with self.changed:
            self.answers.append(message)
            self.changed.notify_all()

    async def next(self) -> bytes:
        async with self.changed:
            await self.changed.wait_for(lambda: bool(self.answers))
            return self.answers[0]

    def acknowledge(self) -> None:
        self.answers.popleft()


class Memory(Transport):
    """The shape of every transport with a broker behind it."""

    name = "memory"

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.is_open = False

    async def open(self) -> None:
        self.is_open = True

    async def close(self) -> None:
        self.is_open = False

    async def send(self, dispatch: Dispatch, /) -> Mapping[str, Any] | None:
        if not self.is_open:
            raise ConnectionError("closed")
        await self.broker.put(msgspec.json.encode(dispatch.envelope()))
        return {"topic": "questions"}

    async def receive(self, admit: Admit, /) -> None:
        while True:
            message = await self.broker.next()
            if not await self.settle(message, admit):
                await asyncio.sleep(0)  # and once more
                continue
            self.broker.acknowledge()

    async def settle(self, message: bytes, admit: Admit) -> bool:
        """Bring one in, or put it aside; False: try again."""
        try:
            answer = msgspec.json.decode(message, type=Answer)
        except msgspec.DecodeError:
            self.broker.dead.append(message)
            return True
        for _ in range(TRIES):
            try:
                await admit(answer)
            except UnknownInteraction:
                await asyncio.sleep(0)
            except (CompletionRefused, InvalidInput):
                break
            except Exception:  # noqa: BLE001 - not judged: it comes again
                return False
            else:
                return True
        self.broker.dead.append(message)
        return True


class BrokerSide(AnsweringSide):
    """The remote end of Memory, and of what is derived from it."""

    kind: type[Memory] = Memory

    def __init__(self, kind: type[Memory] = Memory) -> None:
        self.kind = kind
        self.broker = Broker()

    def make_transport(self) -> Transport:
        return self.kind(self.broker)

    async def received(self, number: int) -> Sequence[Mapping[str, Any]]:
        async with self.broker.changed:
            await self.broker.changed.wait_for(lambda: len(self.broker.questions) >= number)
        return [msgspec.json.decode(interaction) for interaction in self.broker.questions]

    async def fail(self) -> None:
        self.broker.is_down = True

    async def recover(self) -> None:
        self.broker.is_down = False

    async def refuse(self) -> bool:
        self.broker.is_gone = True
        return True

    async def answer(self, answer: Answer, /) -> None:
        await self.broker.reply(msgspec.json.encode(answer))

    async def send_poison(self) -> None:
        await self.broker.reply(b"{no answer")
