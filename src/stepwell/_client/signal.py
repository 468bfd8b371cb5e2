"""Signals instances, and starts instances for `signal_or_start`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from stepwell._client.start import StartOperations
from stepwell._core.serialization.codec import encode_value
from stepwell._core.start_request import NewInstance
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


class SignalOperations:
    """The signals of a client; a call returns once they are durable."""

    def __init__(
        self, database: Database, notifier: Notifier, emitter: Emitter, settings: Settings, starting: StartOperations
    ) -> None:
        self._database = database
        self._notifier = notifier
        self._emitter = emitter
        self._settings = settings
        self._starting = starting

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
        sent = self._admit(target, name, payload, dedup_key, tenant)
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
                admitted.append(self._admit(target, name, payload, dedup_key, None))
            except InvalidInput as error:
                error.add_note(f"in entries[{position}]")
                raise
            targets.append(target)
        return await self._deliver(admitted, targets, connection, notify) if admitted else []

    def _admit(
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
        """Deliver signals; if another instance took a key while the statement waited for its old holder, look the key
        up again."""
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
        self, entry: NewInstance, key: str, name: str, payload: Any, dedup_key: str | None
    ) -> int:
        """Signal the holder of a start's key, or start an instance and signal it; returns the id of that instance."""
        sent = self._admit(key, name, payload, dedup_key, entry.tenant)
        for _ in range(MOST_TRIES):
            reached = await self._signal_or_start_once(sent, entry)
            if reached is not None:
                return reached
        async with self._database.transaction() as session:
            occupants = await instances.find_key_holders(session, [(entry.tenant, key)])
        if occupants:  # an ended instance keeps the key forever: none can be signalled or started
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
