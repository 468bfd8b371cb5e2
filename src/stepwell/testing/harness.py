"""An engine on a database of its own, cloned from a migrated template; time moves when told to."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AsyncExitStack
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from stepwell._store import clones
from stepwell.engine import Engine
from stepwell.testing.keeper import SERVER_SETTINGS, keeper

__all__ = ["SERVER_SETTINGS", "Harness"]


class Harness:
    """`async with Harness(machines=[…]) as h:` gives `h.engine`; on `$STEPWELL_TEST_DATABASE_URL`'s server if set."""

    def __init__(self, machines: Iterable[Any] = (), *, resources: Any = None, **settings: Any) -> None:
        self._machines = list(machines)
        self._resources = resources
        self._settings = settings
        self._stack = AsyncExitStack()
        self._offset = timedelta(0)
        self.url = ""
        self.engine: Engine = None  # type: ignore[assignment]  # set when the harness is entered

    async def __aenter__(self) -> Self:
        try:
            kept = keeper()
            self.url = await kept.take()
            self._stack.callback(kept.give_back, self.url)
            self.engine = await self._stack.enter_async_context(self.another_engine())
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def another_engine(self, **settings: Any) -> Engine:
        """A second engine on the same database, as another process would have it."""
        return Engine(self.url, machines=self._machines, resources=self._resources, **{**self._settings, **settings})

    async def advance(self, by: timedelta) -> None:
        """Move the engine's clock ahead. Leases and heartbeats stay in real time."""
        self._offset += by
        await clones.move_clock(self.url, self._offset)

    async def sql(self, statement: str, *args: Any) -> list[Any]:
        """Send one statement to the test's database."""
        return await clones.query(self.url, statement, *args)
