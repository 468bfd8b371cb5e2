"""The client behind `Operations` and `Handle`: starts instances, and builds the other client services."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Generic, Literal

from stepwell._client.admin.interactions import Interactions
from stepwell._client.admin.limits import LimitOperations
from stepwell._client.admin.queues import Queues
from stepwell._client.call_timeout import Calls, Timeout
from stepwell._client.completions.complete import CompleteOperations
from stepwell._client.completions.interaction_cache import InteractionCache
from stepwell._client.control import ControlOperations
from stepwell._client.signal import SignalOperations
from stepwell._client.start import CHUNK, StartOperations
from stepwell._client.wait import Until, WaitOperations
from stepwell._core.instance import Instance
from stepwell._core.registry import Definition, Registry
from stepwell._core.resume_token import TokenKeys
from stepwell._core.start_request import NewInstance, admit, admit_each, are_keyless
from stepwell._core.validation import check_key
from stepwell._hooks.emitter import Emitter
from stepwell._notify.notifier import Notifier
from stepwell._store.connection.pool import Database
from stepwell.config import Settings
from stepwell.errors import Duplicate, InvalidInput
from stepwell.outcomes import Result_co

IfExists = Literal["raise", "return"]


class Client:
    """The client of one engine: starts instances, and has the services for everything else."""

    def __init__(
        self, database: Database, registry: Registry, notifier: Notifier, emitter: Emitter, settings: Settings,
        token_keys: TokenKeys,
    ) -> None:  # fmt: skip
        self._registry = registry
        self._settings = settings
        self.calls = calls = Calls(settings.call_timeout)
        cache = InteractionCache()
        self.completing = CompleteOperations(database, registry, notifier, settings, token_keys, cache)
        self.interactions = Interactions(database, settings.tenant, token_keys, cache, calls)
        self._starting = StartOperations(database, registry, notifier, emitter, settings)
        self.signalling = SignalOperations(database, notifier, emitter, settings, self._starting)
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

    async def signal_or_start(
        self, machine: object, state: Any, key: str, name: str, payload: Any, dedup_key: str | None, tenant: str | None
    ) -> Handle[Any]:
        entry = admit(
            self._registry, machine, state, {"key": check_key("key", key), "tenant": tenant},
            tenant=self._settings.tenant, max_payload=self._settings.max_payload,
        )  # fmt: skip
        return self._handle(entry, await self.signalling.signal_or_start(entry, key, name, payload, dedup_key))

    def handle(self, instance_id: int, machine: object) -> Handle[Any]:
        return Handle(self, instance_id, None, None if machine is None else self._registry.resolve(machine))

    def _handle(self, entry: NewInstance, instance_id: int) -> Handle[Any]:
        return Handle(self, instance_id, entry.key, self._registry.find(entry.machine, entry.version))


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
        """Wait for the result; for a job, it has the annotated return type of the function.

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
        work = client.signalling.signal(self.id, name, payload, dedup_key, None, connection=connection, notify=notify)
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
        """Cancel the instance and its descendants; False if it had ended. `connection` as for `engine.start`."""
        client = self._client
        work = client.operating.cancel(
            self.id, reason, cascade=cascade, by=by, tenant=None, connection=connection, notify=notify
        )
        return await client.calls.within("cancel", timeout, work, connection=connection)

    def __repr__(self) -> str:
        return f"<Handle #{self.id}>" if self.key is None else f"<Handle #{self.id} {self.key!r}>"
