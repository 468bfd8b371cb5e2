"""The engine's part of a stream of completions, for the conformance suite: records them, and accepts or refuses as
told.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager

from stepwell._core.interaction import Answer, Completion
from stepwell.transports import Transport


class Admissions:
    """The `admit` of a transport under test. An error in `refusals` is always raised, a list of them once each."""

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

    async def __call__(self, completion: Answer, /) -> Completion:
        await self._note(self.tried, completion)
        if self._hangs:
            await asyncio.Event().wait()
        refusal = self._refusals.get(completion.interaction or "")
        if isinstance(refusal, Exception):
            raise refusal
        if refusal:
            raise refusal.pop(0)
        await self._note(self.done, completion)
        return Completion(completion.interaction or "", 1, "Order", "pay", is_duplicate=False)

    @asynccontextmanager
    async def received_by(self, transport: Transport) -> AsyncIterator[None]:
        """Let a transport bring completions in, and cancel that at the end; what it raised meanwhile is raised here."""
        receiving = self._receiving = asyncio.create_task(transport.receive(self))
        await asyncio.sleep(0)  # let it start
        try:
            yield
        finally:
            receiving.cancel()
            await asyncio.wait([receiving])
        if not receiving.cancelled():
            receiving.result()

    async def admitted(self, number: int) -> None:
        """Wait until the given number is admitted."""
        await self._until(lambda: len(self.done) >= number)

    async def admitted_all(self, *interactions: str) -> None:
        """Wait until the completions of all of these are admitted."""
        await self._until(lambda: {completion.interaction for completion in self.done} >= set(interactions))

    async def tried_all(self, *interactions: str) -> None:
        """Wait until the completions of all of these have come, whether they were admitted or not."""
        await self._until(lambda: {completion.interaction for completion in self.tried} >= set(interactions))

    async def tried_some(self, number: int) -> None:
        """Wait until the given number has come."""
        await self._until(lambda: len(self.tried) >= number)

    def check_untried(self, interaction: str) -> None:
        """Check that a settled completion has not come again."""
        if any(completion.interaction == interaction for completion in self.tried):
            raise AssertionError(f"the completion of {interaction} came again although it was settled")

    async def _note(self, kept: list[Answer], completion: Answer) -> None:
        async with self._changed:
            kept.append(completion)
            self._changed.notify_all()

    async def _until(self, holds: Callable[[], bool]) -> None:
        waiting = asyncio.create_task(self._wait_for(holds))
        try:
            await asyncio.wait([waiting, *filter(None, [self._receiving])], return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done() and self._receiving is not None:
                self._receiving.result()
                raise AssertionError("receive returned without being cancelled: no further completion comes in")
        finally:
            waiting.cancel()

    async def _wait_for(self, holds: Callable[[], bool]) -> None:
        async with self._changed:
            await self._changed.wait_for(holds)
