"""An engine on its own database, cloned from a migrated template; the clock moves and workers die when told to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from functools import cached_property
from types import TracebackType
from typing import Any, Self

from stepwell._core.instance import Claim, Instance
from stepwell._core.registry import Registry
from stepwell._store.testing import databases
from stepwell._store.testing.queries import KitQueries
from stepwell.config import SCHEMA
from stepwell.engine import Engine
from stepwell.errors import HarnessError, InvalidInput
from stepwell.limits import Limit
from stepwell.testing import assertions
from stepwell.testing.assertions import ANY, ErrorLike, Target
from stepwell.testing.databases.pool import database_pool
from stepwell.testing.databases.stock import SERVER_SETTINGS
from stepwell.testing.drain import Drain, DrainOptions, Look, WorkerConnections
from stepwell.testing.drain_report import Ran, Tally
from stepwell.testing.effects import Effect, Effects
from stepwell.testing.faults import Fault
from stepwell.testing.transports.scripted import Scripted

__all__ = ["SERVER_SETTINGS", "Harness"]


class Harness:
    """`async with Harness(machines=[…]) as h:` gives `h.engine`; on `$STEPWELL_TEST_DATABASE_URL`'s server if set."""

    def __init__(
        self, machines: Iterable[Any] = (), *, limits: Iterable[Limit] = (), resources: Any = None, **settings: Any
    ) -> None:
        self._limits = list(limits)
        self._machines = check_machines(machines, self._limits)
        self._resources = resources
        self._settings = settings
        self._stack = AsyncExitStack()
        self._offset = timedelta(0)
        self._engine: Engine | None = None
        self._effects = Effects()
        self._faults: list[Fault] = []
        self._look: Look = _see_nothing
        self._trail: list[Ran] = []
        self._is_draining = False
        self.url = ""

    async def __aenter__(self) -> Self:
        if self._engine is not None:
            raise HarnessError("this harness is already open; make another one for another database")
        _check_asyncio()
        for transport in self._settings.get("transports", ()):
            if isinstance(transport, Scripted):
                transport.rewind()
        try:
            kept = database_pool()
            self.url = await kept.take()
            self._stack.callback(kept.give_back, self.url)
            engine = self.another_engine()
            if engine.settings.schema != SCHEMA:
                await databases.add_schema(self.url, engine.settings.schema)
            self.engine = await self._stack.enter_async_context(engine)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._engine = None
        await self._stack.aclose()

    @property
    def engine(self) -> Engine:
        """The engine under test."""
        if self._engine is None:
            raise HarnessError("the harness is not open; use it inside `async with Harness(machines=[…]) as h:`")
        return self._engine

    @engine.setter
    def engine(self, engine: Engine) -> None:
        self._engine = engine

    def another_engine(self, **settings: Any) -> Engine:
        """A second engine on the same database, like that of another process."""
        if not self.url:
            raise HarnessError("the harness is not open; use it inside `async with Harness(machines=[…]) as h:`")
        return Engine(
            self.url, machines=self._machines, limits=self._limits, resources=self._resources,
            **{**self._settings, **settings},
        )  # fmt: skip

    @property
    def resources(self) -> Any:
        """What steps find in `ctx.resources`; set it before you drain, to fakes that use this harness."""
        return self._resources

    @resources.setter
    def resources(self, resources: Any) -> None:
        self._resources = self.engine._resources = resources  # noqa: SLF001 - the engine belongs to the kit

    async def drain(
        self,
        *,
        queues: str | Sequence[str] | None = None,
        with_scheduled: bool = False,
        max_steps: int = 1_000,
        concurrency: int = 1,
        timeout: float = 30.0,
    ) -> Tally:
        """Run whatever may run, with a real worker, until nothing may; returns what was done.

        One step at a time, most urgent first, in all queues or the given ones. What is parked or due later stays;
        `with_scheduled=True` moves the clock to the next due time until nothing is due. After `max_steps`, or when a
        step does not return within `timeout` seconds, HarnessError says what was done last.
        """
        engine = self.engine
        if self._is_draining:
            raise HarnessError("a drain of this harness runs already; await it before you drain again")
        faults, self._faults = self._faults, []
        options = DrainOptions(
            queues=_names(queues), max_steps=_whole("max_steps", max_steps), slots=_whole("concurrency", concurrency),
            patience=timeout, faults=faults,
        )  # fmt: skip
        drain = Drain(
            engine, self._kit_queries, self._connections, options, look=self._look, note=self._trail.append
        )
        self._is_draining = True
        try:
            return await drain.run(self._advance_to if with_scheduled else None)
        finally:
            self._is_draining = False

    def crash(self, point: str, *, nth: int = 1, step: str | None = None) -> None:
        """Let the worker of the next drain die where it reaches a point for the nth time, like a killed process.

        Nothing is released or committed from there on; the drain continues with a fresh worker that reaps it. `step`
        ("pay" or "Checkout.pay") counts only what that step reaches. Points: `stepwell.testing.POINTS`.
        """
        self._faults.append(Fault(point, nth=nth, step=step))

    def now(self) -> datetime:
        """The engine's time in Python: the real one, and what `advance` added."""
        return datetime.now(UTC) + self._offset

    async def advance(self, by: timedelta) -> None:
        """Move the clock ahead, in SQL and in `h.now()`. Leases and heartbeats stay in real time."""
        if not isinstance(by, timedelta) or by < timedelta(0):
            raise InvalidInput("by", f"expected a timedelta from 0 on, got {by!r}: the clock does not go back")
        url = self._opened_url
        self._offset += by
        await databases.move_clock(url, self._offset, self.engine.settings.schema)

    async def fire_timeouts(self) -> int:
        """Move the clock to the latest deadline that a parked instance has; returns how many have one."""
        number, latest = await self._kit_queries.deadlines()
        if latest is not None:
            await self._advance_to(latest)
        return number

    def record(self, name: str, **facts: Any) -> None:
        """Record an effect outside of the engine: a crash does not erase it."""
        self._effects.record(name, facts)

    @property
    def effects(self) -> list[Effect]:
        """What was recorded, in order."""
        return self._effects.all()

    async def assert_done(self, target: Target, result: Any = ANY, *, tenant: str | None = None) -> Instance:
        """The instance is done, with this result; else AssertionError says what it did instead."""
        return await assertions.assert_done(self.engine, target, result, tenant=tenant)

    async def assert_failed(
        self, target: Target, error: ErrorLike | None = None, *, tenant: str | None = None
    ) -> Instance:
        """The instance failed, with this error: a part of its text, a pattern, or an exception type."""
        return await assertions.assert_failed(self.engine, target, error, tenant=tenant)

    async def assert_waiting(
        self, target: Target, for_: str | Iterable[str] | None = None, *, tenant: str | None = None
    ) -> Instance:
        """The instance is parked: for this signal (or these), for "children", or, if not given, for anything."""
        return await assertions.assert_waiting(self.engine, target, for_, tenant=tenant)

    async def assert_cancelled(
        self, target: Target, reason: str | None = None, *, tenant: str | None = None
    ) -> Instance:
        """The instance was cancelled, for this reason."""
        return await assertions.assert_cancelled(self.engine, target, reason, tenant=tenant)

    async def sql(self, statement: str, *args: Any) -> list[Any]:
        """Send one statement to the test's database."""
        return await databases.query(self._opened_url, statement, *args)

    @property
    def _opened_url(self) -> str:
        self.engine  # noqa: B018 - raises if the harness is closed
        return self.url

    @cached_property
    def _kit_queries(self) -> KitQueries:
        kit_queries = KitQueries(self._opened_url, self.engine.settings.schema)
        self._stack.push_async_callback(kit_queries.close)
        return kit_queries

    @cached_property
    def _connections(self) -> WorkerConnections:
        connections = WorkerConnections(self._opened_url, self.engine.settings.schema)
        self._stack.push_async_callback(connections.close)
        return connections

    async def _advance_to(self, instant: datetime) -> None:
        ahead = instant - await self._kit_queries.clock()
        await self.advance(max(ahead, timedelta(0)) + timedelta(milliseconds=1))


def _check_asyncio() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise HarnessError("a harness needs asyncio, and no loop of it runs here; with anyio, let the test run on its "
                           "backend 'asyncio'") from None


def _see_nothing(_: str, __: Claim | None) -> bool:
    return False


def check_machines(machines: Any, limits: Iterable[Limit] = ()) -> list[Any]:
    """A list of machines and jobs, or an error that says how to write it."""
    if isinstance(machines, str | bytes) or not isinstance(machines, Iterable):
        raise InvalidInput("machines", f"expected a list of machines and jobs, got {machines!r}; write "
                           f"machines=[{getattr(machines, '__name__', 'Checkout')}]")
    found = list(machines)
    Registry(found, limits)  # refuses what is not a machine or job
    return found


def _names(queues: str | Sequence[str] | None) -> list[str] | None:
    if queues is None or isinstance(queues, str):
        return None if queues is None else [queues]
    return list(queues)


def _whole(field: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidInput(field, f"expected a whole number from 1, got {value!r}")
    return value
