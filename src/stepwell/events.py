"""What an engine tells those who hooked an event: the names, and the one record for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final, Literal, TypeAlias, TypeVar, get_args

import msgspec

from stepwell._core.status import Status

EventName: TypeAlias = Literal["started", "committed", "failed", "stale", "reaped", "limit_wait", "large"]
NAMES: Final[tuple[EventName, ...]] = get_args(EventName)

OutcomeName: TypeAlias = Literal["Next", "Retry", "Await", "Spawn", "Ask", "Done", "Stop"]


# A Struct, not a dataclass: a hooked engine makes one per row, and this one is made three times faster.
class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that has happened. It can not be changed, and what an event does not know is None.

    started      an instance is stored: by start, start_many, signal_or_start, or as somebody's child
    committed    an outcome is durable: `step` has run, `outcome` says what it returned, `next_step` where it goes on
    failed       an instance has ended as failed: by its outcome, or because its step ended too many workers
    stale        an outcome was dropped, since the claim was no longer this worker's
    reaped       a row was taken from a worker that died (`worker_id`)
    limit_wait   an instance was put aside until a limit lets it go
    large        what an instance was started with, or what a step has left, is larger than `large_payload` (`size`)
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
    size: int | None = None  # characters of JSON: state, result and question together


Events: TypeAlias = EventName | Literal["all"] | Sequence[EventName]

Callback: TypeAlias = Callable[[Event], object]
"""What is called with each event, in the hooks' own thread; a coroutine that it returns is awaited there."""

Hooked = TypeVar("Hooked", bound=Callback)
