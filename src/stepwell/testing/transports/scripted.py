"""A transport with a remote end that does what a test says: replies, never, later, twice, or wrongly."""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from stepwell._core.interaction import Answer, Completion, Dispatch
from stepwell.errors import CompletionRefused, DefinitionError, InvalidInput
from stepwell.outcomes import UNSET
from stepwell.transports import Admit, Transport

By = Literal["interaction", "correlation", "token"]
AGAIN: Final = 0.05  # seconds, while the database is unavailable


class _Never:
    def __repr__(self) -> str:
        return "NEVER"


NEVER: Final = _Never()
"""A reply that does not come."""


@dataclass(frozen=True, slots=True)
class Says:
    """A reply with its actor, to the interaction that is named in one of three ways. A plain value means the same."""

    value: Any
    actor: str | None = None
    by: By = "interaction"


@dataclass(frozen=True, slots=True)
class Later:
    """A reply that is held back until `release()`: after the deadline, or after other replies."""

    value: Any


@dataclass(frozen=True, slots=True)
class Twice:
    """A reply that comes twice; or one, and then another that contradicts it."""

    value: Any
    then: Any = UNSET


class Scripted(Transport):
    """`Scripted("payments", [Paid(), NEVER, Later(Paid())])`, or a function that returns the reply to a Dispatch.

    Each interaction takes the next reply, and keeps it however often it is sent; without a reply, or after the last
    one, none comes. An exception in a reply's place is raised by that sending (SendFailed, Undeliverable).
    """

    def __init__(self, name: str, replies: Iterable[Any] | Callable[[Dispatch], Any] = ()) -> None:
        if isinstance(replies, (str, bytes, Mapping)):
            raise DefinitionError(f"Scripted({name!r}): replies is a list, one for each interaction, or a function")
        self.name = name
        self._choose = replies if callable(replies) else None
        self._script = [] if callable(replies) else list(replies)
        self._arrived = asyncio.Event()
        self.rewind()

    def rewind(self) -> None:
        """Start again; every harness does so with the transports it is given."""
        self._place = 0
        self._chosen: dict[str, Any] = {}
        self._ready: deque[Answer] = deque()
        self._held: list[Answer] = []
        self.asked: list[Dispatch] = []
        self.completions: list[Completion] = []
        self.refused: list[CompletionRefused | InvalidInput] = []

    async def open(self) -> None:
        self._arrived = asyncio.Event()  # of this loop; a test may open it in another one
        if self._ready:
            self._arrived.set()

    async def send(self, dispatch: Dispatch, /) -> Mapping[str, Any]:
        self.asked.append(dispatch)
        reply = await self._reply_to(dispatch)
        if isinstance(reply, BaseException):
            raise reply
        self._chosen[dispatch.interaction_id] = reply
        self._schedule(dispatch, reply)
        return {"scripted": repr(reply)[:200]}

    async def receive(self, admit: Admit, /) -> None:
        while True:
            await self._arrived.wait()
            try:
                await self.bring(admit)
            except Exception:  # noqa: BLE001 - whatever it is, the completion is not judged yet
                await asyncio.sleep(AGAIN)

    async def bring(self, admit: Admit) -> int:
        """Bring in what is ready; returns how many. Refused ones are kept in `refused`."""
        brought = 0
        while self._ready:
            try:
                self.completions.append(await admit(self._ready[0]))
            except (CompletionRefused, InvalidInput) as refusal:
                self.refused.append(refusal)
            self._ready.popleft()
            brought += 1
        self._arrived.clear()
        return brought

    def reply(self, *replies: Any) -> None:
        """Continue with these, after the earlier ones."""
        if self._choose is not None:
            raise DefinitionError(f"Scripted({self.name!r}): the function decides the replies")
        self._script.extend(replies)

    def release(self) -> int:
        """Let held replies come in, with the next drain or at once with a running worker; returns how many."""
        held, self._held = self._held, []
        for completion in held:
            self._put(completion)
        return len(held)

    async def _reply_to(self, dispatch: Dispatch) -> Any:
        if self._choose is not None:
            reply = self._choose(dispatch)
            return await reply if inspect.isawaitable(reply) else reply
        if dispatch.interaction_id in self._chosen:
            return self._chosen[dispatch.interaction_id]
        self._place += 1
        return self._script[self._place - 1] if self._place <= len(self._script) else NEVER

    def _schedule(self, dispatch: Dispatch, reply: Any) -> None:
        match reply:
            case _Never():
                pass
            case Later(value):
                self._held.append(_completion(dispatch, value))
            case Twice(value, then):
                self._put(_completion(dispatch, value))
                self._put(_completion(dispatch, value if then is UNSET else then))
            case _:
                self._put(_completion(dispatch, reply))

    def _put(self, completion: Answer) -> None:
        self._ready.append(completion)
        self._arrived.set()


def _completion(dispatch: Dispatch, reply: Any) -> Answer:
    given = reply if isinstance(reply, Says) else Says(reply)
    return Answer(
        reply=given.value,
        interaction=dispatch.interaction_id if given.by == "interaction" else None,
        correlation=dispatch.correlation_id if given.by == "correlation" else None,
        token=dispatch.token,
        actor=given.actor,
        tenant=None if given.by == "token" else dispatch.tenant,
    )
