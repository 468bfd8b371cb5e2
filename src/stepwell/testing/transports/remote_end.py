"""The remote end of a transport under test: an author writes it so that the conformance suite can play the system."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from stepwell.transports import Answer, Transport


class FarSide(ABC):
    """What receives the interactions: a server, a topic, a queue. Each test has its own.

    It is opened before the transport (`async with`), in the same event loop.
    """

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(  # noqa: B027 - not everything has to be closed
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""

    @abstractmethod
    def make_transport(self) -> Transport:
        """A transport that talks to this end. A second one stands for another process of the same application."""

    @abstractmethod
    async def received(self, number: int) -> Sequence[Mapping[str, Any]]:
        """All interactions that came, as the remote end reads them, once there are at least `number`."""

    @abstractmethod
    async def fail(self) -> None:
        """From now on let sending fail, for a temporary reason: a server that is down."""

    @abstractmethod
    async def recover(self) -> None:
        """Let sending work again."""

    async def refuse(self) -> bool:
        """From now on let every sending fail for good; returns False if nothing can cause that for this transport."""
        return False


class AnsweringSide(FarSide):
    """A remote end of a transport that brings completions back."""

    @abstractmethod
    async def answer(self, completion: Answer, /) -> None:
        """Send one completion, as the external system does."""

    @abstractmethod
    async def send_poison(self) -> None:
        """Send something that is not a completion: broken bytes, an envelope without its ids."""
