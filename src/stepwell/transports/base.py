"""What a transport is: a name, a way to send, and perhaps a stream of answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, TypeAlias

from stepwell._core.interactions import Answer, Completion, Dispatch

Admit: TypeAlias = Callable[[Answer], Awaitable[Completion]]
"""Bring an answer in. A CompletionRefused, or an InvalidInput (it is too large), says for good that it is not taken;
but an UnknownInteraction may be an answer that came too early. Any other error: try again later."""

FIRST_BACKOFF = timedelta(seconds=1)
LONGEST_BACKOFF = timedelta(minutes=5)
MARGIN = timedelta(seconds=30)


class Transport(ABC):
    """A way out. One object serves a whole engine; a worker opens it, sends over it and closes it.

    Sending is at least once: after a crash the same question is sent again, with the same ids.
    """

    name: str
    sends: bool = True  # False: nothing goes out, somebody looks for it
    max_in_flight: int = 50  # sendings at a time, in one worker
    send_timeout: timedelta = timedelta(seconds=60)  # of one sending: cancelled then, it has failed

    async def open(self) -> None:  # noqa: B027 - many have nothing to connect to
        """Connect. Called by a worker before anything is sent; once more after `close`."""

    async def close(self) -> None:  # noqa: B027 - the same
        """Let go of connections."""

    @abstractmethod
    async def send(self, dispatch: Dispatch, /) -> Mapping[str, Any] | None:
        """Send one question; returns facts to keep with it (a JSON object).

        Undeliverable fails it. After any other error it is sent again: after `backoff`, or after what SendFailed says.
        """

    async def receive(self, admit: Admit, /) -> None:  # noqa: B027 - answers to many come through other doors
        """Bring answers in until cancelled, each acknowledged after it was admitted. Without a stream: return."""

    def backoff(self, attempt: int, /) -> timedelta:
        """How long to wait before the next try, after so many (from 1)."""
        return min(FIRST_BACKOFF * (1 << min(attempt - 1, 20)), LONGEST_BACKOFF)


def outlasting(timeout: timedelta) -> timedelta:
    """The `send_timeout` of a transport with a timeout of its own: that one comes first, its error says more."""
    return max(Transport.send_timeout, timeout + MARGIN)
