"""The other end of a broker, as all three have it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import msgspec
from jsonschema import Draft202012Validator

from stepwell.testing import AnsweringSide
from stepwell.transports import Answer
from stepwell.transports.envelopes import ANSWER, QUESTION, load_schema

VALIDATORS = {name: Draft202012Validator(load_schema(name)) for name in (QUESTION, ANSWER)}


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
    """Reads questions and dead letters, writes answers, and can be restarted."""

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
        """All questions, once there are so many."""

    @abstractmethod
    async def dead_letters(self, number: int) -> Sequence[Letter]:
        """All dead letters, once there are so many."""

    @abstractmethod
    async def put(self, body: bytes) -> None:
        """Write something where answers are expected."""

    @abstractmethod
    async def refuse_dead_letters(self) -> None:
        """From now on let nobody write one, at least twice."""

    async def take_dead_letters(self) -> None:
        """Let them be written again."""

    def carries(self, body: bytes) -> bool:
        """Whether a message may look like that at all."""
        return True

    async def received(self, number: int) -> Sequence[Mapping[str, Any]]:
        questions = [letter.document for letter in await self.letters(number)]
        for question in questions:
            VALIDATORS[QUESTION].validate(question)
        return questions

    async def answer(self, answer: Answer, /) -> None:
        await self.put(envelope(answer))

    async def send_poison(self) -> None:
        await self.put(b"{no answer")

    async def reply(self, question: Mapping[str, Any], reply: Any, **changes: Any) -> None:
        """Answer as most will: the question comes back, with the reply."""
        document = {**question, "responsePayload": reply, "actor": "provider", **changes}
        VALIDATORS[ANSWER].validate(document)
        await self.put(msgspec.json.encode(document))


def envelope(answer: Answer) -> bytes:
    """An answer as the other side writes it."""
    fields = {
        "tenantId": answer.tenant, "interactionId": answer.interaction, "correlationId": answer.correlation,
        "resumeToken": answer.token, "actor": answer.actor,
    }  # fmt: skip
    said = {name: value for name, value in fields.items() if value is not None}
    return msgspec.json.encode({**said, "responsePayload": answer.reply})
