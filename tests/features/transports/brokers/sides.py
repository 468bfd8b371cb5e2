"""The other end of a broker, as all three have it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import msgspec
from jsonschema import Draft202012Validator

from stepwell.testing import AnsweringSide
from stepwell.transports import Answer
from stepwell.transports.broker.envelope import COMPLETION, INTERACTION, load_schema

VALIDATORS = {name: Draft202012Validator(load_schema(name)) for name in (INTERACTION, COMPLETION)}


class Letter(NamedTuple):
    """One message as it lies in the broker."""

    body: bytes
    headers: Mapping[str, str]
    key: bytes | None = None

    @property
    def document(self) -> dict[str, Any]:
        read: dict[str, Any] = msgspec.json.decode(self.body)
        return read


class BrokerSide(AnsweringSide):
    """Reads interactions and dead letters, writes completions, and can be restarted."""

    kind: ClassVar[str]  # of the transport

    @abstractmethod
    def make_transport(self, **changes: Any) -> Any:
        """A transport with these options changed."""

    @property
    @abstractmethod
    def options(self) -> dict[str, Any]:
        """Of the transport, as JSON can hold them: times are floats, in seconds."""

    @abstractmethod
    async def letters(self, number: int) -> Sequence[Letter]:
        """All interactions, once there are this many."""

    @abstractmethod
    async def dead_letters(self, number: int) -> Sequence[Letter]:
        """All dead letters, once there are this many."""

    @abstractmethod
    async def put(self, body: bytes) -> None:
        """Write a message where completions are expected."""

    @abstractmethod
    async def refuse_dead_letters(self) -> None:
        """From now on refuse writes of dead letters, at least twice."""

    async def take_dead_letters(self) -> None:
        """Allow them to be written again."""

    def carries(self, body: bytes) -> bool:
        """Whether the broker can carry such a message at all."""
        return True

    async def received(self, number: int) -> Sequence[Mapping[str, Any]]:
        interactions = [letter.document for letter in await self.letters(number)]
        for interaction in interactions:
            VALIDATORS[INTERACTION].validate(interaction)
        return interactions

    async def answer(self, answer: Answer, /) -> None:
        await self.put(envelope(answer))

    async def send_poison(self) -> None:
        await self.put(b"{no answer")

    async def reply(self, interaction: Mapping[str, Any], reply: Any, **changes: Any) -> None:
        """Complete as most systems will: the envelope comes back, with the reply."""
        document = {**interaction, "responsePayload": reply, "actor": "provider", **changes}
        VALIDATORS[COMPLETION].validate(document)
        await self.put(msgspec.json.encode(document))


def envelope(answer: Answer) -> bytes:
    """A completion as the external system writes it."""
    fields = {
        "tenantId": answer.tenant, "interactionId": answer.interaction, "correlationId": answer.correlation,
        "resumeToken": answer.token, "actor": answer.actor,
    }  # fmt: skip
    said = {name: value for name, value in fields.items() if value is not None}
    return msgspec.json.encode({**said, "responsePayload": answer.reply})
