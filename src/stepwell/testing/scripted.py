"""A transport whose other side does what a test says: answers, never, later, twice, or wrongly."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from stepwell._core.interactions import Answer, Completion, Dispatch
from stepwell.errors import CompletionRefused, DefinitionError, InvalidInput
from stepwell.outcomes import UNSET
from stepwell.transports import Admit, Transport

By = Literal["interaction", "correlation", "token"]
AGAIN: Final = 0.05  # seconds, while the database is away


class _Never:
    def __repr__(self) -> str:
        return "NEVER"


NEVER: Final = _Never()
"""A reply that does not come."""


@dataclass(frozen=True, slots=True)
class Says:
    """A reply, by somebody, to the question that is named in one of three ways. A plain value is the same as this."""

    value: Any
    actor: str | None = None
    by: By = "interaction"


@dataclass(frozen=True, slots=True)
class Later:
    """A reply that is held back until `release()`: after the deadline, or after other replies."""

    value: Any


@dataclass(frozen=True, slots=True)
class Twice:
    """A reply that comes two times; or one, and then another that contradicts it."""

    value: Any
    then: Any = UNSET


class Scripted(Transport):
    """`Scripted("payments", [Paid(), NEVER, Later(Paid())])`, or a function that is asked what to reply to a Dispatch.

    Each question takes the next reply, and keeps it however often it is sent; beyond the last one, and without any,
    nobody answers. An exception in a reply's place is raised by that sending (SendFailed, Undeliverable).
    """

    def __init__(self, name: str, replies: Iterable[Any] | Callable[[Dispatch], Any] = ()) -> None:
        if isinstance(replies, (str, bytes, Mapping)):
            raise DefinitionError(f"Scripted({name!r}): replies is a list, one for each question, or a function")
        self.name = name
        self._choose = replies if callable(replies) else None
        self._script = [] if callable(replies) else list(replies)
        self._came = asyncio.Event()
        self.rewind()

    def rewind(self) -> None:
        """Begin anew; every harness does so with the transports it is given."""
        self._place = 0
        self._chosen: dict[str, Any] = {}
        self._ready: deque[Answer] = deque()
        self._held: list[Answer] = []
        self.asked: list[Dispatch] = []
        self.completions: list[Completion] = []
        self.refused: list[CompletionRefused | InvalidInput] = []

    async def open(self) -> None:
        self._came = asyncio.Event()  # of this loop; a test may open it in another one
        if self._ready:
            self._came.set()

    async def send(self, dispatch: Dispatch, /) -> Mapping[str, Any]:
        self.asked.append(dispatch)
        reply = await self._reply_to(dispatch)
        if isinstance(reply, BaseException):
            raise reply
        self._chosen[dispatch.interaction_id] = reply
        self._play(dispatch, reply)
        return {"scripted": repr(reply)[:200]}

    async def receive(self, admit: Admit, /) -> None:
        while True:
            await self._came.wait()
            try:
                await self.bring(admit)
            except Exception:  # noqa: BLE001 - whatever it is, nobody has judged the answer yet
                await asyncio.sleep(AGAIN)

    async def bring(self, admit: Admit) -> int:
        """Bring in what is ready; returns how many. What is refused is kept in `refused`."""
        brought = 0
        while self._ready:
            try:
                self.completions.append(await admit(self._ready[0]))
            except (CompletionRefused, InvalidInput) as refusal:
                self.refused.append(refusal)
            self._ready.popleft()
            brought += 1
        self._came.clear()
        return brought

    def reply(self, *replies: Any) -> None:
        """Go on with these, after what was said before."""
        if self._choose is not None:
            raise DefinitionError(f"Scripted({self.name!r}): a function decides what is replied")
        self._script.extend(replies)

    def release(self) -> int:
        """Let held replies come in, with the next drain or at once with a running worker; returns how many."""
        held, self._held = self._held, []
        for answer in held:
            self._put(answer)
        return len(held)

    async def _reply_to(self, dispatch: Dispatch) -> Any:
        if self._choose is not None:
            reply = self._choose(dispatch)
            return await reply if inspect.isawaitable(reply) else reply
        if dispatch.interaction_id in self._chosen:
            return self._chosen[dispatch.interaction_id]
        self._place += 1
        return self._script[self._place - 1] if self._place <= len(self._script) else NEVER

    def _play(self, dispatch: Dispatch, reply: Any) -> None:
        match reply:
            case _Never():
                pass
            case Later(value):
                self._held.append(_answer(dispatch, value))
            case Twice(value, then):
                self._put(_answer(dispatch, value))
                self._put(_answer(dispatch, value if then is UNSET else then))
            case _:
                self._put(_answer(dispatch, reply))

    def _put(self, answer: Answer) -> None:
        self._ready.append(answer)
        self._came.set()


def _answer(dispatch: Dispatch, reply: Any) -> Answer:
    says = reply if isinstance(reply, Says) else Says(reply)
    return Answer(
        reply=says.value,
        interaction=dispatch.interaction_id if says.by == "interaction" else None,
        correlation=dispatch.correlation_id if says.by == "correlation" else None,
        token=dispatch.token,
        actor=says.actor,
        tenant=None if says.by == "token" else dispatch.tenant,
    )
