"""Calls of `sql/instances`: start, claim, commit, reap and read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from operator import attrgetter
from typing import Any

import msgspec

from stepwell._core.codec import decode_value
from stepwell._core.commits import Commit
from stepwell._core.entries import NewInstance
from stepwell._core.needs import needs_text
from stepwell._core.records import Claim, Failure, Instance
from stepwell._core.status import STATUSES, Hold, Status
from stepwell._store import children, keys, limits, units
from stepwell._store.database import PLAN_ANEW, Database, Queryable, Row, Session
from stepwell._store.limits import Held
from stepwell._store.statements import statement
from stepwell._store.wire import encode_commits, joined
from stepwell._store.workers import Begun
from stepwell.errors import InvalidPayload


class Started(msgspec.Struct, frozen=True, gc=False):
    """One inserted instance; `later` if it waits for its due time."""

    position: int
    id: int
    queue: str
    later: bool


class Contender(msgspec.Struct, frozen=True):
    """A row of the claim's window that was not claimed."""

    id: int
    label: str  # name@version
    concurrency_key: str | None
    priority: int


@dataclass(frozen=True, slots=True)
class Claimed:
    """The answer to a claim: what is ours, what waits behind a busy key, what we do not know, what to try again, and
    what needs limits. `begun`: what our claims begin with, if they have begun already. `held`: what found no slot of
    its limit, and stands in its line now."""

    claims: list[Claim]
    busy: list[Contender]
    foreign: list[Contender]
    missed: bool
    limited: list[Contender]
    begun: Begun | None = None
    held: Sequence[Held] = ()

    @property
    def window(self) -> int:
        """How many rows were looked at."""
        return len(self.claims) + len(self.busy) + len(self.foreign) + len(self.limited) + len(self.held)

    @property
    def last_priority(self) -> int | None:
        """That of the least urgent row looked at; None if there was none."""
        parts: tuple[Sequence[Claim | Contender | Held], ...] = (
            self.claims, self.busy, self.foreign, self.limited, self.held,
        )  # fmt: skip
        return max((rows[-1].priority for rows in parts if rows), default=None)

    @property
    def needs_limits(self) -> bool:
        """Whether some of what was looked at needs limits. (Of claims, all have asked them, or none.)"""
        return bool(self.limited or self.held or (self.claims and self.claims[0].needs is not None))

    @property
    def is_bare(self) -> bool:
        """Whether nothing in it needed more than a worker."""
        is_taken = self.window == len(self.claims) and not self.needs_limits
        return is_taken and all(claim.concurrency_key is None for claim in self.claims)


class Committed(msgspec.Struct, frozen=True, gc=False):
    """A row after its commit, and what to tell whom."""

    id: int
    status: Status
    queue: str
    hold: Hold | None
    watched: bool
    has_inbox: bool
    round: int
    joins: int | None  # the parent at which this end is to be counted
    parent_round: int | None
    unit_id: int | None = None  # the await unit it points to
    abandons: bool = False  # it was filling a unit, and does not go on with that
    continues: int | None = None  # the unit of whose items this was one, and has come to its end


@dataclass(frozen=True, slots=True)
class Reaped:
    """A row taken from a dead worker."""

    id: int
    status: Status
    queue: str
    watched: bool
    begun: bool
    machine: str
    version: int
    step: str
    tenant: str
    key: str | None
    attempt: int
    worker_id: int  # of the dead
    parent_id: int | None
    failure: str | None  # why it failed, if it did


class Trace(msgspec.Struct, frozen=True):
    """What the row of a claim looks like now."""

    fence: int
    worker_id: int | None
    status: Status


@dataclass(frozen=True, slots=True)
class Tick:
    """The answer to a look at the clock."""

    freed: int
    freed_queues: list[str]
    ready: list[str]
    flowing: list[str]  # rate limits whose line may go on
    paused: list[str]
    fair: list[str]
    misplaced: list[str]  # queues with rows to be brought over
    has_late: bool  # the time of a question is over
    to_send: list[str]  # transports with something to send
    next_due: float | None  # seconds


