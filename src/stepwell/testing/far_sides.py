"""The other end of a transport under test: what an author writes so that the conformance suite can play the world."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from stepwell.transports import Answer, Transport


class FarSide(ABC):
    """What receives the questions: a server, a topic, a queue. Each promise is tried against one of its own.

    It is opened before the transport (`async with`), in the same event loop.
    """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(  # noqa: B027 - not everything has to be cleared away
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Clear away."""

    @abstractmethod
    def make_transport(self) -> Transport:
        """A transport that talks to this end. A second one stands for another process of the same application."""

    @abstractmethod
    async def received(self, number: int) -> Sequence[Mapping[str, Any]]:
        """All questions that came, as the other side reads them, once there are at least so many."""

    @abstractmethod
    async def fail(self) -> None:
        """From now on let sending fail, for a reason that passes: a server that is down."""

    @abstractmethod
    async def recover(self) -> None:
        """Let sending work again."""

    async def refuse(self) -> bool:
        """From now on let sending fail for good. False: with this transport nothing does."""
        return False


class AnsweringSide(FarSide):
    """The same where answers come back by the transport itself."""

    @abstractmethod
    async def answer(self, answer: Answer, /) -> None:
        """Send one answer, as the other side does."""

    @abstractmethod
    async def send_poison(self) -> None:
        """Send what is no answer: broken bytes, an envelope without its ids."""
