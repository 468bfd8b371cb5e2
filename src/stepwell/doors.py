"""The doors of an engine: start, signal, answer, cancel, look at and wait for instances."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, overload

from stepwell._core.interactions import Answer, Completion
from stepwell._core.records import Instance
from stepwell.client import Client, Handle, IfExists
from stepwell.errors import Duplicate, NoTarget
from stepwell.job import Job
from stepwell.limits import LimitRef
from stepwell.machine import Compiled, Machine
from stepwell.outcomes import Entry, KeyScope, Result, Start, StepRef
from stepwell.waiting import Until


class Doors(ABC):
    """What an open engine offers to those who use it."""

    @property
    @abstractmethod
    def _doors(self) -> Client:
        """The client behind the doors; EngineClosed if there is none."""

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
        machine: Job[..., Result] | type[Machine] | Compiled | str,
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

    def handle(
        self, instance_id: int, machine: Job[..., Result] | type[Machine] | Compiled | str | None = None
    ) -> Handle[Result]:
        """A handle of an instance that another process may have started; not looked up before it is used.

        With the job, the result is read as what the job returns.
        """
        return self._doors.handle(instance_id, machine)
