"""What the flusher writes for one outcome."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec

from stepwell._core.entries import NewInstance
from stepwell._core.needs import Needs
from stepwell._core.questions import NewUnit
from stepwell._core.records import Claim
from stepwell._core.status import Hold, Status

NOW = timedelta(0)


class Commit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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
    keeps_awaits: bool = False
    awaits: tuple[str, ...] | None = None
    timeout: timedelta | None = None  # from the park to its deadline
    handed: tuple[int, ...] = ()  # signals the step was handed: they do not wake its park
    consumes: tuple[int, ...] = ()  # signals that are gone with this commit
    children: tuple[NewInstance, ...] | None = None  # of a spawn
    state: str | None = None  # None keeps it
    again: Any = None  # what `state` reads as, if it was read to check it: for a step that runs ahead
    was_unchecked: bool = False  # the state came in by SQL, and has met its type now
    result: str | None = None
    error: str | None = None
    needs: Needs | None = None  # of limits, at the next step; None keeps what there is
    asks: NewUnit | None = None  # what it parks at
    has_filled: bool = False  # in this run, questions were appended to a unit
    goes_on: bool = False  # the row stays the claim's, if nothing has come for it: its next step runs at once

    @property
    def patience(self) -> timedelta | None:
        """From the park to the end of its time, if that has one."""
        return self.timeout if self.asks is None else self.asks.common.timeout

    @property
    def length(self) -> int:
        """Characters of what is wide in it."""
        asked = 0 if self.asks is None or self.asks.question is None else len(self.asks.question.request)
        return len(self.state or "") + len(self.result or "") + len(self.error or "") + asked

    @property
    def is_bare_next(self) -> bool:
        """Whether it only goes to another step of the same claim's instance: no delay, queue, key, limit or signal."""
        return (
            self.status is Status.RUNNABLE and not self.delay and self.hold is None and not self.keeps_awaits
            and self.queue is None and self.priority is None and not self.switches_key
            and self.claim.concurrency_key is None and self.children is None and not self.consumes
            and self.needs is None and self.claim.needs is None and self.claim.unit_id is None
        )  # fmt: skip

    @property
    def continues_as(self) -> Claim:
        """The claim under which the next step runs, once this is committed and goes on."""
        return msgspec.structs.replace(
            self.claim, fence=self.claim.fence + 1, version=self.version, step=self.step, attempt=0, crashes=0,
            awaits=(),
        )  # fmt: skip

    @property
    def spawns_keys(self) -> bool:
        """Whether a child has a key: inserting it may wait for a transaction that is not the engine's."""
        return self.children is not None and any(child.key is not None for child in self.children)

    @property
    def joins(self) -> int | None:
        """The parent at which this end may have to be counted."""
        return self.claim.parent_id if self.status.is_terminal else None

    @property
    def is_plain(self) -> bool:
        """Whether one statement on its own commits it: no key, slot, inbox, parent or children to look after.

        The inbox of what is done is nobody's any more: it is dropped a moment later.
        """
        return (
            self.claim.concurrency_key is None and self.joins is None and self.awaits is None
            and self.children is None and not self.consumes and self.asks is None
            and not self.claim.attempt and not self.has_filled  # else it may leave a unit behind that was being filled
            and (self.claim.needs is None or self.claim.needs.concurrency_limit is None)
        )  # fmt: skip

    @property
    def is_bare(self) -> bool:
        """Whether it only ends as done, or only goes to another step: the shortest statement commits it. (What hangs on
        an end is done beside it: a child is counted at its parent, a slot of a limit is offered to the next one.)"""
        claim = self.claim
        return (
            (self.status is Status.RUNNABLE or self.status is Status.DONE)
            and claim.concurrency_key is None and (claim.needs is None or self.status is Status.DONE)
            and not claim.attempt
            and not self.delay and self.hold is None and not self.keeps_awaits and self.queue is None
            and self.priority is None and not self.switches_key and self.children is None and not self.consumes
            and self.needs is None and self.error is None and self.version == claim.version
            and not self.was_unchecked and not self.has_filled and self.asks is None and not self.attempt
        )  # fmt: skip

    @property
    def stores(self) -> bool:
        """Whether the side row is written: a new value, or an error of an earlier attempt to clear."""
        return (
            self.state is not None or self.result is not None or self.error is not None
            or self.claim.attempt > 0 or self.was_unchecked
        )  # fmt: skip
