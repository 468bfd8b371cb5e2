"""Reads instances, and waits for them to end or park."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Literal, TypeVar

from stepwell._client.call_timeout import Calls, Deadline, to_seconds
from stepwell._client.waiters import Waiters
from stepwell._core.instance import Instance
from stepwell._core.registry import Definition
from stepwell._core.status import Status
from stepwell._core.store_errors import Outage
from stepwell._core.validation import check_key, check_tenant
from stepwell._notify.notifier import Notifier
from stepwell._store import instances
from stepwell._store.connection.pool import Database
from stepwell.errors import CallTimeout, InstanceCancelled, InstanceFailed, InvalidInput, InvalidResult, NotFound

Until = Literal["terminal", "settled"]
T = TypeVar("T")

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
# Minimum seconds for a read, whatever is left of the timeout: with `timeout=0`, a server some hundred kilometres away
# can still respond. An unresponsive connection exceeds a timeout by no more than this.
LEAST_READ = 0.25


class WaitOperations:
    """Reads snapshots, now or once an instance has ended or parked."""

    def __init__(self, database: Database, notifier: Notifier, tenant: str, calls: Calls) -> None:
        self._database = database
        self._notifier = notifier
        self._tenant = tenant
        self._calls = calls
        self._waiters = Waiters(notifier)

    async def get(self, target: int | str, tenant: str | None = None) -> Instance:
        instance_id = await self._resolve(target, tenant)
        found = await instances.read(self._database, [instance_id])
        if not found or (tenant is not None and found[0].tenant != tenant):
            raise NotFound(target)
        return found[0]

    async def wait(
        self, target: int | str, *, timeout: float | timedelta | None, until: Until, tenant: str | None = None
    ) -> Instance:
        if until not in ("terminal", "settled"):
            raise InvalidInput("until", f"{until!r} is neither 'terminal' nor 'settled'")
        wait_time = _WaitTime(None if timeout is None else to_seconds(timeout), self._calls.default)
        instance = await wait_time.outlast(lambda: self.get(target, tenant))
        if _has_reached(instance, until) or wait_time.is_expired:
            return instance
        try:
            return await self._wait_for(instance, until, wait_time)
        except CallTimeout:  # return the last snapshot that could be read
            return wait_time.last

    async def _wait_for(self, instance: Instance, until: Until, wait_time: _WaitTime) -> Instance:
        wait_time.last = instance
        if not self._notifier.is_listening:
            await wait_time.outlast(self._notifier.listen)
            if wait_time.is_expired:
                return wait_time.last
        with self._waiters.waiting_for(instance.id) as noticed:
            to_read = not await wait_time.outlast(lambda: self._watch(instance.id))
            round_ = 0
            while True:
                if to_read:
                    noticed.clear()
                    wait_time.last = await wait_time.outlast(lambda: self.get(instance.id))
                to_read = True
                if _has_reached(wait_time.last, until) or wait_time.is_expired:
                    return wait_time.last
                rest = self._waiters.pause(round_)
                round_ += 1
                await _within(noticed, rest if wait_time.left is None else min(rest, wait_time.left))

    async def _watch(self, instance_id: int) -> bool:
        """Request a notification; True if the instance has neither ended nor parked, so that one will be sent."""
        marked = await instances.watch(self._database, instance_id)
        if marked is None:
            return False
        status, queue = marked
        if queue is not None:
            self._notifier.notify_work(queue)
        return not status.is_settled

    async def result(
        self, instance_id: int, timeout: float | timedelta | None, definition: Definition | None = None
    ) -> Any:
        """The result, decoded as the definition's type if the instance is of that definition."""
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
        of = self._tenant if tenant is None else check_tenant(tenant)
        if isinstance(target, int):
            if not 0 < target < 2**63:
                raise NotFound(target)
            return target
        key = check_key("key", target)
        found = await instances.find_key(self._database, of, key)
        if found is None:
            raise NotFound(target)
        return found


def _typed_result(instance: Instance, definition: Definition | None) -> Any:
    """Decode the result. If the occupant of a key is of another machine or version, its result is not converted."""
    if definition is None or (definition.name, definition.version) != (instance.machine, instance.version):
        return instance.result
    try:
        return definition.result.decode(instance.result)
    except InvalidInput as error:
        raise InvalidResult(instance.id, instance.machine, error.field, error.problem) from error


def _has_reached(instance: Instance, until: Until) -> bool:
    return instance.status.is_terminal or (until == "settled" and instance.status.is_settled)


class _WaitTime:
    """The time limit of a wait. Each read is repeated through outages until the limit is reached."""

    last: Instance

    def __init__(self, seconds: float | None, longest_read: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds = seconds
        self._deadline = None if seconds is None else self._loop.time() + seconds
        self._longest_read = longest_read

    @property
    def left(self) -> float | None:
        return None if self._deadline is None else self._deadline - self._loop.time()

    @property
    def is_expired(self) -> bool:
        return self.left is not None and self.left <= 0

    async def outlast(self, read_once: Callable[[], Awaitable[T]]) -> T:
        """Await `read_once()`, repeated through outages; CallTimeout if they last longer than the time."""
        pause = FIRST_PAUSE
        while True:
            left = self.left
            longest = self._longest_read if left is None else min(self._longest_read, max(left, LEAST_READ))
            try:
                with Deadline("wait", longest):
                    return await read_once()
            except (Outage, TimeoutError) as error:
                left = self.left
                if left is not None and left <= pause:
                    raise CallTimeout("wait", self._seconds or 0.0) from error
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, not a secret
            pause = min(pause * 2, LONGEST_PAUSE)


async def _within(event: asyncio.Event, seconds: float) -> None:
    with suppress(CallTimeout), Deadline("wait", seconds):
        await event.wait()
