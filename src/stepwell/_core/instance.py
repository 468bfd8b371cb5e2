"""Frozen records of rows, which the store returns to the layers above it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from stepwell._core.limits.requirement import LimitRequirement
from stepwell._core.status import Hold, Status


class Claim(msgspec.Struct, frozen=True, gc=False):
    """One executing row that a worker has claimed, until its outcome is committed."""

    id: int
    worker_id: int
    fence: int
    machine: str
    version: int
    step: str
    attempt: int
    crashes: int
    tenant: str
    key: str | None
    concurrency_key: str | None
    queue: str
    claimed_at: datetime
    has_inbox: bool = False
    awaits: tuple[str, ...] = ()
    parent_id: int | None = None
    round: int = 0
    priority: int = 0
    needs: LimitRequirement | None = None  # of limits; None for nearly every row
    unit_id: int | None = None  # the await unit of the replies that its step receives

    @property
    def concurrency_limit(self) -> str | None:
        """The concurrency limit of its slot."""
        return None if self.needs is None else self.needs.concurrency_limit

    @property
    def label(self) -> str:
        """Its name in logs and task names."""
        return f"{self.machine}.{self.step} #{self.id}"

    @property
    def is_suspect(self) -> bool:
        """Its step was running in two crashes in a row: the step may be what kills the workers."""
        return self.crashes >= SUSPECT_AFTER


SUSPECT_AFTER = 2


class Signal(msgspec.Struct, frozen=True):
    """One signal in an inbox."""

    id: int
    name: str
    payload: Any
    dedup_key: str | None
    sent_at: datetime


@dataclass(frozen=True, slots=True)
class AtStep:
    """An instance and the step at which it stands, as events show them."""

    id: int
    machine: str
    version: int
    step: str
    attempt: int
    tenant: str
    key: str | None
    parent_id: int | None


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an instance or its last attempt failed."""

    type: str
    message: str
    traceback: str | None = None


class Child(msgspec.Struct, frozen=True):
    """One child of the latest spawn, as its parent sees it; `index` is its position in the spawn."""

    index: int
    id: int
    key: str | None
    machine: str
    version: int
    status: Status
    state: Any
    result: Any
    error: Failure | None


@dataclass(frozen=True, slots=True)
class Instance:
    """A snapshot of one instance."""

    id: int
    tenant: str
    key: str | None
    machine: str
    version: int
    step: str
    status: Status
    hold: Hold | None
    hold_reason: str | None
    attempt: int
    crashes: int
    fence: int
    queue: str
    priority: int
    concurrency_key: str | None
    worker_id: int | None
    due_at: datetime
    deadline: datetime | None
    awaits: tuple[str, ...]
    parent_id: int | None
    children_pending: int
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    state: Any
    result: Any
    error: Failure | None
    operated: dict[str, Any] | None = None  # the last call of an operator: act, by, reason, at …
    concurrency_limit: str | None = None  # "name" or "name:part"
    rate_limit: str | None = None
    weight: int = 1
    queue_pause: str | None = None  # why its queue is paused, '' without a reason; None if it is not
    asked_over: str | None = None  # the transport of its open interactions
    answers_pending: int = 0
    items_pending: int = 0  # its continuations that have not ended
    item: int | None = None  # of a continuation: the index of its item; it is not a child of its parent, a pipeline

    @property
    def waiting_for(self) -> str | None:
        """What the instance waits for, in words; None if it runs, may run, or has ended."""
        match self.status:
            case Status.AWAITING_SIGNAL:
                return f"signal {' or '.join(map(repr, self.awaits))}"
            case Status.AWAITING_CHILDREN:
                return "1 child" if self.children_pending == 1 else f"{self.children_pending} children"
            case Status.AWAITING_EXTERNAL:
                return self._pending_replies()
            case Status.RUNNABLE if self.hold is None:
                return self._pause()
            case Status.RUNNABLE:
                return self._held_for()
            case _:
                return None

    def _pending_replies(self) -> str:
        items = "1 item" if self.items_pending == 1 else f"{self.items_pending} items"
        if self.items_pending and not self.answers_pending:
            return items
        replies = "a reply" if self.answers_pending == 1 else f"{self.answers_pending} replies"
        return f"{replies} over {self.asked_over!r}" + (f" and {items}" if self.items_pending else "")

    def _pause(self) -> str | None:
        if self.queue_pause is None:
            return None
        return f"queue {self.queue!r} is paused{self.queue_pause and f': {self.queue_pause}'}"

    def _held_for(self) -> str | None:
        match self.hold:
            case Hold.DUE:
                return f"its time, {self.due_at.isoformat(timespec='seconds')}"
            case Hold.KEY:
                return f"concurrency key {self.concurrency_key!r}, which another instance holds"
            case Hold.LIMIT:
                return self.hold_reason or f"a slot of concurrency limit {self.concurrency_limit!r}"
            case Hold.RATE:
                return self.hold_reason or f"its turn by rate limit {self.rate_limit!r}"
            case _:
                return self.hold_reason
