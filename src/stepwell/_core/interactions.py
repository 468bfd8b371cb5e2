"""Questions to the world as frozen records: what is sent, what is answered, what is shown."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

import msgspec

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class InteractionStatus(StrEnum):
    """`queued → waiting → dispatching → dispatched → completed | timed_out | failed | cancelled`."""

    QUEUED = "queued"  # an item that its window does not let out yet
    WAITING = "waiting"  # to be sent
    DISPATCHING = "dispatching"
    DISPATCHED = "dispatched"
    COMPLETED = "completed"
    TIMED_OUT = "timed_out"
    FAILED = "failed"  # it could not be sent, for good
    CANCELLED = "cancelled"

    @property
    def is_open(self) -> bool:
        """An answer is still admitted."""
        return self in _OPEN


_OPEN = frozenset({
    InteractionStatus.QUEUED, InteractionStatus.WAITING, InteractionStatus.DISPATCHING, InteractionStatus.DISPATCHED,
})  # fmt: skip


class Reply(msgspec.Struct, frozen=True):
    """How one question ended, as a step sees it. `value` is there if, and only if, the status is "completed"."""

    status: InteractionStatus
    interaction_id: str
    value: Any = None
    actor: str | None = None
    completed_at: datetime | None = None
    index: int | None = None  # of an item
    error: str | None = None  # why it failed

    @property
    def is_completed(self) -> bool:
        """Somebody has answered."""
        return self.status is InteractionStatus.COMPLETED


class Interaction(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of one question."""

    id: str
    tenant: str
    instance_id: int
    machine: str
    version: int
    step: str  # that asked
    unit_id: int
    index: int | None
    correlation_id: str
    transport: str
    status: InteractionStatus
    request: Any
    reply: Any
    reply_type: str  # as people call it
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
    """An answer that was admitted, now or before (`is_duplicate`)."""

    interaction_id: str
    instance_id: int
    machine: str
    step: str
    is_duplicate: bool


class Dispatch(msgspec.Struct, frozen=True, kw_only=True):
    """One question on its way out, as a transport gets it."""

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
        """What is sent, as the contract with the other side names it."""
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
    """A deadline as the other side and tokens have it: whole milliseconds."""
    return None if deadline is None else (deadline - _EPOCH) // timedelta(milliseconds=1)


class Answered(msgspec.Struct, frozen=True):
    """What a projector is told about an answer beside its facts; the time is the database's, when the answer came."""

    interaction_id: str
    actor: str | None
    completed_at: datetime


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One answer as it came in, before anybody has judged it."""

    reply: Any
    interaction: str | None = None
    correlation: str | None = None
    token: str | None = None
    actor: str | None = None
    tenant: str | None = None
