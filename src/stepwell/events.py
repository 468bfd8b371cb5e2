"""Events for hooks: their names, and one record for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, Literal, TypeAlias, TypeVar, get_args

import msgspec

from stepwell._core.status import Status

EventName: TypeAlias = Literal["started", "committed", "failed", "stale", "reaped", "limit_wait", "large"]
NAMES: Final[tuple[EventName, ...]] = get_args(EventName)

OutcomeName: TypeAlias = Literal["Next", "Retry", "Await", "Spawn", "Ask", "Done", "Stop"]


# A Struct, as it is made three times faster than a dataclass: a hooked engine makes one per row.
class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One event. It is immutable; values that do not apply are None.

    started      an instance is stored: by start, start_many, signal_or_start, or as a child
    committed    an outcome is durable: `step` has run, `outcome` is what it returned, `next_step` the step after it
    failed       an instance has ended as failed: by its outcome, or because its step ended too many workers
    stale        an outcome was dropped, since the worker no longer held the claim
    reaped       a row was taken from a dead worker (`worker_id`)
    limit_wait   an instance was put on hold until a limit admits it
    large        the state of a start, or the data of an outcome, is larger than `large_payload` (`size`)
    """

    name: EventName
    at: datetime  # by the clock of this process
    id: int
    key: str | None
    tenant: str
    machine: str
    version: int
    step: str
    queue: str
    attempt: int
    status: Status | None = None  # the instance's after it
    outcome: OutcomeName | None = None
    next_step: str | None = None
    error_type: str | None = None
    error_message: str | None = None
    worker_id: int | None = None
    parent_id: int | None = None
    size: int | None = None  # characters of JSON: state, result and request together


Events: TypeAlias = EventName | Literal["all"] | Sequence[EventName]

Callback: TypeAlias = Callable[[Event], object]
"""A function that is called with each event, in the thread of the hooks; if it returns a coroutine, it is awaited."""

Hooked = TypeVar("Hooked", bound=Callback)
