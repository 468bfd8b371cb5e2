"""A harness for tests without await: it runs in its own loop, in a thread, and every call blocks."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

from stepwell._client.client import Handle
from stepwell.engine import Engine
from stepwell.errors import HarnessError
from stepwell.testing.harness import Harness

Run = Callable[[Awaitable[Any]], Any]


class Blocking:
    """An object of the kit or the engine with async methods that block instead."""

    def __init__(self, target: Any, run: Run) -> None:
        self._target = target
        self._run = run

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if not callable(value):
            return self._blocked(value)

        def call(*args: Any, **kwargs: Any) -> Any:
            result = value(*map(_plain, args), **{name: _plain(arg) for name, arg in kwargs.items()})
            return self._blocked(self._run(result) if inspect.isawaitable(result) else result)

        return call

    def __repr__(self) -> str:
        return f"<blocking {self._target!r}>"

    def _blocked(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._blocked(item) for item in value]
        return Blocking(value, self._run) if isinstance(value, Engine | Handle) else value


class BlockingHarness(Blocking):
    """`with BlockingHarness([Checkout]) as h:` has all that a Harness has, without any await. Open from the start."""

    def __init__(self, machines: Any = (), **options: Any) -> None:
        harness = Harness(machines, **options)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="stepwell harness", daemon=True)
        self._thread.start()
        super().__init__(harness, self._wait)
        try:
            self._wait(harness.__aenter__())
        except BaseException:
            self._end_loop()
            raise

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "resources":
            self._target.resources = value
        else:
            super().__setattr__(name, value)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Return the database. Closing twice does nothing."""
        if not self._loop.is_closed():
            self._wait(self._target.__aexit__(None, None, None))
            self._end_loop()

    def _wait(self, work: Awaitable[Any]) -> Any:
        if self._loop.is_closed():
            raise HarnessError("this harness is closed")
        return asyncio.run_coroutine_threadsafe(_awaited(work), self._loop).result()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _awaited(work: Awaitable[Any]) -> Any:
    return await work


def _plain(value: Any) -> Any:
    return value._target if isinstance(value, Blocking) else value  # noqa: SLF001 - its own class
