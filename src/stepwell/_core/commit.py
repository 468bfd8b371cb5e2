"""One outcome as the committer writes it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import msgspec

from stepwell._core.await_unit import NewAwaitUnit
from stepwell._core.instance import Claim
from stepwell._core.limits.requirement import LimitRequirement
from stepwell._core.start_request import NewInstance
from stepwell._core.status import Hold, Status

NOW = timedelta(0)
PAGE = 1_000  # children that one statement inserts


class Commit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The new row of one claim, and the changed parts of its `instance_data`; JSON values are encoded."""

    claim: Claim
    status: Status
    step: str
    version: int
    attempt: int
    delay: timedelta = NOW
    queue: str | None = None  # None keeps the old one
    priority: int | None = None  # None keeps the old one
    switches_key: bool = False
    concurrency_key: str | None = None
    hold: Hold | None = None
    hold_reason: str | None = None
    keeps_awaits: bool = False
    awaits: tuple[str, ...] | None = None
    timeout: timedelta | None = None  # from the park to its deadline
    handed: tuple[int, ...] = ()  # signals that the step received: they do not wake the parked row
    consumes: tuple[int, ...] = ()  # signals that this commit consumes
    children: tuple[NewInstance, ...] | None = None  # of a spawn
    state: str | None = None  # None keeps the old one
    again: Any = None  # `state` decoded, if it was decoded as a check; for a step that runs ahead
    was_unchecked: bool = False  # the state came from SQL, and is checked against its type now
    result: str | None = None
    error: str | None = None
    needs: LimitRequirement | None = None  # of limits, at the next step; None keeps the old one
    asks: NewAwaitUnit | None = None  # the unit at which it parks
    has_filled: bool = False  # in this run, interactions were appended to a unit
    goes_on: bool = False  # run ahead: the row stays claimed, unless a signal or a cancel has come

    @property
    def patience(self) -> timedelta | None:
        """The time from the park to its deadline; None if it has none."""
        return self.timeout if self.asks is None else self.asks.common.timeout

    @property
    def is_simple_next(self) -> bool:
        """Whether it only changes the step: no delay, queue, key, limit or signal."""
        return (
            self.status is Status.RUNNABLE and not self.delay and self.hold is None and not self.keeps_awaits
            and self.queue is None and self.priority is None and not self.switches_key
            and self.claim.concurrency_key is None and self.children is None and not self.consumes
            and self.needs is None and self.claim.needs is None and self.claim.unit_id is None
        )  # fmt: skip

    @property
    def continues_as(self) -> Claim:
        """The claim of the next step, after this commit, when it runs ahead."""
        return msgspec.structs.replace(
            self.claim, fence=self.claim.fence + 1, version=self.version, step=self.step, attempt=0, crashes=0,
            awaits=(),
        )  # fmt: skip

    @property
    def spawns_keys(self) -> bool:
        """Whether a child has a key: its insert may wait for a caller's transaction."""
        return self.children is not None and any(child.key is not None for child in self.children)

    @property
    def spawns_many(self) -> bool:
        """Whether several statements insert its children."""
        return self.children is not None and len(self.children) > PAGE

    @property
    def commits_alone(self) -> bool:
        """Whether it has a group of its own, so that no other outcome waits for it."""
        return self.children is not None and (self.spawns_many or self.spawns_keys)

    @property
    def joins(self) -> int | None:
        """The parent that may have to count this end."""
        return self.claim.parent_id if self.status.is_terminal else None

    @property
    def is_plain(self) -> bool:
        """Whether one statement commits it: no key, slot, inbox, parent or children are involved.

        The inbox of a done instance does not count: it is dropped a moment later.
        """
        return (
            self.claim.concurrency_key is None and self.joins is None and self.awaits is None
            and self.children is None and not self.consumes and self.asks is None
            and not self.claim.attempt and not self.has_filled  # else it may leave a partly filled unit
            and (self.claim.needs is None or self.claim.needs.concurrency_limit is None)
        )  # fmt: skip

    @property
    def stores(self) -> bool:
        """Whether `instance_data` is written: with a new value, or to clear the error of an earlier attempt."""
        return (
            self.state is not None or self.result is not None or self.error is not None
            or self.claim.attempt > 0 or self.was_unchecked
        )  # fmt: skip
