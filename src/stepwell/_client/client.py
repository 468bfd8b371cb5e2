"""What `Operations` and `Handle` call: starts and signals instances, and builds the other client services."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Generic, Literal

from stepwell._client.admin.interactions import Interactions
from stepwell._client.admin.limits import LimitOperations
from stepwell._client.admin.queues import Queues
from stepwell._client.call_timeout import Calls, Timeout
from stepwell._client.complete import CompleteOperations
from stepwell._client.control import ControlOperations
from stepwell._client.interaction_cache import InteractionCache
from stepwell._client.start import CHUNK, StartOperations
from stepwell._client.wait import Until, WaitOperations
from stepwell._core.instance import Instance
from stepwell._core.registry import Definition, Registry
from stepwell._core.resume_token import TokenKeys
from stepwell._core.serialization.codec import encode_value
from stepwell._core.start_request import NewInstance, admit, admit_each, are_keyless
from stepwell._core.store_errors import Contention
from stepwell._core.validation import check_key, check_target, tenant_of
from stepwell._hooks.emitter import Emitter
from stepwell._notify.notifier import Notifier
from stepwell._store import instances
from stepwell._store.connection.pool import Database
from stepwell._store.connection.retry import MOST_TRIES, retried
from stepwell._store.drivers import borrow, sql_functions
from stepwell._store.operations.deliver import Delivery, NewSignal, deliver
from stepwell._store.operations.start import Started, start
from stepwell.config import Settings
from stepwell.errors import Duplicate, InvalidInput, NoTarget
from stepwell.outcomes import Result_co

IfExists = Literal["raise", "return"]


class Client:
    """The client of one engine: starts and signals instances, and has the services for everything else."""

    def __init__(
        self, database: Database, registry: Registry, notifier: Notifier, emitter: Emitter, settings: Settings,
        token_keys: TokenKeys,
    ) -> None:  # fmt: skip
        self._database = database
        self._registry = registry
        self._notifier = notifier
        self._emitter = emitter
        self._settings = settings
        self.calls = calls = Calls(settings.call_timeout)
        cache = InteractionCache()
        self.completing = CompleteOperations(database, registry, notifier, settings, token_keys, cache)
        self.interactions = Interactions(database, settings.tenant, token_keys, cache, calls)
        self._starting = StartOperations(database, registry, notifier, emitter, settings)
        self.waiting = WaitOperations(database, notifier, settings.tenant, calls)
        self.limiting = LimitOperations(database, notifier, calls)
        own = {*settings.queues, *(definition.queue for definition in registry.all())}
        self.queues = Queues(database, notifier, own, calls)
        self.operating = ControlOperations(database, registry, notifier, settings, self.waiting)

    async def start(
        self,
        machine: object,
        state: Any,
        options: dict[str, Any],
        if_exists: IfExists,
        *,
        connection: object = None,
        notify: bool = True,
    ) -> Handle[Any]:
        if if_exists not in ("raise", "return"):
            raise InvalidInput("if_exists", f"{if_exists!r} is neither 'raise' nor 'return'")
        entry = admit(
            self._registry, machine, state, options,
            tenant=self._settings.tenant, max_payload=self._settings.max_payload,
        )  # fmt: skip
        started = await self._starting.start(entry, connection, notify)
        if not isinstance(started, Duplicate):
            return self._handle(entry, started)
        if if_exists == "raise":
            raise started
        return self._handle(entry, started.id)

    async def start_many(
        self, entries: Sequence[Any], *, connection: object = None, notify: bool = True
    ) -> list[Handle[Any] | Duplicate]:
        given = admit_each(
            self._registry, entries, tenant=self._settings.tenant, max_payload=self._settings.max_payload
        )
        if connection is None and isinstance(entries, list) and len(entries) > CHUNK and are_keyless(entries):
            return list(await self._starting.stream(given, notify, self._handle))
        admitted = list(given)
        results = await self._starting.start_many(admitted, connection, notify) if admitted else []
        return [
            started if isinstance(started, Duplicate) else self._handle(entry, started)
            for started, entry in zip(results, admitted, strict=True)
        ]

    def handle(self, instance_id: int, machine: object) -> Handle[Any]:
        return Handle(self, instance_id, None, None if machine is None else self._registry.resolve(machine))

    def _handle(self, entry: NewInstance, instance_id: int) -> Handle[Any]:
        return Handle(self, instance_id, entry.key, self._registry.find(entry.machine, entry.version))

    async def signal(
        self,
        target: int | str,
        name: str,
        payload: Any,
        dedup_key: str | None,
        tenant: str | None,
        *,
        connection: object = None,
        notify: bool = True,
    ) -> None:
        sent = self._admit_signal(target, name, payload, dedup_key, tenant)
        [result] = await self._deliver([sent], [target], connection, notify)
        if result is not None:
            raise result

    async def signal_many(
        self, entries: Sequence[Any], *, connection: object = None, notify: bool = True
    ) -> list[NoTarget | None]:
        if not isinstance(entries, list | tuple):
            raise InvalidInput("entries", f"expected a list, got {type(entries).__name__}")
        admitted, targets = [], []
        for position, entry in enumerate(entries):
            target, name, payload, dedup_key = _signal_parts(position, entry)
            try:
                admitted.append(self._admit_signal(target, name, payload, dedup_key, None))
            except InvalidInput as error:
                error.add_note(f"in entries[{position}]")
                raise
            targets.append(target)
        return await self._deliver(admitted, targets, connection, notify) if admitted else []

    def _admit_signal(
        self, target: int | str, name: str, payload: Any, dedup_key: str | None, tenant: str | None
    ) -> NewSignal:
        instance_id, key = check_target(target)
        text = encode_value(payload, "payload", self._settings.max_payload)
        return NewSignal(
            id=instance_id,
            tenant=tenant_of(key, tenant, self._settings.tenant),
            key=key,
            name=check_key("name", name),
            payload=text,
            dedup_key=None if dedup_key is None else check_key("dedup_key", dedup_key),
        )

    async def _deliver(
        self, given: list[NewSignal], targets: list[int | str], connection: object, notify: bool
    ) -> list[NoTarget | None]:
        """Deliver signals; a key that another instance took while the statement waited for its old holder is looked up
        again."""
        if connection is not None:
            reached = await sql_functions.signal_many(
                borrow(connection), given, notify=notify, schema=self._database.schema
            )
            return [NoTarget(target) if id_ is None else None for target, id_ in zip(targets, reached, strict=True)]
        missed = pending = list(range(len(given)))
        for _ in range(MOST_TRIES):
            batch = [given[i] for i in pending]
            delivered = await retried(partial(deliver, self._database, batch))
            self._announce_woken(delivered, notify=notify)
            reached_now = {i for i, delivery in zip(pending, delivered, strict=True) if delivery.target is not None}
            missed = [i for i in missed if i not in reached_now]
            pending = [i for i, delivery in zip(pending, delivered, strict=True) if delivery.is_orphaned]
            if not pending:
                break
        results: list[NoTarget | None] = [None] * len(given)
        for i in missed:
            results[i] = NoTarget(targets[i])
        return results

    def _announce_woken(self, delivered: Sequence[Delivery], *, notify: bool) -> None:
        """Notify workers, by queue, of the instances that became claimable."""
        if notify:
            for queue, count in Counter(d.queue for d in delivered if d.queue is not None).items():
                self._notifier.notify_work(queue, count)

    async def signal_or_start(
        self, machine: object, state: Any, key: str, name: str, payload: Any, dedup_key: str | None, tenant: str | None
    ) -> Handle[Any]:
        sent = self._admit_signal(check_key("key", key), name, payload, dedup_key, tenant)
        entry = admit(
            self._registry, machine, state, {"key": key, "tenant": tenant},
            tenant=self._settings.tenant, max_payload=self._settings.max_payload,
        )  # fmt: skip
        for _ in range(MOST_TRIES):
            reached = await self._signal_or_start_once(sent, entry)
            if reached is not None:
                return self._handle(entry, reached)
        async with self._database.transaction() as session:
            occupants = await instances.find_key_holders(session, [(entry.tenant, key)])
        if occupants:  # an ended instance keeps the key for ever: there is none to signal, and none can start
            raise Duplicate(key, occupants[0])
        raise Contention(f"other instances released and took key {key!r} during every attempt; try again")

    async def _signal_or_start_once(self, sent: NewSignal, entry: NewInstance) -> int | None:
        """Signal the holder of the key, or start an instance and signal it, in one transaction; None if the holder
        changed in between."""
        async with self._database.transaction() as session:
            [delivery] = await deliver(session, [sent])
            started: list[Started] = []
            if delivery.target is None:
                started = await start(session, [entry])
                if not started:
                    return None
                [delivery] = await deliver(session, [sent])
        self._starting.announce(started)
        if started:
            self._emitter.started([entry], started)
        if delivery.queue is not None:
            self._notifier.notify_work(delivery.queue)
        return delivery.target


class Handle(Generic[Result_co]):
    """A started instance. `Handle[int]` belongs to a job that returns an int."""

    __slots__ = ("_client", "_definition", "id", "key")

    def __init__(
        self, client: Client, instance_id: int, key: str | None = None, definition: Definition | None = None
    ) -> None:
        self._client = client
        self._definition = definition  # decodes the result, if the instance is of this definition
        self.id = instance_id
        self.key = key

    async def result(self, timeout: float | timedelta | None = None) -> Result_co:
        """Wait for the result; that of a job has the type that its function is annotated to return.

        Raises InstanceFailed, InstanceCancelled, TimeoutError, or InvalidResult if the stored result does not fit.
        """
        result: Result_co = await self._client.waiting.result(self.id, timeout, self._definition)
        return result

    async def get(self, *, timeout: Timeout | None = None) -> Instance:
        """A snapshot of the instance."""
        return await self._client.calls.within("get", timeout, self._client.waiting.get(self.id))

    async def wait(self, timeout: float | timedelta | None = None, until: Until = "terminal") -> Instance:
        """A snapshot once the instance has ended (or is parked, with until="settled"); on a timeout, as it is then."""
        return await self._client.waiting.wait(self.id, timeout=timeout, until=until)

    async def signal(
        self,
        name: str,
        payload: Any = None,
        *,
        dedup_key: str | None = None,
        connection: object = None,
        notify: bool = True,
        timeout: Timeout | None = None,
    ) -> None:
        """Signal the instance; raises NoTarget if it has ended. `connection` as for `engine.start`."""
        client = self._client
        work = client.signal(self.id, name, payload, dedup_key, None, connection=connection, notify=notify)
        await client.calls.within("signal", timeout, work, connection=connection)

    async def cancel(
        self,
        *,
        reason: str | None = None,
        cascade: bool = True,
        by: str | None = None,
        connection: object = None,
        notify: bool = True,
        timeout: Timeout | None = None,
    ) -> bool:
        """Cancel the instance and those below it; False if it had ended before. `connection` as for `engine.start`."""
        client = self._client
        work = client.operating.cancel(
            self.id, reason, cascade=cascade, by=by, tenant=None, connection=connection, notify=notify
        )
        return await client.calls.within("cancel", timeout, work, connection=connection)

    def __repr__(self) -> str:
        return f"<Handle #{self.id}>" if self.key is None else f"<Handle #{self.id} {self.key!r}>"


def _signal_parts(position: int, entry: Any) -> tuple[int | str, str, Any, str | None]:
    match entry:
        case (target, name):
            return target, name, None, None
        case (target, name, payload):
            return target, name, payload, None
        case (target, name, payload, dedup_key):
            return target, name, payload, dedup_key
        case _:
            raise InvalidInput(f"entries[{position}]", "expected (target, name[, payload[, dedup_key]])")
