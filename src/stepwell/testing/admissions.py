"""An engine's side of a stream of answers, for the conformance suite: notes what comes in, and answers as told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from stepwell._core.interactions import Answer, Completion
from stepwell.transports import Transport


class Admissions:
    """The `admit` of a transport under test. An error in `refusals` is raised always, a list of them once each."""

    def __init__(
        self, refusals: Mapping[str, Exception | Sequence[Exception]] | None = None, *, hangs: bool = False
    ) -> None:
        self._refusals = {
            name: error if isinstance(error, Exception) else list(error) for name, error in (refusals or {}).items()
        }
        self._hangs = hangs
        self._changed = asyncio.Condition()
        self._receiving: asyncio.Task[None] | None = None
        self.tried: list[Answer] = []
        self.done: list[Answer] = []

    async def __call__(self, answer: Answer, /) -> Completion:
        await self._note(self.tried, answer)
        if self._hangs:
            await asyncio.Event().wait()
        refusal = self._refusals.get(answer.interaction or "")
        if isinstance(refusal, Exception):
            raise refusal
        if refusal:
            raise refusal.pop(0)
        await self._note(self.done, answer)
        return Completion(answer.interaction or "", 1, "Order", "pay", is_duplicate=False)

    @asynccontextmanager
    async def received_by(self, transport: Transport) -> AsyncIterator[None]:
        """Let a transport bring answers in, and cancel that at the end; what it raised meanwhile is raised here."""
        receiving = self._receiving = asyncio.create_task(transport.receive(self))
        await asyncio.sleep(0)  # let it begin
        try:
            yield
        finally:
            receiving.cancel()
            await asyncio.wait([receiving])
        if not receiving.cancelled():
            receiving.result()

    async def admitted(self, number: int) -> None:
        """Wait until so many are in."""
        await self._until(lambda: len(self.done) >= number)

    async def admitted_all(self, *interactions: str) -> None:
        """Wait until the answers to all of these are in."""
        await self._until(lambda: {answer.interaction for answer in self.done} >= set(interactions))

    async def tried_all(self, *interactions: str) -> None:
        """Wait until the answers to all of these have come, whether they were let in or not."""
        await self._until(lambda: {answer.interaction for answer in self.tried} >= set(interactions))

    async def tried_some(self, number: int) -> None:
        """Wait until so many have come, whichever they are."""
        await self._until(lambda: len(self.tried) >= number)

    def check_untried(self, interaction: str) -> None:
        """What was over before has not come again."""
        if any(answer.interaction == interaction for answer in self.tried):
            raise AssertionError(f"the answer to {interaction} came again although it was over")

    async def _note(self, kept: list[Answer], answer: Answer) -> None:
        async with self._changed:
            kept.append(answer)
            self._changed.notify_all()

    async def _until(self, holds: Callable[[], bool]) -> None:
        waiting = asyncio.create_task(self._wait_for(holds))
        try:
            await asyncio.wait([waiting, *filter(None, [self._receiving])], return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done() and self._receiving is not None:
                self._receiving.result()
                raise AssertionError("receive returned although nobody had cancelled it: no further answer comes in")
        finally:
            waiting.cancel()

    async def _wait_for(self, holds: Callable[[], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(holds)
