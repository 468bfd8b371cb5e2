"""Settles one message of a broker: it is admitted, refused for good, or has to be tried again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from stepwell._process import probes
from stepwell.errors import CompletionRefused, InvalidEnvelope, InvalidInput, Undeliverable, UnknownInteraction
from stepwell.transports.base import Admit
from stepwell.transports.broker.envelope import read_completion

FIRST_PAUSE: Final = 0.1  # seconds, after the first time that a completion could not be judged
LONGEST_PAUSE: Final = 30.0
LONGEST_CONCLUSION: Final = 5.0  # seconds
MOST_KEPT: Final = 64 * 1024  # bytes of a dead letter that is too large as a whole
LEAST_KEPT: Final = 256  # bytes if its own headers are too large, or if dead letters must be small
MOST_REASON: Final = 500  # characters of a reason: it goes into a header


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a completion is refused for good."""

    code: str  # the error's name
    reason: str

    @classmethod
    def of(cls, error: Exception) -> Refusal:
        """One line of ASCII, so that it fits any broker's header."""
        text = str(error).encode("ascii", "backslashreplace").decode()
        line = "".join(sign if sign.isprintable() else "?" for sign in text)
        return cls(type(error).__name__, line[:MOST_REASON] or type(error).__name__)

    def headers(self, **origin: str) -> dict[str, str]:
        """The headers of a dead letter, with its origin."""
        return {
            "stepwell-reason-code": self.code,
            "stepwell-reason": self.reason,
            **{f"stepwell-origin-{what}": where for what, where in origin.items()},
        }


@dataclass(frozen=True, slots=True)
class Retries:
    """How often, and how far apart, a completion of an unknown interaction is tried again."""

    tries: int
    every: timedelta

    @property
    def whole(self) -> timedelta:
        return self.tries * self.every


async def settle(body: bytes | None, admit: Admit, retries: Retries) -> Refusal | None:
    """Settle one message. None: it is admitted. If an error is raised, it was not judged and has to be tried again
    later.

    A completion may be faster than the commit of its interaction: an unknown one is tried again for a while.
    """
    try:
        completion = read_completion(body or b"")
    except InvalidEnvelope as error:
        return Refusal.of(error)
    for left in reversed(range(retries.tries + 1)):
        try:
            await admit(completion)
        except UnknownInteraction as error:
            if not left:
                return Refusal.of(error)
        except (CompletionRefused, InvalidInput) as error:
            return Refusal.of(error)
        else:
            if probes.hooks:
                await probes.reach("settle.admitted", id=completion.interaction or completion.correlation)
            return None
        await asyncio.sleep(retries.every.total_seconds())
    raise AssertionError("the last try has returned")


async def publish_dead_letter(
    publish: Callable[[bytes, dict[str, str], bool], Awaitable[Any]], body: bytes, refusal: Refusal, **origin: str
) -> None:
    """Publish a dead letter, with its own headers too if the last argument of `publish` says so.

    With the reason it may be larger than the broker allows: then its beginning, or little more than the reason, is
    sent.
    """
    headers = refusal.headers(**origin)
    cut = {**headers, "stepwell-truncated": str(len(body))}
    try:
        await publish(body, headers, True)
    except Undeliverable:
        try:
            await publish(body[:MOST_KEPT], cut, True)
        except Undeliverable:
            await publish(body[:LEAST_KEPT], cut, False)


async def see_through(work: Coroutine[Any, Any, None]) -> None:
    """Conclude a judged message: if cancelled meanwhile, wait a moment longer."""
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=LONGEST_CONCLUSION)
        raise


def pause_after(tries: int) -> float:
    """Seconds to wait after the given number of times (from 1) that it could not be judged."""
    return float(min(FIRST_PAUSE * (1 << min(tries - 1, 20)), LONGEST_PAUSE))
