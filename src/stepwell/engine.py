"""The composition root: builds the parts of an engine, and starts and stops them in order."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from copy import copy
from datetime import datetime, timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, overload

from stepwell import embedded, schema
from stepwell._core.interactions import Answer, Completion
from stepwell._core.records import Instance
from stepwell._core.registry import Registry
from stepwell._core.tokens import TokenKeys
from stepwell._runtime.asking import World
from stepwell._runtime.caller import Around
from stepwell._runtime.emitter import Emitter
from stepwell._runtime.hooks import Hooks
from stepwell._runtime.notifier import Notifier
from stepwell._runtime.worker import Worker
from stepwell._store.database import WORKER, Database, check_url
from stepwell.client import Client, Handle, IfExists
from stepwell.config import Settings, load_settings
from stepwell.errors import DefinitionError, Duplicate, EngineClosed, NoDatabase, NoTarget
from stepwell.events import Callback, Events, Hooked
from stepwell.insights import Insights
from stepwell.interactions import Interactions
from stepwell.job import Job
from stepwell.limiting import Limiting
from stepwell.limits import Limit, LimitRef
from stepwell.machine import Machine
from stepwell.outcomes import Entry, KeyScope, Result, Start, StepRef
from stepwell.queues import Queues
from stepwell.transports import Transport
from stepwell.transports.inbox import with_inbox
from stepwell.waiting import Until

if TYPE_CHECKING:
    from stepwell.sync import SyncEngine

Resources = Callable[[], AbstractAsyncContextManager[Any]]
AnyWorker = TypeVar("AnyWorker", bound=Worker)


class Engine:
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
        self._emitter = Emitter(self._hooks)
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

    async def start(
        self,
        machine: Job[..., Result] | type[Machine] | str,
        state: Any = None,
        *,
        key: str | None = None,
        key_scope: KeyScope | None = "live",
        if_exists: IfExists = "raise",
        queue: str | None = None,
        priority: int = 0,
        delay: timedelta | None = None,
        at: datetime | None = None,
        step: StepRef | None = None,
        concurrency_key: str | None = None,
        concurrency_limit: LimitRef | None = None,
        rate_limit: LimitRef | None = None,
        weight: int | None = None,
        tenant: str | None = None,
        connection: object = None,
        notify: bool = True,
    ) -> Handle[Result]:
        """Start an instance: committed when this returns, run by a worker as soon as there is one.

        `key` is its business identity: unique among live instances (or "forever"), and an address. On an occupied
        key it raises Duplicate with the occupant's id, or returns the occupant's handle with if_exists="return".
        On a `connection` of yours it is part of your transaction: your commit starts it, your rollback leaves nothing.
        With notify=False nobody is told: workers find it when they next poll.
        `concurrency_limit` ("stripe", or ("stripe", part)) stays with the instance, `rate_limit` is for its first step.
        """
        options = {
            "key": key, "key_scope": key_scope, "queue": queue, "priority": priority, "delay": delay, "at": at,
            "step": step, "concurrency_key": concurrency_key, "concurrency_limit": concurrency_limit,
            "rate_limit": rate_limit, "weight": weight, "tenant": tenant,
        }  # fmt: skip
        return await self._doors.start(machine, state, options, if_exists, connection=connection, notify=notify)

    @overload
    async def start_many(
        self, entries: Sequence[Entry[Result]], *, connection: object = None, notify: bool = True
    ) -> list[Handle[Result] | Duplicate]: ...
    @overload
    async def start_many(
        self, entries: Sequence[Start], *, connection: object = None, notify: bool = True
    ) -> list[Handle[Any] | Duplicate]: ...
    async def start_many(
        self, entries: Sequence[Start], *, connection: object = None, notify: bool = True
    ) -> list[Handle[Any] | Duplicate]:
        """Start many in one transaction, or in yours. Entries: `Checkout.child(state, key=…)` or (machine, state).

        Answers in the order of the entries: a handle each, or a Duplicate (not raised) where the key was occupied.
        """
        return await self._doors.start_many(entries, connection=connection, notify=notify)

    async def signal(
        self,
        target: int | str,
        name: str,
        payload: Any = None,
        *,
        dedup_key: str | None = None,
        tenant: str | None = None,
        connection: object = None,
        notify: bool = True,
    ) -> None:
        """Put a signal into an instance's inbox, and wake it if it awaits that name; NoTarget if nobody is there.

        The same `dedup_key` has one effect per instance, however often it is sent. `connection` as for `start`.
        """
        await self._doors.signal(target, name, payload, dedup_key, tenant, connection=connection, notify=notify)

    async def signal_many(
        self, entries: Sequence[tuple[Any, ...]], *, connection: object = None, notify: bool = True
    ) -> list[NoTarget | None]:
        """Signal many in one transaction, or in yours: (target, name[, payload[, dedup_key]]) each.

        Answers in the order of the entries: None, or a NoTarget (not raised) where nobody was there.
        """
        return await self._doors.signal_many(entries, connection=connection, notify=notify)

    async def signal_or_start(
        self,
        machine: Job[..., Result] | type[Machine] | str,
        state: Any = None,
        *,
        key: str,
        signal: str,
        payload: Any = None,
        dedup_key: str | None = None,
        tenant: str | None = None,
    ) -> Handle[Result]:
        """Signal the instance that holds the key, or start one and signal that; one of both, in one transaction."""
        return await self._doors.signal_or_start(machine, state, key, signal, payload, dedup_key, tenant)

    async def complete(
        self,
        *,
        reply: Any,
        interaction: str | None = None,
        correlation: str | None = None,
        token: str | None = None,
        actor: str | None = None,
        tenant: str | None = None,
    ) -> Completion:
        """Answer a question, named by its id, its correlation or its token; its instance goes on when this returns.

        The same answer again is a duplicate. What is not taken raises one of CompletionRefused, and changes nothing.
        """
        answer = Answer(
            reply=reply, interaction=interaction, correlation=correlation, token=token, actor=actor, tenant=tenant
        )
        return await self._doors.completing.complete(answer)

    async def cancel(
        self,
        target: int | str,
        *,
        reason: str | None = None,
        cascade: bool = True,
        by: str | None = None,
        tenant: str | None = None,
        connection: object = None,
        notify: bool = True,
    ) -> bool:
        """End an instance, and what is below it, as cancelled; False, and nothing changed, if it had ended.

        `connection` as for `start`; a concurrency key that it held is then freed a moment after your commit.
        """
        return await self._doors.operating.cancel(
            target, reason, cascade=cascade, by=by, tenant=tenant, connection=connection, notify=notify
        )

    async def retry(
        self, target: int | str, *, reason: str | None = None, by: str | None = None, tenant: str | None = None
    ) -> bool:
        """Run a failed or cancelled instance again at its step, or one that waits for its time now.

        False if there is nothing to retry; Duplicate if another instance holds its key by now.
        """
        return await self._doors.operating.retry(target, reason, by=by, tenant=tenant)

    async def restart(
        self,
        target: int | str,
        *,
        step: StepRef,
        state: Any = None,
        reason: str | None = None,
        by: str | None = None,
        tenant: str | None = None,
    ) -> None:
        """Put an instance, whatever its status, at a step, with another state if one is given."""
        await self._doors.operating.restart(target, step, state, reason, by=by, tenant=tenant)

    async def get(self, target: int | str, *, tenant: str | None = None) -> Instance:
        """A snapshot of an instance, by id or by key (its live holder, else the newest that carried it)."""
        return await self._doors.waiting.get(target, tenant)

    async def wait(
        self,
        target: int | str,
        *,
        timeout: float | timedelta | None = None,
        until: Until = "terminal",
        tenant: str | None = None,
    ) -> Instance:
        """A snapshot once it has ended (or is parked, until="settled"); on a timeout, as it is by then."""
        return await self._doors.waiting.wait(target, timeout=timeout, until=until, tenant=tenant)

    def handle(self, instance_id: int, machine: Job[..., Result] | type[Machine] | str | None = None) -> Handle[Result]:
        """A handle of an instance that another process may have started; not looked up before it is used.

        With the job, the result is read as what the job returns.
        """
        return self._doors.handle(instance_id, machine)

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
                database=database, registry=self._registry, notifier=notifier, emitter=self._emitter,
                settings=settings, resources=resources, around_sync_steps=self._around_sync_steps,
                world=World(
                    tuple(self._transports.values()), self._token_keys, self._doors.completing.complete,
                    self._doors.completing.settled,
                ),
            )  # fmt: skip

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
        self._client = Client(
            database, self._registry, notifier, self._emitter, self.settings, self._token_keys
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
