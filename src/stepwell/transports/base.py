"""What a transport is: a name, a way to send interactions, and perhaps a stream of completions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, TypeAlias

from stepwell._core.interaction import Answer, Completion, Dispatch

Admit: TypeAlias = Callable[[Answer], Awaitable[Completion]]
"""Admit a completion. CompletionRefused, or InvalidInput (it is too large), refuses it for good; but
UnknownInteraction may mean that it came too early. Any other error: try again later.
"""

FIRST_BACKOFF = timedelta(seconds=1)
LONGEST_BACKOFF = timedelta(minutes=5)
MARGIN = timedelta(seconds=30)


class Transport(ABC):
    """Sends interactions. One object serves a whole engine; a worker opens it, sends over it and closes it.

    Sending is at least once: after a crash the same interaction is sent again, with the same ids.
    """

    name: str
    sends: bool = True  # False: nothing is sent; people or programs look into the list
    max_in_flight: int = 50  # sendings at a time, in one worker
    send_timeout: timedelta = timedelta(seconds=60)  # of one sending: then it is cancelled and has failed

    async def open(self) -> None:  # noqa: B027 - many have no connection
        """Connect. A worker calls it before anything is sent, and once more after `close`."""

    async def close(self) -> None:  # noqa: B027 - the same
        """Close connections."""

    @abstractmethod
    async def send(self, dispatch: Dispatch, /) -> Mapping[str, Any] | None:
        """Send one interaction; returns facts to keep with it (a JSON object).

        Undeliverable fails it. After any other error it is sent again: after `backoff`, or after the time of
        SendFailed.
        """

    async def receive(self, admit: Admit, /) -> None:  # noqa: B027 - the completions of many come by HTTP
        """Bring completions in until cancelled; acknowledge each after it was admitted. Without a stream: return."""

    def backoff(self, attempt: int, /) -> timedelta:
        """How long to wait before the next attempt, after the given number of attempts (from 1)."""
        return min(FIRST_BACKOFF * (1 << min(attempt - 1, 20)), LONGEST_BACKOFF)


def outlasting(timeout: timedelta) -> timedelta:
    """The `send_timeout` of a transport with its own timeout: that one comes first, its error says more."""
    return max(Transport.send_timeout, timeout + MARGIN)
