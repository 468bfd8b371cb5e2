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


class Placement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """When, in which queue, and under which limits the row is claimable next. None keeps what the row has."""

    delay: timedelta = NOW
    queue: str | None = None
    priority: int | None = None
    switches_key: bool = False
    concurrency_key: str | None = None
    needs: LimitRequirement | None = None  # of limits, at the next step
    hold: Hold | None = None
    hold_reason: str | None = None


class Park(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the row waits for: signals, children, or an await unit."""

    awaits: tuple[str, ...] | None = None
    timeout: timedelta | None = None  # from the park to its deadline
    handed: tuple[int, ...] = ()  # signals that the step received: they do not wake the parked row
    children: tuple[NewInstance, ...] | None = None  # of a spawn
    asks: NewAwaitUnit | None = None

    @property
    def deadline(self) -> timedelta | None:
        """The time from the park to its deadline; None if it has none."""
        return self.timeout if self.asks is None else self.asks.common.timeout


class Values(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The changed parts of `instance_data`, encoded as JSON. None keeps the state, and clears result and error."""

    state: str | None = None
    decoded: Any = None  # `state` decoded, if it was decoded as a check; for a step that runs ahead
    was_unchecked: bool = False  # the state came from SQL, and is checked against its type now
    result: str | None = None
    error: str | None = None


UNMOVED, NOT_PARKED, UNCHANGED = Placement(), Park(), Values()


class Commit(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The new row of one claim."""

    claim: Claim
    status: Status
    step: str
    version: int
    attempt: int
    placement: Placement = UNMOVED
    park: Park = NOT_PARKED
    values: Values = UNCHANGED
    keeps_awaits: bool = False
    consumes: tuple[int, ...] = ()  # signals that this commit consumes
    has_filled: bool = False  # in this run, interactions were appended to a unit
    runs_ahead: bool = False  # run ahead: the row stays claimed, unless a signal or a cancel has come

    @property
    def is_simple_next(self) -> bool:
        """Whether it only changes the step: no delay, queue, key, limit or signal."""
        claim = self.claim
        return (
            self.status is Status.RUNNABLE and self.placement is UNMOVED and self.park is NOT_PARKED
            and not self.keeps_awaits and not self.consumes
            and claim.concurrency_key is None and claim.needs is None and claim.unit_id is None
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
        return self.park.children is not None and any(child.key is not None for child in self.park.children)

    @property
    def spawns_many(self) -> bool:
        """Whether several statements insert its children."""
        return self.park.children is not None and len(self.park.children) > PAGE

    @property
    def commits_alone(self) -> bool:
        """Whether it has a group of its own, so that no other outcome waits for it."""
        return self.park.children is not None and (self.spawns_many or self.spawns_keys)

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
            self.claim.concurrency_key is None and self.joins is None and self.park.awaits is None
            and self.park.children is None and not self.consumes and self.park.asks is None
            and not self.claim.attempt and not self.has_filled  # else it may leave a partly filled unit
            and (self.claim.needs is None or self.claim.needs.concurrency_limit is None)
        )  # fmt: skip

    @property
    def stores(self) -> bool:
        """Whether `instance_data` is written: with a new value, or to clear the error of an earlier attempt."""
        return (
            self.values.state is not None or self.values.result is not None or self.values.error is not None
            or self.claim.attempt > 0 or self.values.was_unchecked
        )  # fmt: skip
