"""What the flusher writes for one outcome."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from stepwell._core.records import Claim
from stepwell._core.status import Hold, Status

NOW = timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """The new row of one claim, and the parts of its side row that change; JSON is text by now."""

    claim: Claim
    status: Status
    step: str
    version: int
    attempt: int
    delay: timedelta = NOW
    queue: str | None = None  # None keeps it
    priority: int | None = None  # None keeps it
    switches_key: bool = False
    concurrency_key: str | None = None
    hold: Hold | None = None
    hold_reason: str | None = None
    state: str | None = None  # None keeps it
    result: str | None = None
    error: str | None = None

    @property
    def stores(self) -> bool:
        """Whether the side row is written: a new value, or an error of an earlier attempt to clear."""
        return (
            self.state is not None or self.result is not None or self.error is not None
            or self.claim.attempt > 0
        )  # fmt: skip