Parent = tuple[int, int, int]
"""A parent's id, its round, and the child's index."""
_NOBODY = (None, None, None)


# What entries without a key have in common if they are alike, in the order of start_alike.sql.
common_of = attrgetter(
    "machine", "version", "step", "queue", "priority", "delay", "at", "tenant", "concurrency_key", "needs"
)  # fmt: skip


async def start(
    db: Queryable, entries: Sequence[NewInstance], parents: Sequence[Parent] | None = None
) -> list[Started]:
    """Insert instances, or children of the given parents; positions of duplicate keys are missing."""
    if parents is None and (arguments := alike_arguments(entries)) is not None:
        return inserted(entries, *await insert_alike(db, arguments))
    of: Sequence[Parent | tuple[None, None, None]] = parents or [_NOBODY] * len(entries)
    rows = await db.fetch(
        "instances/start",
        [e.machine for e in entries],
        [e.version for e in entries],
        [e.step for e in entries],
        [e.queue for e in entries],
        [e.priority for e in entries],
        [e.delay for e in entries],
        [e.at for e in entries],
        [e.tenant for e in entries],
        [e.key for e in entries],
        [e.key_scope for e in entries],
        [e.concurrency_key for e in entries],
        [e.state for e in entries],
        [parent for parent, _, _ in of],
        [round_ for _, round_, _ in of],
        [index for _, _, index in of],
        [],  # unchecked: none of them, their states have passed a door in Python
        [needs_text(e.needs) for e in entries] if any(e.needs is not None for e in entries) else [],
    )
    return [Started(*row) for row in rows]


def alike_arguments(entries: Sequence[NewInstance], *, copied: bool = False) -> tuple[object, ...] | None:
    """What the statement is sent for instances that have no keys and differ in their states only; None if they do not,
    or their states can not be told apart as one text. With `copied`, these are left out."""
    *common, needs = fields = common_of(entries[0])
    if not all(entry.key is None and common_of(entry) == fields for entry in entries):
        return None
    states = joined(["" if copied else entry.state for entry in entries])
    return None if states is None else (states, *common, needs_text(needs))


async def insert_alike(db: Queryable, arguments: tuple[object, ...]) -> tuple[list[int], bool]:
    """Send what was made ready; returns their ids, and whether they wait for their time."""
    [(ids, later)] = await db.fetch("instances/start_alike", *arguments)
    return ids, later


def inserted(entries: Sequence[NewInstance], ids: Sequence[int], later: bool) -> list[Started]:
    """The rows of entries that are alike."""
    queue = entries[0].queue
    return [Started(position, id_, queue, later) for position, id_ in enumerate(ids)]


async def start_keyed(
    db: Session, entries: Sequence[NewInstance], parents: Sequence[Parent] | None = None
) -> list[Started]:
    """Insert instances of which some have keys, in a transaction; positions of duplicates are missing.

    A key whose last holder was pruned while we waited for its deletion has a tombstone that our statement did not
    see: it is looked for once more, and such instances are taken back.
    """
    started = await start(db, entries, parents)
    keyed = [row.id for row in started if entries[row.position].key is not None]
    buried = {row["id"] for row in await db.fetch("instances/find_buried", keyed)} if keyed else set()
    if buried:
        await db.fetch("instances/unstart", sorted(buried))
    return [row for row in started if row.id not in buried]


async def find_occupants(db: Session, keys_: Sequence[tuple[str, str]]) -> dict[int, int]:
    """Who occupies keys, given as (tenant, key): the occupant's id by position; a freed key is missing."""
    await db.run(PLAN_ANEW)
    rows = await db.fetch("instances/find_occupants", [tenant for tenant, _ in keys_], [key for _, key in keys_])
    return {row["position"]: row["id"] for row in rows}


