"""The writes and waits of a client: start instances, look at one, wait for its end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Literal

from stepwell._core.entries import NewInstance, admit, admit_many
from stepwell._core.faults import Contention
from stepwell._core.ranges import check_key, check_tenant
from stepwell._core.records import Instance
from stepwell._core.registry import Registry
from stepwell._core.status import Status
from stepwell._runtime.notifier import Notifier
from stepwell._runtime.waiters import Waiters
from stepwell._store import instances
from stepwell._store.database import Database
from stepwell._store.instances import Started
from stepwell.config import Settings
from stepwell.errors import InstanceCancelled, InstanceFailed, InvalidInput, NotFound

Until = Literal["terminal", "settled"]

CHUNK = 5_000
MOST_TRIES = 5


class Client:
    """What `Engine` offers to those who start instances and wait for them."""

    def __init__(self, database: Database, registry: Registry, notifier: Notifier, settings: Settings) -> None:
        self._database = database
        self._registry = registry
        self._notifier = notifier
        self._settings = settings
        self._waiters = Waiters(notifier)

    async def start(self, machine: object, state: Any, options: dict[str, Any]) -> Handle:
        entry = admit(
            self._registry, machine, state, options,
            tenant=self._settings.tenant, max_payload=self._settings.max_payload,
        )  # fmt: skip
        [started] = await self._insert([entry])
        return Handle(self, started.id)

    async def start_many(self, entries: Sequence[Any]) -> list[Handle]:
        admitted = admit_many(
            self._registry, entries, tenant=self._settings.tenant, max_payload=self._settings.max_payload
        )
        return [Handle(self, started.id) for started in await self._insert(admitted)] if admitted else []

    async def _insert(self, entries: list[NewInstance]) -> list[Started]:
        """Insert all or nothing, then tell the workers."""
        if len(entries) <= CHUNK:
            started = await _retried(lambda: instances.start(self._database, entries))
        else:
            started = await _retried(lambda: self._insert_chunks(entries))
        for queue, count in Counter(row.queue for row in started if not row.later).items():
            self._notifier.announce_work(queue, count)
        if any(row.later for row in started):
            self._notifier.announce_due()
        return started

    async def _insert_chunks(self, entries: list[NewInstance]) -> list[Started]:
        started: list[Started] = []
        async with self._database.transaction() as session:
            for first in range(0, len(entries), CHUNK):
                started += await instances.start(session, entries[first : first + CHUNK])
        return started

    async def get(self, target: int | str, tenant: str | None = None) -> Instance:
        instance_id = await self._resolve(target, tenant)
        found = await instances.read(self._database, [instance_id])
        if not found:
            raise NotFound(target)
        return found[0]

    async def wait(
        self, target: int | str, *, timeout: float | timedelta | None, until: Until, tenant: str | None = None
    ) -> Instance:
        if until not in ("terminal", "settled"):
            raise InvalidInput("until", f"{until!r} is neither 'terminal' nor 'settled'")
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + _seconds(timeout)
        instance = await self.get(target, tenant)
        if _has_reached(instance, until) or (deadline is not None and deadline <= loop.time()):
            return instance
        await self._notifier.listen()
        with self._waiters.waiting_for(instance.id) as noticed:
            if queue := await instances.watch(self._database, instance.id):
                self._notifier.announce_work(queue)
            round_ = 0
            while True:
                noticed.clear()
                instance = await self.get(instance.id)
                left = None if deadline is None else deadline - loop.time()
                if _has_reached(instance, until) or (left is not None and left <= 0):
                    return instance
                patience = self._waiters.patience(round_)
                round_ += 1
                await _within(noticed, patience if left is None else min(patience, left))

    async def result(self, instance_id: int, timeout: float | timedelta | None) -> Any:
        instance = await self.wait(instance_id, timeout=timeout, until="terminal")
        match instance.status:
            case Status.DONE:
                return instance.result
            case Status.FAILED:
                error = instance.error
                raise InstanceFailed(
                    instance.id, instance.machine, instance.step,
                    "unknown" if error is None else error.type, "" if error is None else error.message,
                )  # fmt: skip
            case Status.CANCELLED:
                reason = None if instance.error is None else instance.error.message
                raise InstanceCancelled(instance.id, instance.machine, reason)
            case _:
                why = f", waiting for {instance.waiting_for}" if instance.waiting_for else ""
                raise TimeoutError(f"{instance.machine} #{instance.id} is still {instance.status} "
                                   f"at step {instance.step!r}{why}")

    async def _resolve(self, target: int | str, tenant: str | None) -> int:
        if isinstance(target, bool) or not isinstance(target, int | str):
            raise InvalidInput("target", f"expected an id (int) or a key (str), got {target!r}")
        if isinstance(target, int):
            if not 0 < target < 2**63:
                raise NotFound(target)
            return target
        key = check_key("key", target)
        of = self._settings.tenant if tenant is None else check_tenant(tenant)
        found = await instances.find_key(self._database, of, key)
        if found is None:
            raise NotFound(target)
        return found


class Handle:
    """A started instance."""

    __slots__ = ("_client", "id")

    def __init__(self, client: Client, instance_id: int) -> None:
        self._client = client
        self.id = instance_id

    async def result(self, timeout: float | timedelta | None = None) -> Any:
        """Its result, once it is done. Raises InstanceFailed, InstanceCancelled or TimeoutError."""
        return await self._client.result(self.id, timeout)

    async def get(self) -> Instance:
        """A snapshot of it."""
        return await self._client.get(self.id)

    async def wait(self, timeout: float | timedelta | None = None, until: Until = "terminal") -> Instance:
        """A snapshot of it, once it has ended (or is parked, until="settled"); on a timeout, as it is by then."""
        return await self._client.wait(self.id, timeout=timeout, until=until)

    def __repr__(self) -> str:
        return f"<Handle #{self.id}>"


def _has_reached(instance: Instance, until: Until) -> bool:
    return instance.status.is_terminal or (until == "settled" and instance.status.is_settled)


def _seconds(timeout: float | timedelta) -> float:
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
        raise InvalidInput("timeout", f"{timeout!r} is neither a timedelta nor a number of seconds from 0 on")
    return seconds


async def _within(event: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return


async def _retried(insert: Any) -> list[Started]:
    """A deadlock with somebody's transaction inserted nothing: try again."""
    for _ in range(MOST_TRIES - 1):
        try:
            return list(await insert())
        except Contention:
            continue
    return list(await insert())


