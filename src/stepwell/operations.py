"""The operations of an engine: start, signal, complete, cancel, read and wait."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, overload

from stepwell._client.call_timeout import Timeout
from stepwell._client.client import Client, Handle, IfExists
from stepwell._client.wait import Until
from stepwell._core.instance import Instance
from stepwell._core.interaction import Answer, Completion
from stepwell.errors import Duplicate, EngineClosed, NoTarget
from stepwell.job import Job
from stepwell.limits import LimitRef
from stepwell.machine import Compiled, Machine
from stepwell.outcomes import Entry, KeyScope, Result, Start, StepRef

_DEFAULTS = {"key_scope": "live", "priority": 0}  # of options; of all others it is None


class Operations:
    """The calls of an open engine.

    Every call takes `timeout=`, by default the setting `call_timeout`, and raises CallTimeout when that has passed.
    """

    _client: Client | None = None  # while the engine is open

    @property
    def _operations(self) -> Client:
        """The client of the engine; EngineClosed if the engine is not open."""
        if self._client is None:
            raise EngineClosed
        return self._client

    async def start(
        self,
        machine: Job[..., Result] | type[Machine] | Compiled | str,
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
        timeout: Timeout | None = None,
    ) -> Handle[Result]:
        """Start an instance: committed when this returns, run by a worker as soon as there is one.

        `key` is its business identity: unique among live instances (or "forever"), and an address. If the key is
        occupied, it raises Duplicate with the occupant's id, or returns the occupant's handle with if_exists="return".
        With `connection` it is part of your transaction: your commit starts it, your rollback leaves nothing.
        With notify=False no notification is sent: workers find the instance when they next poll.
        `concurrency_limit` ("stripe", or ("stripe", part)) stays with the instance, `rate_limit` is for its first step.
        """
        options = {
            "key": key, "key_scope": key_scope, "queue": queue, "priority": priority, "delay": delay, "at": at,
            "step": step, "concurrency_key": concurrency_key, "concurrency_limit": concurrency_limit,
            "rate_limit": rate_limit, "weight": weight, "tenant": tenant,
        }  # fmt: skip
        given = {name: value for name, value in options.items() if value is not _DEFAULTS.get(name)}
        client = self._operations
        work = client.start(machine, state, given, if_exists, connection=connection, notify=notify)
        return await client.calls.within("start", timeout, work, connection=connection)

    @overload
    async def start_many(
        self, entries: Sequence[Entry[Result]], *, connection: object = None, notify: bool = True,
        timeout: Timeout | None = None,
    ) -> list[Handle[Result] | Duplicate]: ...
    @overload
    async def start_many(
        self, entries: Sequence[Start], *, connection: object = None, notify: bool = True,
        timeout: Timeout | None = None,
    ) -> list[Handle[Any] | Duplicate]: ...
    async def start_many(
        self, entries: Sequence[Start], *, connection: object = None, notify: bool = True,
        timeout: Timeout | None = None,
    ) -> list[Handle[Any] | Duplicate]:
        """Start many in one transaction, or in yours. Entries: `Checkout.child(state, key=…)` or (machine, state).

        Returns, in the order of the entries, a handle each, or a Duplicate (not raised) if the key was occupied.
        """
        client = self._operations
        work = client.start_many(entries, connection=connection, notify=notify)
        return await client.calls.within("start_many", timeout, work, connection=connection, is_bulk=True)

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
        timeout: Timeout | None = None,
    ) -> None:
        """Put a signal into an instance's inbox, and wake it if it awaits that name; NoTarget without a live target.

        The same `dedup_key` has one effect per instance, however often it is sent. `connection` as for `start`.
        """
        client = self._operations
        work = client.signalling.signal(target, name, payload, dedup_key, tenant, connection=connection, notify=notify)
        await client.calls.within("signal", timeout, work, connection=connection)

    async def signal_many(
        self, entries: Sequence[tuple[Any, ...]], *, connection: object = None, notify: bool = True,
        timeout: Timeout | None = None,
    ) -> list[NoTarget | None]:
        """Signal many in one transaction, or in yours: (target, name[, payload[, dedup_key]]) each.

        Returns, in the order of the entries, None, or a NoTarget (not raised) if there was no live target.
        """
        client = self._operations
        work = client.signalling.signal_many(entries, connection=connection, notify=notify)
        return await client.calls.within("signal_many", timeout, work, connection=connection, is_bulk=True)

    async def signal_or_start(
        self,
        machine: Job[..., Result] | type[Machine] | Compiled | str,
        state: Any = None,
        *,
        key: str,
        signal: str,
        payload: Any = None,
        dedup_key: str | None = None,
        tenant: str | None = None,
        timeout: Timeout | None = None,
    ) -> Handle[Result]:
        """Signal the instance that holds the key, or start one and signal it, in one transaction."""
        client = self._operations
        work = client.signal_or_start(machine, state, key, signal, payload, dedup_key, tenant)
        return await client.calls.within("signal_or_start", timeout, work)

    async def complete(
        self,
        *,
        reply: Any,
        interaction: str | None = None,
        correlation: str | None = None,
        token: str | None = None,
        actor: str | None = None,
        tenant: str | None = None,
        timeout: Timeout | None = None,
    ) -> Completion:
        """Complete an interaction, named by its id, correlation or token; when this returns, its instance may continue.

        The same completion again is a duplicate. A refused one raises a CompletionRefused, and changes nothing.
        """
        completion = Answer(
            reply=reply, interaction=interaction, correlation=correlation, token=token, actor=actor, tenant=tenant
        )
        client = self._operations
        return await client.calls.within("complete", timeout, client.completing.complete(completion))

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
        timeout: Timeout | None = None,
    ) -> bool:
        """Cancel an instance and those below it; returns False, and changes nothing, if it had ended.

        `connection` as for `start`; then the instance's concurrency key is freed a moment after your commit.
        """
        client = self._operations
        work = client.operating.cancel(
            target, reason, cascade=cascade, by=by, tenant=tenant, connection=connection, notify=notify
        )
        return await client.calls.within("cancel", timeout, work, connection=connection)

    async def retry(
        self, target: int | str, *, reason: str | None = None, by: str | None = None, tenant: str | None = None,
        timeout: Timeout | None = None,
    ) -> bool:
        """Run a failed or cancelled instance again at its step, or run one that waits for its due time now.

        Returns False if there is nothing to retry; raises Duplicate if another instance holds its key.
        """
        client = self._operations
        return await client.calls.within("retry", timeout, client.operating.retry(target, reason, by=by, tenant=tenant))

    async def restart(
        self,
        target: int | str,
        *,
        step: StepRef,
        state: Any = None,
        reason: str | None = None,
        by: str | None = None,
        tenant: str | None = None,
        timeout: Timeout | None = None,
    ) -> None:
        """Restart an instance of any status at a step, with another state if one is given."""
        client = self._operations
        work = client.operating.restart(target, step, state, reason, by=by, tenant=tenant)
        await client.calls.within("restart", timeout, work)

    async def get(self, target: int | str, *, tenant: str | None = None, timeout: Timeout | None = None) -> Instance:
        """A snapshot of an instance, by id or by key (its live holder, else the newest that carried it)."""
        client = self._operations
        return await client.calls.within("get", timeout, client.waiting.get(target, tenant))

    async def wait(
        self,
        target: int | str,
        *,
        timeout: float | timedelta | None = None,
        until: Until = "terminal",
        tenant: str | None = None,
    ) -> Instance:
        """A snapshot once the instance has ended (or is parked, with until="settled"); on a timeout, as it is then.

        The wait continues through outages; CallTimeout if nothing could be read within the timeout.
        """
        return await self._operations.waiting.wait(target, timeout=timeout, until=until, tenant=tenant)

    def handle(
        self, instance_id: int, machine: Job[..., Result] | type[Machine] | Compiled | str | None = None
    ) -> Handle[Result]:
        """A handle of an instance that another process may have started; this does not look it up.

        With the job, the result is decoded as the job's return type.
        """
        return self._operations.handle(instance_id, machine)