async def claim(
    db: Queryable, worker_id: int, queue: str, limit: int, labels: Sequence[str], passed_over: Sequence[str] = ()
) -> Claimed:
    return read_claims(
        await db.fetch("instances/claim", worker_id, queue, limit, labels, passed_over), worker_id, queue
    )


def read_claims(rows: Sequence[Row], worker_id: int, queue: str) -> Claimed:
    """The answer to a claim, also to that of a fair queue."""
    claims: list[Claim] = []
    losers: dict[str, list[Contender]] = {"busy": [], "foreign": [], "limited": [], "missed": []}
    claimed_at: Any = next((row["claimed_at"] for row in rows if row["claimed_at"] is not None), None)
    for (
        verdict, id_, machine, version, key, fence, step, attempt, crashes, tenant, business_key, _,
        has_inbox, awaits, parent_id, round_, priority, unit_id,
    ) in rows:  # fmt: skip
        if verdict == "claimed":
            claims.append(
                Claim(id_, worker_id, fence, machine, version, step, attempt, crashes, tenant, business_key, key,
                      queue, claimed_at, has_inbox, tuple(awaits) if awaits else (), parent_id, round_, priority, None,
                      unit_id)
            )  # fmt: skip
        else:
            losers[verdict].append(Contender(id_, f"{machine}@{version}", key, priority))
    return Claimed(claims, losers["busy"], losers["foreign"], bool(losers["missed"]), losers["limited"])


async def commit(db: Queryable, commits: Sequence[Commit]) -> list[Committed]:
    """Commit outcomes whose claims still hold; see flushes.py for what goes around it."""
    rows = await db.fetch("instances/commit", encode_commits(commits))
    return [
        Committed(id_, STATUSES[status], queue, None if hold is None else Hold(hold), *rest)
        for id_, status, queue, hold, *rest in rows
    ]


async def verify(db: Queryable, ids: Sequence[int]) -> dict[int, Trace]:
    rows = await db.fetch("instances/verify", ids)
    return {id_: Trace(fence, worker, Status(status)) for id_, fence, worker, status in rows}


async def tick(db: Queryable, queues: Sequence[str], transports: Sequence[str] = ()) -> Tick:
    [row] = await db.fetch("instances/tick", queues, transports)
    return Tick(**row)


async def release(
    db: Database, worker_id: int, claims: Sequence[tuple[int, int, str | None]]
) -> tuple[set[int], list[str]]:
    """Give back claims, each an id with its fence and concurrency key; returns those that were given back, and the
    queues to wake. Who is missing is not the worker's any more, or is locked by somebody else."""
    ids, fences = [id_ for id_, _, _ in claims], [fence for _, fence, _ in claims]
    held = [key for _, _, key in claims if key is not None]
    async with db.transaction() as session:
        if held:
            await keys.lock(session, held)
        rows = await session.fetch("instances/release", worker_id, ids, fences)
        freed = await keys.free(session, held) if held else []
        freed += await limits.free(session, limits.named(rows))
    return {row["id"] for row in rows}, [row["queue"] for row in rows] + freed


Carried = tuple[int, str | None, int | None]
"""An executing row of a dead worker: its id, its concurrency key, its parent."""


async def find_lost(db: Queryable, worker_id: int, lease: timedelta) -> list[Carried]:
    """Executing rows without a live lease, if this worker may act as reaper."""
    return [(id_, key, parent) for id_, key, parent in await db.fetch("instances/find_lost", worker_id, lease)]


async def find_carried(db: Queryable, worker_ids: Sequence[int]) -> list[Carried]:
    """Executing rows of the given workers."""
    return [(id_, key, parent) for id_, key, parent in await db.fetch("instances/find_carried", worker_ids)]


