"""The harnesses that one async test opens, closed together."""

from __future__ import annotations

from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self

from stepwell.errors import HarnessError
from stepwell.testing.harness import Harness


class Opening:
    """Opens harnesses; they are closed at the end of its block."""

    def __init__(self, test: str) -> None:
        self._test = test
        self._stack: AsyncExitStack | None = None

    async def open(self, machines: Any = (), **options: Any) -> Harness:
        """A fresh harness, until the test ends."""
        if self._stack is None:
            raise HarnessError(f"stepwell_harness was called before {self._test} began: call it in the test itself, "
                               "or open `async with Harness(machines=[…])` in a fixture of your own")
        return await self._stack.enter_async_context(Harness(machines, **options))

    async def __aenter__(self) -> Self:
        self._stack = AsyncExitStack()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        stack, self._stack = self._stack, None
        if stack is not None:
            await stack.aclose()
