"""The result of a commit: a row per outcome, or only their number, and what became claimable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from stepwell._core.commit import Commit
from stepwell._core.instance import Claim
from stepwell._core.start_request import NewInstance
from stepwell._core.status import Hold, Status
from stepwell._store.operations.start import Started

Spawned = tuple[Commit, int, NewInstance]
"""The commit of a spawn, the index of a child, and the child."""


class Committed(msgspec.Struct, frozen=True, gc=False):
    """A row after its commit, with what to notify."""

    id: int
    status: Status
    queue: str
    hold: Hold | None
    watched: bool
    has_inbox: bool
    round: int
    joins: int | None  # the parent that counts this end
    parent_round: int | None
    unit_id: int | None = None  # its await unit
    abandons: bool = False  # it abandons the await unit that it was filling
    continues: int | None = None  # the await unit that counts the end of this continuation


@dataclass(slots=True)
class CommitResult:
    """The committed outcomes, and what became claimable."""

    committed: list[Committed]
    leftovers: list[int] = field(default_factory=list)  # done instances with an inbox to be deleted
    slots: list[str] = field(default_factory=list)  # limits of released slots, for `limits.admit_waiting`
    freed_queues: list[str] = field(default_factory=list)
    has_later_children: bool = False
    spawned: tuple[list[Spawned], list[Started]] | None = None  # all children, and the inserted ones
    inserted_claimed: Sequence[Claim] = field(default_factory=list)  # children that the worker has already claimed
    transports: list[str] = field(default_factory=list)  # with interactions to send
    is_as_sent: bool = False  # all but `rest` were applied as sent, and no client waits: `committed` is empty
    rest: Sequence[Commit] = ()  # not committed: call `commit` again with these
    has_items: bool = False  # some are ends of continuations
    took: float = 0.0  # seconds from request to reply; delays began within this time


class FastCommitResult(msgspec.Struct, frozen=True):
    """The reply of the fast statement: how many rows it committed, and the properties of some of them."""

    commits: Sequence[Commit]
    number: int
    ids: list[int] | None  # of the committed rows, unless all were committed
    sent_back: list[int] | None  # should run ahead, but became runnable instead
    watched: list[int] | None
    with_inbox: list[int] | None
    joining: list[int] | None  # ended rows that a parent or an await unit counts
    rounds: list[int | None] | None
    units: list[int | None] | None
    freed_queues: list[str] | None  # of parents that became claimable

    def left_inboxes(self) -> list[int]:
        """Done instances with an inbox to be deleted."""
        among = frozenset(self.with_inbox or ())
        return [c.claim.id for c in self.commits if c.status is Status.DONE and c.claim.id in among]

    def rows(self) -> list[Committed]:
        """A row for each committed outcome."""
        commits = self.commits
        if self.ids is not None:
            among = frozenset(self.ids)
            commits = [commit for commit in commits if commit.claim.id in among]
        sent_back, watched, with_inbox = [
            frozenset(ids or ()) for ids in (self.sent_back, self.watched, self.with_inbox)
        ]
        rows = [
            Committed(
                (id_ := commit.claim.id),
                Status.EXECUTING if commit.runs_ahead and id_ not in sent_back else commit.status,
                commit.claim.queue, None, id_ in watched, id_ in with_inbox, commit.claim.round, None, None,
            )
            for commit in commits
        ]  # fmt: skip
        if not self.joining:
            return rows
        ends = dict(zip(self.joining, zip(self.rounds or (), self.units or (), strict=True), strict=True))
        parents = {commit.claim.id: commit.claim.parent_id for commit in commits}
        return [_ended(row, parents[row.id], *ends[row.id]) if row.id in ends else row for row in rows]


def _ended(row: Committed, parent_id: int | None, round_: int | None, unit_id: int | None) -> Committed:
    """A row that ended a child or a continuation."""
    joins = parent_id if unit_id is None else None
    return msgspec.structs.replace(row, joins=joins, parent_round=round_, continues=unit_id)
