"""Brings one message of a broker in: it is admitted, or it is refused for good, or it has to be tried again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from stepwell import _probes
from stepwell.errors import CompletionRefused, InvalidEnvelope, InvalidInput, Undeliverable, UnknownInteraction
from stepwell.transports.base import Admit
from stepwell.transports.envelopes import read_answer

FIRST_PAUSE: Final = 0.1  # seconds, after the first time that nobody could judge an answer
LONGEST_PAUSE: Final = 30.0
LONGEST_CONCLUSION: Final = 5.0  # seconds
MOST_KEPT: Final = 64 * 1024  # bytes of a dead letter that is too large as a whole
LEAST_KEPT: Final = 256  # bytes of one whose own headers are too large, or whose dead letters must be small
MOST_SAID: Final = 500  # characters of a reason: it goes into a header


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an answer is not taken, now and later."""

    code: str  # the error's name
    reason: str

    @classmethod
    def of(cls, error: Exception) -> Refusal:
        """In one line of ASCII, so that it fits any broker's header."""
        said = str(error).encode("ascii", "backslashreplace").decode()
        line = "".join(sign if sign.isprintable() else "?" for sign in said)
        return cls(type(error).__name__, line[:MOST_SAID] or type(error).__name__)

    def headers(self, **origin: str) -> dict[str, str]:
        """The headers of a dead letter, with where it came from."""
        return {
            "stepwell-reason-code": self.code,
            "stepwell-reason": self.reason,
            **{f"stepwell-origin-{what}": where for what, where in origin.items()},
        }


@dataclass(frozen=True, slots=True)
class Patience:
    """How often, and how far apart, an answer is tried again whose question nobody knows yet."""

    tries: int
    every: timedelta

    @property
    def whole(self) -> timedelta:
        return self.tries * self.every


async def settle(body: bytes | None, admit: Admit, patience: Patience) -> Refusal | None:
    """Bring one in. None: it is admitted. Any error that is raised: nobody has judged it, try again later.

    An answer may be faster than the commit of its question: one that is not known is tried again for a while.
    """
    try:
        answer = read_answer(body or b"")
    except InvalidEnvelope as error:
        return Refusal.of(error)
    for left in reversed(range(patience.tries + 1)):
        try:
            await admit(answer)
        except UnknownInteraction as error:
            if not left:
                return Refusal.of(error)
        except (CompletionRefused, InvalidInput) as error:
            return Refusal.of(error)
        else:
            if _probes.hooks:
                await _probes.reach("settling.admitted", id=answer.interaction or answer.correlation)
            return None
        await asyncio.sleep(patience.every.total_seconds())
    raise AssertionError("the last try has returned")


async def put_aside(
    publish: Callable[[bytes, dict[str, str], bool], Awaitable[Any]], body: bytes, refusal: Refusal, **origin: str
) -> None:
    """Publish a dead letter, with its own headers too if the last argument of `publish` says so.

    With the reason it may be larger than the broker takes: then its beginning must do, or little more than the reason.
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
    """What is judged is concluded: if we are stopped meanwhile, for a moment more."""
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=LONGEST_CONCLUSION)
        raise


def pause_after(tries: int) -> float:
    """Seconds to wait after so many (from 1) times that nobody could judge it."""
    return float(min(FIRST_PAUSE * (1 << min(tries - 1, 20)), LONGEST_PAUSE))
