"""Operators' calls: cancel, retry and restart instances."""

from __future__ import annotations

from typing import Any

from stepwell._client.wait import WaitOperations
from stepwell._core.instance import Instance
from stepwell._core.limits.requirement import LimitRequirement
from stepwell._core.registry import Registry
from stepwell._core.start_request import state_of
from stepwell._core.status import Status
from stepwell._core.store_errors import Conflict
from stepwell._core.validation import check_target, check_text, tenant_of
from stepwell._notify.notifier import Notifier
from stepwell._store import instances, operators
from stepwell._store.connection import notifications
from stepwell._store.connection.pool import Database
from stepwell._store.connection.retry import retried
from stepwell._store.drivers import borrow, sql_functions
from stepwell._store.operators import Cancelled
from stepwell.config import Settings
from stepwell.errors import Duplicate, InvalidInput, NotFound
from stepwell.machine import step_name
from stepwell.outcomes import StepRef


class ControlOperations:
    """Changes instances from outside their steps."""

    def __init__(
        self, database: Database, registry: Registry, notifier: Notifier, settings: Settings, waiting: WaitOperations
    ) -> None:
        self._database = database
        self._registry = registry
        self._notifier = notifier
        self._settings = settings
        self._waiting = waiting

    async def cancel(
        self, target: int | str, reason: str | None,
        *, cascade: bool, by: str | None, tenant: str | None, connection: object = None, notify: bool = True,
    ) -> bool:  # fmt: skip
        reason_text, operator = _checked_text("reason", reason) or "cancelled", _checked_text("by", by)
        if connection is not None:
            id_, key = check_target(target)
            was_cancelled = await sql_functions.cancel(
                borrow(connection), id_, key, tenant=tenant_of(key, tenant, self._settings.tenant), reason=reason_text,
                by=operator, cascade=cascade, notify=notify, schema=self._database.schema,
            )  # fmt: skip
            if was_cancelled is None:
                raise NotFound(target)
            return was_cancelled
        instance = await self._waiting.get(target, tenant)
        if instance.status.is_terminal:
            return False
        instance_id = instance.id
        ended = await retried(
            lambda: operators.cancel(self._database, instance_id, cascade=cascade, reason=reason_text, by=operator)
        )
        if notify:
            self._announce_cancelled(ended)
        return instance_id in ended.ids

    def _announce_cancelled(self, ended: Cancelled) -> None:
        for id_, fence in ended.executing:
            self._notifier.notify_revoked(id_, fence)
        for id_ in ended.watched:
            self._notifier.publish(notifications.SETTLED, str(id_))
        for queue in set(ended.queues):
            self._notifier.notify_work(queue)

    async def retry(self, target: int | str, reason: str | None, *, by: str | None, tenant: str | None) -> bool:
        instance = await self._waiting.get(target, tenant)
        if instance.status is Status.DONE:
            raise InvalidInput("target", f"instance {instance.id} is done; restart it at a step instead")
        try:
            woken = await operators.retry(
                self._database, instance.id, instance.parent_id, reason=_checked_text("reason", reason),
                by=_checked_text("by", by),
            )  # fmt: skip
        except Conflict:
            raise await self._duplicate(instance) from None
        if woken is None:
            return False
        for queue in set(woken.queues):
            self._notifier.notify_work(queue)
        for transport in woken.transports:
            self._notifier.notify_dispatch(transport)
        self._notifier.publish(notifications.DUE)  # an instance that awaits again may have a deadline
        return True

    async def restart(
        self, target: int | str, step: StepRef, state: Any, reason: str | None, *, by: str | None, tenant: str | None
    ) -> None:
        instance = await self._waiting.get(target, tenant)
        definition = self._registry.find(instance.machine, instance.version)
        if definition is None:
            raise InvalidInput("target", f"{instance.machine} version {instance.version} is not registered here; "
                               "restart it in a process that registers its machine")
        name = step_name(step)
        if name is None:
            raise InvalidInput("step", f"{step!r} is not a step; name one as Checkout.ship or \"ship\"")
        most = self._settings.max_payload
        text = None if state is None else definition.state.admit(state_of(definition, state), most)
        at = definition.named(name).name
        refuse = getattr(definition.owner.object, "_refuse_restart", None)
        if refuse is not None and (problem := refuse(instance.item, instance.step, at)):
            raise InvalidInput("step", problem)
        try:
            queues, fence = await operators.restart(
                self._database, instance.id, instance.parent_id, at, text, instance.concurrency_key,
                definition.needs.get(at, LimitRequirement()), reason=_checked_text("reason", reason),
                by=_checked_text("by", by),
            )  # fmt: skip
        except Conflict:
            raise await self._duplicate(instance) from None
        if fence is not None:
            self._notifier.notify_revoked(instance.id, fence)
        for queue in set(queues):
            self._notifier.notify_work(queue)

    async def _duplicate(self, instance: Instance) -> Duplicate:
        async with self._database.transaction() as session:
            occupants = await instances.find_key_holders(session, [(instance.tenant, str(instance.key))])
        return Duplicate(str(instance.key), occupants.get(0, instance.id))


def _checked_text(field: str, text: object) -> str | None:
    if text is None:
        return None
    if not isinstance(text, str):
        raise InvalidInput(field, f"expected a string, got {text!r}")
    return check_text(field, text)
