"""The writes of a client: start and signal instances."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Generic, Literal

from stepwell._core.codec import check_size, encode_value
from stepwell._core.entries import NewInstance, admit, admit_each, are_keyless
from stepwell._core.faults import Contention
from stepwell._core.ranges import check_key, check_target, check_tenant
from stepwell._core.records import Instance
from stepwell._core.registry import Definition, Registry
from stepwell._core.tokens import TokenKeys
from stepwell._runtime.emitter import Emitter
from stepwell._runtime.known import Known
from stepwell._runtime.notifier import Notifier
from stepwell._runtime.reception import Receptions
from stepwell._store import doors, instances, signals
from stepwell._store.borrowed import borrow
from stepwell._store.database import Database
from stepwell._store.instances import Started
from stepwell._store.retries import MOST_TRIES, retried
from stepwell._store.signals import Delivery, NewSignal
from stepwell.completing import Completing
from stepwell.config import Settings
from stepwell.errors import Duplicate, InvalidInput, NoTarget
from stepwell.interactions import Interactions
from stepwell.limiting import Limiting
from stepwell.operating import Operating
from stepwell.outcomes import Result_co
from stepwell.queues import Queues
from stepwell.starting import CHUNK, Starting
from stepwell.waiting import Until, Waiting

IfExists = Literal["raise", "return"]


class Client:
    """What `Engine` offers to those who start and signal instances."""

    def __init__(
        self, database: Database, registry: Registry, notifier: Notifier, receptions: Receptions, emitter: Emitter,
        settings: Settings, token_keys: TokenKeys,
    ) -> None:  # fmt: skip
        self._database = database
        self._registry = registry
        self._notifier = notifier
        self._receptions = receptions
        self._emitter = emitter
        self._settings = settings
        known = Known()
        self.completing = Completing(database, registry, notifier, settings, token_keys, known)
        self.interactions = Interactions(database, settings.tenant, token_keys, known)
        self._starting = Starting(database, registry, notifier, emitter, settings)
        self.waiting = Waiting(database, notifier, settings.tenant)
        self.limiting = Limiting(database, notifier)
        own = {*settings.queues, *(definition.queue for definition in registry.all())}
        self.queues = Queues(database, notifier, own)
        self.operating = Operating(database, registry, notifier, settings, self.waiting)

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
        answers = await self._starting.start_many(admitted, connection, notify) if admitted else []
        return [
            started if isinstance(started, Duplicate) else self._handle(entry, started)
            for started, entry in zip(answers, admitted, strict=True)
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
        [answer] = await self._deliver([sent], [target], connection, notify)
        if answer is not None:
            raise answer

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
        text = encode_value(payload, "payload")
        check_size(text, "payload", self._settings.max_payload)
        return NewSignal(
            id=instance_id,
            tenant=self._settings.tenant if tenant is None else check_tenant(tenant),
            key=key,
            name=check_key("name", name),
            payload=text,
            dedup_key=None if dedup_key is None else check_key("dedup_key", dedup_key),
        )

    async def _deliver(
        self, given: list[NewSignal], targets: list[int | str], connection: object, notify: bool
    ) -> list[NoTarget | None]:
        """Deliver; a key that changed hands while we waited for its last holder is looked up once more."""
        if connection is not None:
            reached = await doors.signal_many(borrow(connection), given, notify=notify)
            return [NoTarget(target) if id_ is None else None for target, id_ in zip(targets, reached, strict=True)]
        missed = pending = list(range(len(given)))
        for _ in range(MOST_TRIES):
            batch = [given[i] for i in pending]
            tell = partial(self._tell_woken, notify=notify)
            delivered = await self._receptions.deliver(self._database, batch, tell)
            if delivered is None:
                delivered = await retried(partial(signals.deliver, self._database, batch))
                tell(delivered)
                self._receptions.note(delivered)
            reached_now = {i for i, delivery in zip(pending, delivered, strict=True) if delivery.target is not None}
            missed = [i for i in missed if i not in reached_now]
            pending = [i for i, delivery in zip(pending, delivered, strict=True) if delivery.is_orphaned]
            if not pending:
                break
        answers: list[NoTarget | None] = [None] * len(given)
        for i in missed:
            answers[i] = NoTarget(targets[i])
        return answers

    def _tell_woken(self, delivered: Sequence[Delivery], *, notify: bool) -> None:
        """Tell of those who may be claimed."""
        if notify:
            for queue, count in Counter(d.queue for d in delivered if d.queue is not None).items():
                self._notifier.announce_work(queue, count)

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
            occupants = await instances.find_occupants(session, [(entry.tenant, key)])
        if occupants:  # an ended instance keeps it for ever: nobody can be signalled, nobody started
            raise Duplicate(key, occupants[0])
        raise Contention(f"key {key!r} changed hands faster than it could be reached")

    async def _signal_or_start_once(self, sent: NewSignal, entry: NewInstance) -> int | None:
        """Signal the holder of the key, or start one and signal it, in one transaction; None if both just missed."""
        async with self._database.transaction() as session:
            [delivery] = await signals.deliver(session, [sent])
            started: list[Started] = []
            if delivery.target is None:
                started = await instances.start_keyed(session, [entry])
                if not started:
                    return None
                [delivery] = await signals.deliver(session, [sent])
        self._starting.announce(started)
        if started:
            self._emitter.started([entry], started)
        if delivery.queue is not None:
            self._notifier.announce_work(delivery.queue)
        return delivery.target


class Handle(Generic[Result_co]):
    """A started instance. `Handle[int]` is one whose result is an int: that of a job which returns one."""

    __slots__ = ("_client", "_definition", "id", "key")

    def __init__(
        self, client: Client, instance_id: int, key: str | None = None, definition: Definition | None = None
    ) -> None:
        self._client = client
        self._definition = definition  # by which its result is read, if it is an instance of it
        self.id = instance_id
        self.key = key

    async def result(self, timeout: float | timedelta | None = None) -> Result_co:
        """Its result, once it is done: of a job, as what its function is annotated to return.

        Raises InstanceFailed, InstanceCancelled, TimeoutError, or InvalidResult if what was stored does not fit.
        """
        result: Result_co = await self._client.waiting.result(self.id, timeout, self._definition)
        return result

    async def get(self) -> Instance:
        """A snapshot of it."""
        return await self._client.waiting.get(self.id)

    async def wait(self, timeout: float | timedelta | None = None, until: Until = "terminal") -> Instance:
        """A snapshot of it, once it has ended (or is parked, until="settled"); on a timeout, as it is by then."""
        return await self._client.waiting.wait(self.id, timeout=timeout, until=until)

    async def signal(
        self,
        name: str,
        payload: Any = None,
        *,
        dedup_key: str | None = None,
        connection: object = None,
        notify: bool = True,
    ) -> None:
        """Signal it; raises NoTarget if it has ended. `connection` as for `engine.start`."""
        await self._client.signal(self.id, name, payload, dedup_key, None, connection=connection, notify=notify)

    async def cancel(
        self,
        *,
        reason: str | None = None,
        cascade: bool = True,
        by: str | None = None,
        connection: object = None,
        notify: bool = True,
    ) -> bool:
        """Cancel it, and what is below it; False if it had ended already. `connection` as for `engine.start`."""
        return await self._client.operating.cancel(
            self.id, reason, cascade=cascade, by=by, tenant=None, connection=connection, notify=notify
        )

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
