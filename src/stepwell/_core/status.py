"""The statuses of an instance, and its holds."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """`runnable → executing → runnable | awaiting_… | done | failed | cancelled`."""

    RUNNABLE = "runnable"
    EXECUTING = "executing"
    AWAITING_SIGNAL = "awaiting_signal"
    AWAITING_CHILDREN = "awaiting_children"
    AWAITING_EXTERNAL = "awaiting_external"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_terminal(self) -> bool:
        """The instance has ended."""
        return self is Status.DONE or self is Status.FAILED or self is Status.CANCELLED

    @property
    def is_settled(self) -> bool:
        """The instance has ended, or is parked."""
        return self is not Status.RUNNABLE and self is not Status.EXECUTING


STATUSES = {str(status): status for status in Status}  # by name; a lookup in the class takes three times as long


class Hold(StrEnum):
    """Why a runnable instance is not in the index of claims."""

    DUE = "due"  # its time has not come
    KEY = "key"  # another instance holds its concurrency key
    LIMIT = "limit"  # its concurrency limit has no free slot
    RATE = "rate"  # its rate limit has too few tokens, or others wait before it
    VERSION = "version"  # no live worker registers its machine and version
    UNFIT = "unfit"  # its state or step does not fit the registered code
