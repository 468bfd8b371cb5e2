"""The short way of what is common: calls of `claim_bare.sql`, `claim_at_once.sql` and `commit_bare.sql`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from operator import itemgetter

import msgspec

from stepwell._core.commits import Commit
from stepwell._core.records import Claim
from stepwell._core.status import Status
from stepwell._store.database import Queryable, Row
from stepwell._store.instances import Claimed, Committed
from stepwell._store.signals import read_inbox
from stepwell._store.units import StoredUnit
from stepwell._store.wire import encode_bare, numbers
from stepwell._store.workers import Begun
from stepwell.errors import InvalidPayload

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)  # the server counts from here
_URGENCY = itemgetter("priority", "due_at", "id")  # most urgent first, as the claim's index has it
_UNIT = msgspec.json.Decoder(StoredUnit)


async def claim_bare(
    db: Queryable, worker_id: int, queue: str, limit: int, labels: Sequence[str], passed_over: Sequence[str]
) -> tuple[list[Claim], bool]:
    """Claim what needs nothing but a worker, if all of the window does; False if some of it was missed."""
    rows = await db.fetch("instances/claim_bare", worker_id, queue, limit, labels, passed_over)
    rows.sort(key=_URGENCY)
    claims = _claims(rows, worker_id, queue)
    return claims, bool(rows) and rows[0]["looked_at"] == len(claims)


async def claim_at_once(
    db: Queryable, worker_id: int, queue: str, limit: int, labels: Sequence[str], passed_over: Sequence[str]
) -> Claimed:
    """Claim what needs nothing but a worker and begins at once, and note that it has begun; nothing if not all of the
    window is such. Without `begun`, its beginning is still to be noted, or all that it begins with to be read."""
    rows = await db.fetch("instances/claim_at_once", worker_id, queue, limit, labels, passed_over)
    claims = _claims(rows, worker_id, queue)
    is_missed = bool(rows) and rows[0]["looked_at"] > len(claims)
    return Claimed(claims, [], [], is_missed, [], begun=_begun(rows, claims))


def _claims(rows: Sequence[Row], worker_id: int, queue: str) -> list[Claim]:
    if not rows:
        return []
    claimed_at = _EPOCH + timedelta(microseconds=int.from_bytes(rows[0]["claimed_at"], "big"))
    return [
        Claim(id_, worker_id, fence, machine, version, step, attempt, crashes, tenant, key, None, queue, claimed_at,
              has_inbox, tuple(awaits) if awaits else (), parent_id, round_, priority, None, unit_id)
        for (
            _, _, id_, fence, machine, version, step, attempt, crashes, tenant, key, has_inbox, awaits, parent_id,
            round_, priority, unit_id, *_,
        ) in rows
    ]  # fmt: skip


def _begun(rows: Sequence[Row], claims: Sequence[Claim]) -> Begun | None:
    """What claims begin with that have begun; None if the lease is gone, or something is missing or can not be read."""
    if not rows or not rows[0]["is_held"]:
        return None
    begun = Begun({row["id"]: row["state"] for row in rows}, frozenset(row["id"] for row in rows if row["unchecked"]))
    try:
        for row, claim in zip(rows, claims, strict=True):
            inbox, unit = row["inbox"], row["unit"]
            if claim.round or (claim.has_inbox and inbox is None) or (claim.unit_id is not None and unit is None):
                return None
            if inbox is not None:
                begun.inboxes[claim.id] = read_inbox(inbox)
            if unit is not None:
                begun.units[claim.id] = _UNIT.decode(unit)
    except (InvalidPayload, msgspec.DecodeError):
        return None
    return begun


class Landed(msgspec.Struct, frozen=True):
    """The answer to a bare commit: how many landed, and what was found at which of them."""

    commits: Sequence[Commit]
    number: int
    ids: list[int] | None  # of those that landed, if not all did
    sent_back: list[int] | None  # they were to go on, and do not
    watched: list[int] | None
    with_inbox: list[int] | None
    joining: list[int] | None  # ends that are to be counted
    rounds: list[int | None] | None
    units: list[int | None] | None
    freed_queues: list[str] | None  # of parents that go on

    @property
    def is_as_meant(self) -> bool:
        """Whether all have landed as they were to, and concern nobody else."""
        return self.number == len(self.commits) and not (self.sent_back or self.watched or self.joining)

    def left_inboxes(self) -> list[int]:
        """Instances that are done, with an inbox still to be dropped."""
        if not self.with_inbox:
            return []
        among = frozenset(self.with_inbox)
        return [c.claim.id for c in self.commits if c.status is Status.DONE and c.claim.id in among]

    def rows(self) -> list[Committed]:
        """What became of each that landed."""
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
                Status.EXECUTING if commit.goes_on and id_ not in sent_back else commit.status,
                commit.claim.queue, None, id_ in watched, id_ in with_inbox, commit.claim.round, None, None,
            )
            for commit in commits
        ]  # fmt: skip
        if not self.joining:
            return rows
        ends = dict(zip(self.joining, zip(self.rounds or (), self.units or (), strict=True), strict=True))
        parents = {commit.claim.id: commit.claim.parent_id for commit in commits}
        return [_ended(row, parents[row.id], *ends[row.id]) if row.id in ends else row for row in rows]


async def commit_bare(db: Queryable, commits: Sequence[Commit], parents: Collection[int] = ()) -> Landed | None:
    """Commit bare outcomes, and count ends of children at the given parents; without these, that is left to the caller.
    None if they are not all of one worker, or a separator is among their words."""
    worker_id = commits[0].claim.worker_id
    if not all(commit.claim.worker_id == worker_id for commit in commits):
        return None
    texts = encode_bare(commits)
    if texts is None:
        return None
    [row] = await db.fetch("instances/commit_bare", worker_id, len(commits), *texts, numbers([*parents]))
    return Landed(commits, *row)


def _ended(row: Committed, parent_id: int | None, round_: int | None, unit_id: int | None) -> Committed:
    """The end of a child, or of an answer that went on by itself."""
    joins = parent_id if unit_id is None else None
    return msgspec.structs.replace(row, joins=joins, parent_round=round_, continues=unit_id)
