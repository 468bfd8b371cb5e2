"""Looking at an instance, and waiting for its end."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, Literal

from stepwell._core.ranges import check_key, check_tenant
from stepwell._core.records import Instance
from stepwell._core.registry import Definition
from stepwell._core.status import Status
from stepwell._runtime.notifier import Notifier
from stepwell._runtime.waiters import Waiters
from stepwell._store import instances
from stepwell._store.database import Database
from stepwell.errors import InstanceCancelled, InstanceFailed, InvalidInput, InvalidResult, NotFound

Until = Literal["terminal", "settled"]


class Waiting:
    """Snapshots, and those that are to come."""

    def __init__(self, database: Database, notifier: Notifier, tenant: str) -> None:
        self._database = database
        self._notifier = notifier
        self._tenant = tenant
        self._waiters = Waiters(notifier)

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
            to_look = not await self._watch(instance.id)
            round_ = 0
            while True:
                if to_look:
                    noticed.clear()
                    instance = await self.get(instance.id)
                to_look = True
                left = None if deadline is None else deadline - loop.time()
                if _has_reached(instance, until) or (left is not None and left <= 0):
                    return instance
                patience = self._waiters.patience(round_)
                round_ += 1
                await _within(noticed, patience if left is None else min(patience, left))

    async def _watch(self, instance_id: int) -> bool:
        """Ask for a notice; True if the instance is on its way, and the notice is sure to be sent."""
        marked = await instances.watch(self._database, instance_id)
        if marked is None:
            return False
        status, queue = marked
        if queue is not None:
            self._notifier.announce_work(queue)
        return not status.is_settled

    async def result(
        self, instance_id: int, timeout: float | timedelta | None, definition: Definition | None = None
    ) -> Any:
        """The result, as the type that the definition gives it if the instance is one of it."""
        instance = await self.wait(instance_id, timeout=timeout, until="terminal")
        match instance.status:
            case Status.DONE:
                return _typed_result(instance, definition)
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
        of = self._tenant if tenant is None else check_tenant(tenant)
        found = await instances.find_key(self._database, of, key)
        if found is None:
            raise NotFound(target)
        return found


def _typed_result(instance: Instance, definition: Definition | None) -> Any:
    """The occupant of a key may be another machine, or another version: its result stays as it is."""
    if definition is None or (definition.name, definition.version) != (instance.machine, instance.version):
        return instance.result
    try:
        return definition.result.decode(instance.result)
    except InvalidInput as error:
        raise InvalidResult(instance.id, instance.machine, error.field, error.problem) from error


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