async def reap(db: Database, lost: Sequence[Carried], max_crashes: int) -> tuple[list[Reaped], list[str]]:
    """Take rows from workers without a live lease; returns them, and the queues of others that go on by it."""
    held = [key for _, key, _ in lost if key is not None]
    parents = [parent for _, _, parent in lost if parent is not None]
    async with db.transaction() as session:
        if held:
            await keys.lock(session, held)
        locked = await children.lock_parents(session, parents) if parents else set()
        ids = [id_ for id_, _, parent in lost if parent is None or parent in locked]
        rows = await session.fetch("instances/reap", ids, max_crashes)
        ends = [(row["joins"], row["parent_round"]) for row in rows if row["joins"] is not None]
        freed = await children.join(session, ends) if ends else []
        freed += (await units.end_items(session, [(row["continues"], False) for row in rows])).queues
        freed += await keys.free(session, held) if held else []
        freed += await limits.free(session, limits.named(rows))
        if failed := [row["id"] for row in rows if row["status"] == Status.FAILED]:
            await units.close(session, failed)
    return [Reaped(id_, Status(status), *rest) for id_, status, *rest, _, _, _, _ in rows], freed


async def hold_foreign(db: Queryable, ids: Sequence[int]) -> dict[int, str | None]:
    """Put rows aside that no live worker can run; returns them, each with its concurrency limit."""
    return {row["id"]: row["concurrency_limit"] for row in await db.fetch("instances/hold_foreign", ids)}


FULL_UNHOLD = 1_000


async def unhold_version(
    db: Queryable, labels: Sequence[str] = (), upcasting: Sequence[str] = (), *, also_unfit: bool = False
) -> set[str]:
    """Free what some live worker, the given versions or an upcast can run; returns the queues to wake."""
    queues: set[str] = set()
    while True:
        rows = await db.fetch("instances/unhold_version", labels, also_unfit, upcasting)
        queues.update(row["queue"] for row in rows)
        if len(rows) < FULL_UNHOLD:
            return queues


async def read(db: Queryable, ids: Sequence[int]) -> list[Instance]:
    return [read_row(row) for row in await db.fetch("instances/read", ids)]


def read_over(send: Callable[[str, list[int]], Sequence[Mapping[str, Any]]], ids: list[int]) -> list[Instance]:
    """The same over somebody else's connection: `send` runs a statement, whose placeholder is %s, with the ids."""
    return [read_row(row) for row in send(statement("instances/read").replace("$1", "%s"), ids)]


async def find_key(db: Queryable, tenant: str, key: str) -> int | None:
    rows = await db.fetch("instances/find_key", tenant, key)
    return rows[0]["id"] if rows else None


async def watch(db: Queryable, id_: int) -> tuple[Status, str | None] | None:
    """Mark as watched; returns the status of what was marked just now, and its queue if a claim may have passed it."""
    rows = await db.fetch("instances/watch", id_)
    return (Status(rows[0]["status"]), rows[0]["queue"]) if rows else None


async def prune(db: Queryable) -> tuple[int, int]:
    """Delete what has ended and is old enough; returns how many, and the most of one machine."""
    [(deleted, largest)] = await db.fetch("instances/prune")
    return deleted, largest


def _shown(text: str) -> Any:
    """A stored value; what somebody wrote past the doors and nobody can read is shown as its text."""
    try:
        return decode_value(text)
    except InvalidPayload:
        return text


def read_row(row: Row | Mapping[str, Any]) -> Instance:
    """A row of read.sql or list.sql."""
    fields: dict[str, Any] = dict(row)
    fields.pop("await_unit_id", None)
    error = fields["error"]
    fields |= {
        "status": Status(fields["status"]),
        "hold": None if fields["hold"] is None else Hold(fields["hold"]),
        "awaits": tuple(fields["awaits"] or ()),
        "state": _shown(fields["state"]),
        "result": None if fields["result"] is None else _shown(fields["result"]),
        "error": None if error is None else Failure(**decode_value(error)),
        "operated": None if fields["operated"] is None else decode_value(fields["operated"]),
    }
    return Instance(**fields)
