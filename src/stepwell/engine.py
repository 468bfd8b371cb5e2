"""The composition root: builds the parts of an engine, and starts and stops them in order."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from copy import copy
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from stepwell import embedded
from stepwell._client.admin import schema
from stepwell._client.admin.insights import Insights
from stepwell._client.admin.interactions import Interactions
from stepwell._client.admin.limits import LimitOperations
from stepwell._client.admin.queues import Queues
from stepwell._client.call_timeout import Calls, Timeout
from stepwell._client.client import Client
from stepwell._core.registry import Registry
from stepwell._core.resume_token import TokenKeys
from stepwell._dispatch.opened import Opened
from stepwell._dispatch.service import DispatchSetup
from stepwell._hooks.emitter import Emitter
from stepwell._hooks.runner import Hooks
from stepwell._notify.notifier import Notifier
from stepwell._process.threads import Around
from stepwell._store.connection.pool import WORKER, Database
from stepwell._store.connection.settings import Bounds
from stepwell._store.connection.timeline import Timelines
from stepwell._worker.worker import Worker
from stepwell.config import Settings, check_url, load_settings
from stepwell.errors import DefinitionError, EngineClosed, NoDatabase, SettingError
from stepwell.events import Callback, Events, Hooked
from stepwell.limits import Limit
from stepwell.operations import Operations
from stepwell.transports import Transport
from stepwell.transports.manual import with_manual

if TYPE_CHECKING:
    from stepwell.sync import SyncEngine

Resources = Callable[[], AbstractAsyncContextManager[Any]]
AnyWorker = TypeVar("AnyWorker", bound=Worker)

CLOSING = 0.8  # seconds for closing an engine; callbacks of hooks have what nothing else needs of them
LEAST_FOR_HOOKS = 0.1


class Engine(Operations):
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
        self._transports = with_manual(transports)
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
        self._close_until = 0.0  # by the loop's time
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
        """Close the pool; the last process that uses the embedded Postgres stops it."""
        if self._database is not None:
            self._database.check_loop()
        self._close_until = asyncio.get_running_loop().time() + CLOSING
        stack, self._open = self._open, None
        self._client = self._database = self._notifier = None
        if stack is not None:
            await stack.aclose()

    async def _close_hooks(self) -> None:
        left = self._close_until - asyncio.get_running_loop().time()
        await self._hooks.close(max(left, LEAST_FOR_HOOKS))

    async def migrate(self, *, client_role: str | None = None, timeout: Timeout | None = None) -> list[str]:
        """Migrate the schema and register the machines; returns the names of the applied migrations.

        `client_role` is the role that may call the SQL functions; by default the previous one, or else a name made of
        the schema's name, `_client_` and the name of the database.
        Without a `timeout` it may take a day: a migration may build an index over many millions of rows.
        """
        schema.check_role(client_role)
        calls = Calls(schema.LONGEST_MIGRATION)
        return await calls.within("migrate", timeout, self._migrate(client_role))

    async def _migrate(self, client_role: str | None) -> list[str]:
        async with self._connected() as database:
            return await schema.migrate(database, self._registry, self.settings, client_role)

    async def check(self, *, timeout: Timeout | None = None) -> int:
        """The schema's version, if this code may run on it; else SchemaOutdated or SchemaTooNew. Changes nothing."""
        return await Calls(self.settings.call_timeout).within("check", timeout, self._check())

    async def _check(self) -> int:
        async with self._connected() as database:
            return await schema.verify(database)

    @overload
    def on(self, events: Events, /) -> Callable[[Hooked], Hooked]: ...
    @overload
    def on(self, events: Events, callback: Callback, /) -> Callable[[], None]: ...
    def on(self, events: Events, callback: Callback | None = None, /) -> Any:
        """Call back on an event, several, or "all": `@engine.on("failed")`, or `engine.on("failed", tell)`.

        The second form returns a function that removes the callback. Callbacks run in a separate thread, one after the
        other, and cannot change or delay what the engine does; events are dropped if callbacks are too slow.
        """
        return self._hooks.adder(events) if callback is None else self._hooks.add(events, callback)

    def off(self, callback: Callback) -> None:
        """Remove a callback from every event it was hooked to."""
        self._hooks.remove(callback)

    @property
    def has_token_keys(self) -> bool:
        """Whether this engine can sign and verify tokens."""
        return not self._token_keys.is_empty

    @property
    def dropped_events(self) -> int:
        """The number of events that were dropped because callbacks were too slow."""
        return self._hooks.dropped

    @property
    def insights(self) -> Insights:
        """Lists and figures for operators."""
        return Insights(self._opened, self._operations.calls)

    @property
    def interactions(self) -> Interactions:
        """Interactions with external systems: the open ones, a single one, its token."""
        return self._operations.interactions

    @property
    def limits(self) -> LimitOperations:
        """The limits at run time: list them, change them, reset them."""
        return self._operations.limiting

    @property
    def queues(self) -> Queues:
        """Pause and resume queues, and see what waits in them."""
        return self._operations.queues

    @property
    def sync(self) -> SyncEngine:
        """The same operations, blocking: for scripts, Flask and Django, from any thread that runs no event loop."""
        from stepwell.sync import SyncEngine  # noqa: PLC0415 - it is made of the methods of this class

        made: SyncEngine = vars(self).setdefault("_sync", SyncEngine(self))  # one, even if threads race
        return made

    @asynccontextmanager
    async def worker(self, /, queues: Mapping[str, int] | None = None, **settings: Any) -> AsyncIterator[Worker]:
        """A worker in this process, for the length of the block; drains at its end.

        If the block ends by an exception before `worker.stop()`, steps that do not end in time count as crashes.
        """
        if not self._registry.all():
            raise DefinitionError("a worker needs machines to run: pass them to Engine(machines=[…])")
        changes = settings if queues is None else {**settings, "queues": queues}
        effective = self.settings.with_changes(changes)
        if effective.schema != self.settings.schema:
            raise SettingError("schema", "belongs to the engine; give it to Engine(schema=…)")
        async with (
            # A pool of its own: its plans fit the worker's statements, and a client's burst cannot exhaust it.
            Database(
                self._opened.dsn, session=WORKER, bounds=Bounds.of_worker(effective.lease), timelines=Timelines(),
                outages=self._opened.outages, schema=self.settings.schema,
            ) as database,
            self._hired(Worker, effective, database) as worker,
        ):
            block = asyncio.current_task()
            assert block is not None  # noqa: S101 - a coroutine runs in a task
            worker.end_block = block.cancel
            try:
                await worker.start()
                yield worker
            except BaseException as error:
                worker.retirement.break_off(error)
                raise
            finally:
                await worker.stop()

    @asynccontextmanager
    async def _hired(self, kind: type[AnyWorker], settings: Settings, database: Database) -> AsyncIterator[AnyWorker]:
        """A worker with its resources, not started; the test kit passes a class of its own."""
        notifier = self._notifier
        if notifier is None:
            raise EngineClosed
        self._opened.check_loop()
        notifier.watch(database)
        async with self._entered_resources() as resources:
            yield kind(
                database=database, registry=self._registry, notifier=notifier, emitter=self._emitter,
                settings=settings, resources=resources, dispatch_setup=self._dispatch_setup,
                around_sync_steps=self._around_sync_steps,
            )  # fmt: skip

    @property
    def _dispatch_setup(self) -> DispatchSetup:
        """What a worker needs to send interactions and to accept completions."""
        completing = self._operations.completing
        return DispatchSetup(self._open_transports, self._token_keys, completing.complete, completing.settled)

    def _entered_resources(self) -> AbstractAsyncContextManager[Any]:
        """The value of `ctx.resources`: what the lifespan yields, or the object itself."""
        return self._resources() if callable(self._resources) else nullcontext(self._resources)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Database]:
        """The database of this engine, which is opened for the length of the block if it is not open."""
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
        stack.push_async_callback(self._close_hooks)  # runs last: callbacks get the events of the other parts' shutdown
        try:
            dsn = self._dsn if self._dsn is not None else await embedded.join(stack)
            database = Database(
                dsn, bounds=Bounds.of_client(self.settings.lease), schema=self.settings.schema
            )
            await database.open()
            stack.push_async_callback(database.close)
            notifier = Notifier(database, self.settings.listener_dsn)
            notifier.start_sending()
            stack.push_async_callback(notifier.stop)
        except BaseException:
            await stack.aclose()
            raise
        self._open, self._database, self._notifier = stack, database, notifier
        self._open_transports = tuple(Opened(transport) for transport in self._transports.values())
        self._client = Client(database, self._registry, notifier, self._emitter, self.settings, self._token_keys)
        stack.callback(self._client.completing.close)

    def _twin(self) -> Engine:
        """A closed copy of this engine, for another event loop."""
        twin = copy(self)
        vars(twin).update(_open=None, _database=None, _client=None, _notifier=None)
        vars(twin).pop("_sync", None)
        return twin

    @property
    def _opened(self) -> Database:
        if self._database is None:
            raise EngineClosed
        return self._database
