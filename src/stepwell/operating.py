"""The operator's hand: cancel, retry and restart instances."""

from __future__ import annotations

from typing import Any

from stepwell._core.codec import check_size
from stepwell._core.entries import state_of
from stepwell._core.faults import Conflict
from stepwell._core.needs import Needs
from stepwell._core.ranges import check_target, check_tenant, check_text
from stepwell._core.records import Instance
from stepwell._core.registry import Registry
from stepwell._core.status import Status
from stepwell._runtime.notifier import Notifier
from stepwell._store import doors, instances, operators
from stepwell._store.borrowed import borrow
from stepwell._store.database import Database
from stepwell._store.operators import Cancelled
from stepwell._store.retries import retried
from stepwell.config import Settings
from stepwell.errors import Duplicate, InvalidInput, NotFound
from stepwell.machine import step_name
from stepwell.outcomes import StepRef
from stepwell.waiting import Waiting


class Operating:
    """What changes the course of instances from outside."""

    def __init__(
        self, database: Database, registry: Registry, notifier: Notifier, settings: Settings, waiting: Waiting
    ) -> None:
        self._database = database
        self._registry = registry
        self._notifier = notifier
        self._settings = settings
        self._waiting = waiting

    async def cancel(
        self,
        target: int | str,
        reason: str | None,
        *,
        cascade: bool,
        by: str | None,
        tenant: str | None,
        connection: object = None,
        notify: bool = True,
    ) -> bool:
        why, who = _words("reason", reason) or "cancelled", _words("by", by)
        if connection is not None:
            id_, key = check_target(target)
            was_cancelled = await doors.cancel(
                borrow(connection), id_, key, tenant=self._settings.tenant if tenant is None else check_tenant(tenant),
                reason=why, by=who, cascade=cascade, notify=notify,
            )  # fmt: skip
            if was_cancelled is None:
                raise NotFound(target)
            return was_cancelled
        instance = await self._waiting.get(target, tenant)
        if instance.status.is_terminal:
            return False
        instance_id = instance.id
        ended = await retried(
            lambda: operators.cancel(self._database, instance_id, cascade=cascade, reason=why, by=who)
        )
        if notify:
            self._announce_cancelled(ended)
        return instance_id in ended.ids

    def _announce_cancelled(self, ended: Cancelled) -> None:
        for id_, fence in ended.executing:
            self._notifier.announce_revoked(id_, fence)
        for id_ in ended.watched:
            self._notifier.announce_settled(id_)
        for queue in set(ended.queues):
            self._notifier.announce_work(queue)

    async def retry(self, target: int | str, reason: str | None, *, by: str | None, tenant: str | None) -> bool:
        instance = await self._waiting.get(target, tenant)
        if instance.status is Status.DONE:
            raise InvalidInput("target", f"instance {instance.id} is done; restart it at a step instead")
        try:
            again = await operators.retry(
                self._database, instance.id, instance.parent_id, reason=_words("reason", reason), by=_words("by", by)
            )
        except Conflict:
            raise await self._duplicate(instance) from None
        if again is None:
            return False
        for queue in set(again.queues):
            self._notifier.announce_work(queue)
        for transport in again.transports:
            self._notifier.announce_dispatch(transport)
        self._notifier.announce_due()  # what awaits again may have a deadline
        return True

    async def restart(
        self, target: int | str, step: StepRef, state: Any, reason: str | None, *, by: str | None, tenant: str | None
    ) -> None:
        instance = await self._waiting.get(target, tenant)
        definition = self._registry.find(instance.machine, instance.version)
        if definition is None:
            raise InvalidInput("target", f"{instance.machine} version {instance.version} is not registered here; "
                               "restart it where its machine is known")
        name = step_name(step)
        if name is None:
            raise InvalidInput("step", f"{step!r} is no step; name one as Checkout.ship or \"ship\"")
        text = None if state is None else definition.state.admit(state_of(definition, state))
        if text is not None:
            check_size(text, "state", self._settings.max_payload)
        at = definition.step(name).name
        refuse = getattr(definition.owner, "_refuse_restart", None)
        if refuse is not None and (problem := refuse(instance.item, instance.step, at)):
            raise InvalidInput("step", problem)
        try:
            queues, fence = await operators.restart(
                self._database, instance.id, instance.parent_id, at, text, instance.concurrency_key,
                definition.needs.get(at, Needs()), reason=_words("reason", reason), by=_words("by", by),
            )  # fmt: skip
        except Conflict:
            raise await self._duplicate(instance) from None
        if fence is not None:
            self._notifier.announce_revoked(instance.id, fence)
        for queue in set(queues):
            self._notifier.announce_work(queue)

    async def _duplicate(self, instance: Instance) -> Duplicate:
        async with self._database.transaction() as session:
            occupants = await instances.find_occupants(session, [(instance.tenant, str(instance.key))])
        return Duplicate(str(instance.key), occupants.get(0, instance.id))


def _words(field: str, text: object) -> str | None:
    if text is None:
        return None
    if not isinstance(text, str):
        raise InvalidInput(field, f"expected words, got {text!r}")
    return check_text(field, text)
