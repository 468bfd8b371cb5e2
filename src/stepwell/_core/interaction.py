"""Frozen records of interactions: what is sent, what completes them, what is shown."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

import msgspec

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class InteractionStatus(StrEnum):
    """`queued → waiting → dispatching → dispatched → completed | timed_out | failed | cancelled`."""

    QUEUED = "queued"  # an item outside its window
    WAITING = "waiting"  # to be sent
    DISPATCHING = "dispatching"
    DISPATCHED = "dispatched"
    COMPLETED = "completed"
    TIMED_OUT = "timed_out"
    FAILED = "failed"  # it can never be sent
    CANCELLED = "cancelled"

    @property
    def is_open(self) -> bool:
        """A completion is still accepted."""
        return self in _OPEN


_OPEN = frozenset({
    InteractionStatus.QUEUED, InteractionStatus.WAITING, InteractionStatus.DISPATCHING, InteractionStatus.DISPATCHED,
})  # fmt: skip


class Reply(msgspec.Struct, frozen=True):
    """How one interaction ended, as a step sees it. Only a completed one has a `value`."""

    status: InteractionStatus
    interaction_id: str
    value: Any = None
    actor: str | None = None
    completed_at: datetime | None = None
    index: int | None = None  # of an item
    error: str | None = None  # why it failed

    @property
    def is_completed(self) -> bool:
        """The external system has replied."""
        return self.status is InteractionStatus.COMPLETED


class Interaction(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of one interaction."""

    id: str
    tenant: str
    instance_id: int
    machine: str
    version: int
    step: str  # the step that asked; of a pipeline, as its author named it
    unit_id: int
    index: int | None
    correlation_id: str
    transport: str
    status: InteractionStatus
    request: Any
    reply: Any
    reply_type: str  # its readable name
    reply_schema: dict[str, Any] | None  # JSON Schema
    assignee: str | None
    group: str | None
    actor: str | None
    requires_token: bool
    idempotency_key: str
    attempts: int  # of sending it
    error: str | None  # of the last sending
    metadata: dict[str, Any] | None  # what the transport reported
    deadline: datetime | None
    is_overdue: bool
    created_at: datetime
    dispatched_at: datetime | None
    finished_at: datetime | None


class Completion(msgspec.Struct, frozen=True):
    """A completion that was accepted, now or before (`is_duplicate`)."""

    interaction_id: str
    instance_id: int
    machine: str
    step: str
    is_duplicate: bool


class Dispatch(msgspec.Struct, frozen=True, kw_only=True):
    """One interaction to send, as a transport receives it."""

    interaction_id: str
    correlation_id: str
    tenant: str
    instance_id: int
    machine: str
    step: str
    transport: str
    index: int | None
    request: Any  # a JSON value
    reply_type: str
    reply_schema: dict[str, Any] | None
    idempotency_key: str
    attempt: int  # 1 for the first
    assignee: str | None = None
    group: str | None = None
    deadline: datetime | None = None
    token: str | None = None

    def envelope(self) -> dict[str, Any]:
        """The message, with the field names of the contract with external systems."""
        return {
            "tenantId": self.tenant,
            "executionId": str(self.instance_id),
            "interactionId": self.interaction_id,
            "correlationId": self.correlation_id,
            "stepId": f"{self.machine}.{self.step}",
            "itemIndex": self.index,
            "idempotencyKey": self.idempotency_key,
            "attempt": self.attempt,
            "deadlineEpochMs": epoch_ms(self.deadline),
            "outputType": self.reply_type,
            "resumeToken": self.token,
            "requestPayload": self.request,
        }


def epoch_ms(deadline: datetime | None) -> int | None:
    """A deadline in whole milliseconds, as messages and tokens have it."""
    return None if deadline is None else (deadline - _EPOCH) // timedelta(milliseconds=1)


class Answered(msgspec.Struct, frozen=True):
    """What a projector receives beside the facts. The time is the database's, at the arrival of the completion."""

    interaction_id: str
    actor: str | None
    completed_at: datetime


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One completion as it arrived, before any check."""

    reply: Any
    interaction: str | None = None
    correlation: str | None = None
    token: str | None = None
    actor: str | None = None
    tenant: str | None = None
