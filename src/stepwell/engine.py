"""The composition root: builds the parts of an engine, and starts and stops them in order."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from copy import copy
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from stepwell import embedded, schema
from stepwell._core.registry import Registry
from stepwell._core.tokens import TokenKeys
from stepwell._runtime.asking import World
from stepwell._runtime.dispatcher import Opened
from stepwell._runtime.emitter import Emitter
from stepwell._runtime.hooks import Hooks
from stepwell._runtime.notifier import Notifier
from stepwell._runtime.reception import Receptions
from stepwell._runtime.threads import Around
from stepwell._runtime.worker import Worker
from stepwell._store.database import WORKER, Database, check_url
from stepwell.client import Client
from stepwell.config import Settings, load_settings
from stepwell.doors import Doors
from stepwell.errors import DefinitionError, EngineClosed, NoDatabase
from stepwell.events import Callback, Events, Hooked
from stepwell.insights import Insights
from stepwell.interactions import Interactions
from stepwell.limiting import Limiting
from stepwell.limits import Limit
from stepwell.queues import Queues
from stepwell.transports import Transport
from stepwell.transports.inbox import with_inbox

if TYPE_CHECKING:
    from stepwell.sync import SyncEngine

Resources = Callable[[], AbstractAsyncContextManager[Any]]
AnyWorker = TypeVar("AnyWorker", bound=Worker)


class Engine(Doors):
    """Durable machines and jobs on one Postgres.

    Without a URL: `$STEPWELL_DATABASE_URL`, else the embedded Postgres (`pip install 'stepwell[embedded]'`).
    """

    def __init__(
        self,
        dsn: str | None = None,
        *,
        machines: Iterable[Any] = (),
        limits: Iterable[Limit] = (),
        transports: Iterable[Transport] = (),
        token_keys: Mapping[str, str | bytes] | str | None = None,
        resources: Resources | object | None = None,
        around_sync_steps: Around | None = None,
        **settings: Any,
    ) -> None:
        self.settings = load_settings(settings)
        self._transports = with_inbox(transports)
        self._token_keys = TokenKeys.read(token_keys or os.environ.get("STEPWELL_TOKEN_KEYS") or None)
        self._registry = Registry(machines, limits, self._transports, has_token_keys=not self._token_keys.is_empty)
        self._resources = resources
        if around_sync_steps is not None and not callable(around_sync_steps):
            raise DefinitionError(f"around_sync_steps: expected a function that gives a context manager, "
                                  f"got {around_sync_steps!r}")
        self._around_sync_steps = around_sync_steps
        self._dsn = dsn if dsn is not None else os.environ.get("STEPWELL_DATABASE_URL") or None
        if self._dsn is not None:
            check_url(self._dsn)
        elif not embedded.installed():
            raise NoDatabase
        self._hooks = Hooks()
        self._emitter = Emitter(self._hooks, self.settings.large_payload)
        self._open: AsyncExitStack | None = None
        self._database: Database | None = None
        self._client: Client | None = None
        self._notifier: Notifier | None = None

    async def __aenter__(self) -> Self:
        """Open the pool and check the schema; starts nothing."""
        await self._connect()
        try:
            if self._dsn is None:
                await schema.migrate(self._opened, self._registry, self.settings)
            else:
                await schema.verify(self._opened)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the pool; the last process to leave the embedded Postgres stops it."""
        if self._database is not None:
            self._database.check_loop()
        stack, self._open = self._open, None
        self._client = self._database = self._notifier = None
        if stack is not None:
            await stack.aclose()

    async def migrate(self) -> list[str]:
        """Bring the schema up to date and make the machines known; returns the names of what was applied."""
        async with self._connected() as database:
            return await schema.migrate(database, self._registry, self.settings)

    async def check(self) -> int:
        """The schema's version, if it is the one needed; else SchemaOutdated or SchemaTooNew. Changes nothing."""
        async with self._connected() as database:
            return await schema.verify(database)

    @overload
    def on(self, events: Events, /) -> Callable[[Hooked], Hooked]: ...
    @overload
    def on(self, events: Events, callback: Callback, /) -> Callable[[], None]: ...
    def on(self, events: Events, callback: Callback | None = None, /) -> Any:
        """Call back on an event, several, or "all": `@engine.on("failed")`, or `engine.on("failed", tell)`.

        The second form returns a function that takes it off again. Callbacks run in a thread of their own, one after
        the other, and can not change or delay what the engine does; events are dropped if they are too slow.
        """
        return self._hooks.adder(events) if callback is None else self._hooks.add(events, callback)

    def off(self, callback: Callback) -> None:
        """Take a callback off every event it was hooked to."""
        self._hooks.remove(callback)

    @property
    def has_token_keys(self) -> bool:
        """Whether tokens can be signed and verified here."""
        return not self._token_keys.is_empty

    @property
    def dropped_events(self) -> int:
        """Events that callbacks were too slow for."""
        return self._hooks.dropped

    @property
    def insights(self) -> Insights:
        """Lists and figures for operators."""
        return Insights(self._opened)

    @property
    def interactions(self) -> Interactions:
        """Questions to the world: what is open, one of them, its token."""
        return self._doors.interactions

    @property
    def limits(self) -> Limiting:
        """The limits at run time: look at them, change them, reset them."""
        return self._doors.limiting

    @property
    def queues(self) -> Queues:
        """Pause and resume queues, and see what waits in them."""
        return self._doors.queues

    @property
    def sync(self) -> SyncEngine:
        """The same doors, blocking: for scripts, Flask and Django, from any thread that runs no event loop."""
        from stepwell.sync import SyncEngine  # noqa: PLC0415 - it is made of the methods of this class

        made: SyncEngine = vars(self).setdefault("_sync", SyncEngine(self))  # one, whichever thread is first
        return made

    @asynccontextmanager
    async def worker(self, /, queues: Mapping[str, int] | None = None, **settings: Any) -> AsyncIterator[Worker]:
        """A worker in this process, for the length of the block; drains at its end."""
        if not self._registry.all():
            raise DefinitionError("a worker needs machines to run: pass them to Engine(machines=[…])")
        changes = settings if queues is None else {**settings, "queues": queues}
        effective = self.settings.with_changes(changes)
        async with (
            # Its own connections: planned for its statements, and never starved by a client's burst.
            Database(self._opened.dsn, session=WORKER) as database,
            self._hired(Worker, effective, database) as worker,
        ):
            try:
                await worker.start()
                yield worker
            finally:
                await worker.stop()

    @asynccontextmanager
    async def _hired(self, kind: type[AnyWorker], settings: Settings, database: Database) -> AsyncIterator[AnyWorker]:
        """A worker with its resources, not started; the test kit brings a kind of its own."""
        notifier = self._notifier
        if notifier is None:
            raise EngineClosed
        self._opened.check_loop()
        async with self._entered_resources() as resources:
            yield kind(
                database=database, registry=self._registry, notifier=notifier, receptions=self._receptions,
                emitter=self._emitter, settings=settings, resources=resources, world=self._world,
                around_sync_steps=self._around_sync_steps,
            )  # fmt: skip

    @property
    def _world(self) -> World:
        """What a worker needs to ask the world, and to be answered."""
        completing = self._doors.completing
        return World(self._ways_out, self._token_keys, completing.complete, completing.settled)

    def _entered_resources(self) -> AbstractAsyncContextManager[Any]:
        """What steps find in `ctx.resources`: what the lifespan yields, or the object as it is."""
        return self._resources() if callable(self._resources) else nullcontext(self._resources)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Database]:
        """The database of an engine that is open, or of one that is opened for the length of the block only."""
        was_open = self._database is not None
        await self._connect()
        try:
            yield self._opened
        finally:
            if not was_open:
                await self.close()

    async def _connect(self) -> None:
        if self._database is not None:
            self._database.check_loop()
            return
        stack = AsyncExitStack()
        stack.push_async_callback(self._hooks.close)  # last: what the others still do is told
        try:
            dsn = self._dsn if self._dsn is not None else await embedded.join(stack)
            database = Database(dsn)
            await database.open()
            stack.push_async_callback(database.close)
            notifier = Notifier(database, self.settings.listener_dsn)
            notifier.start_sending()
            stack.push_async_callback(notifier.stop)
        except BaseException:
            await stack.aclose()
            raise
        self._open, self._database, self._notifier = stack, database, notifier
        self._ways_out = tuple(Opened(transport) for transport in self._transports.values())
        self._receptions = Receptions()
        self._client = Client(
            database, self._registry, notifier, self._receptions, self._emitter, self.settings, self._token_keys
        )

    def _twin(self) -> Engine:
        """The same engine, not open: for another event loop."""
        twin = copy(self)
        vars(twin).update(_open=None, _database=None, _client=None, _notifier=None)
        vars(twin).pop("_sync", None)
        return twin

    @property
    def _doors(self) -> Client:
        if self._client is None:
            raise EngineClosed
        return self._client

    @property
    def _opened(self) -> Database:
        if self._database is None:
            raise EngineClosed
        return self._database
