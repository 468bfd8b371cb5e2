"""The short way of commits that only end, or only go on: calls of `commit_bare.sql`."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from stepwell._core.commits import Commit
from stepwell._core.status import Status
from stepwell._store.database import Queryable
from stepwell._store.instances import Committed
from stepwell._store.wire import encode_bare


async def commit_bare(db: Queryable, commits: Sequence[Commit]) -> list[Committed] | None:
    """Commit bare outcomes. None if they are not all of one worker, or a separator is among their words."""
    worker_id = commits[0].claim.worker_id
    if not all(commit.claim.worker_id == worker_id for commit in commits):
        return None
    texts = encode_bare(commits)
    if texts is None:
        return None
    [(ids, *marks, joining, rounds, units_)] = await db.fetch("instances/commit_bare", worker_id, *texts)
    landed = commits if ids is not None and len(ids) == len(commits) else _among(commits, ids or ())
    sent_back, watched, with_inbox = [frozenset(mark or ()) for mark in marks]
    rows = [
        Committed(
            (id_ := commit.claim.id),
            Status.EXECUTING if commit.goes_on and id_ not in sent_back else commit.status,
            commit.claim.queue, None, id_ in watched, id_ in with_inbox, commit.claim.round, None, None,
        )
        for commit in landed
    ]  # fmt: skip
    if not joining:
        return rows
    ends = dict(zip(joining, zip(rounds, units_, strict=True), strict=True))
    parents = {commit.claim.id: commit.claim.parent_id for commit in landed}
    return [_ended(row, parents[row.id], *ends[row.id]) if row.id in ends else row for row in rows]


def _ended(row: Committed, parent_id: int | None, round_: int | None, unit_id: int | None) -> Committed:
    """The end of a child, or of an answer that went on by itself."""
    joins = parent_id if unit_id is None else None
    return msgspec.structs.replace(row, joins=joins, parent_round=round_, continues=unit_id)


def _among(commits: Sequence[Commit], ids: Collection[int]) -> list[Commit]:
    landed = frozenset(ids)
    return [commit for commit in commits if commit.claim.id in landed]
