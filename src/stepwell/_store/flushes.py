"""One flush: a batch of commits, and in the same transaction all that hangs on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from time import perf_counter

from stepwell._core.commits import Commit
from stepwell._core.entries import NewInstance
from stepwell._core.faults import Contention
from stepwell._core.records import Claim
from stepwell._core.reservation import Reservation
from stepwell._core.status import Status
from stepwell._store import children, instances, keys, limits, shortcuts, signals, spawns, units
from stepwell._store.database import Database, Session
from stepwell._store.instances import Committed, Started
from stepwell._store.units import Resolved

Spawned = tuple[Commit, int, NewInstance]
"""The commit of a spawn, the index of a child, and the child."""


@dataclass(slots=True)
class Flushed:
    """The answer to a flush: rows that committed, and queues of other rows that may run by it."""

    committed: list[Committed]
    leftovers: list[int] = field(default_factory=list)  # instances that are done, with an inbox still to be dropped
    slots: list[str] = field(default_factory=list)  # limits of which they had slots, still to be offered to others
    freed_queues: list[str] = field(default_factory=list)
    has_later_children: bool = False
    spawned: tuple[list[Spawned], list[Started]] | None = None  # all children, and those of them that were inserted
    born: list[Claim] = field(default_factory=list)  # children that are in the worker's hands already
    transports: list[str] = field(default_factory=list)  # with something to send
    is_as_meant: bool = False  # all of them landed as they were to, and concern nobody else: no rows are told
    is_partial: bool = False  # what is missing may be for the long way only
    has_items: bool = False  # some are ends of answers that went on by themselves
    was_hindered: bool = False  # a transaction that is not the engine's held one of its rows
    took: float = 0.0  # seconds from its sending to its answer: delays began in this time


async def flush(
    db: Database, commits: Sequence[Commit], *, lock_timeout: timedelta | None = None, barely: bool = False,
    counting: bool = False, reserved: Reservation | None = None,
) -> Flushed:  # fmt: skip
    """Commit outcomes together: plain ones in one statement, the others in one transaction.

    With a lock timeout, who waits longer than that for somebody's lock has a Contention, and nothing is committed.
    `barely`: all of them are bare, and the statement is tried that locks nothing before it writes; `counting`: ends of
    children are counted by it, too. `reserved`: slots for children that these spawn.
    """
    began = perf_counter()
    flushed = await _flush_bare(db, commits, counting=counting) if barely else None
    if flushed is None:
        flushed = await _flush(db, commits, lock_timeout, reserved)
    elif flushed.was_hindered:
        flushed = replace(await _flush(db, commits, lock_timeout), was_hindered=True)
    flushed.took = perf_counter() - began
    return flushed


async def _flush_bare(db: Database, commits: Sequence[Commit], *, counting: bool) -> Flushed | None:
    """Commit bare outcomes the short way, ends of children with their count in the same statement or transaction; None
    if there is no such way."""
    parents = {id_ for commit in commits if commit.claim.parent_id is not None and (id_ := commit.joins) is not None}
    try:
        if parents and not (counting and parents.isdisjoint([commit.claim.id for commit in commits])):
            async with db.transaction() as session:
                return await write(session, commits, barely=True)
        landed = await shortcuts.commit_bare(db, commits, parents)
    except Contention:
        return Flushed([], was_hindered=True)
    if landed is None:
        return None
    inboxes, freed = landed.left_inboxes(), landed.freed_queues or []
    if landed.is_as_meant:
        return Flushed([], inboxes, _slots(commits), freed, is_as_meant=True)
    committed = landed.rows()
    among = {row.id for row in committed}
    slots = _slots([commit for commit in commits if commit.claim.id in among])
    return Flushed(committed, inboxes, slots, freed, is_partial=bool(parents))


def _slots(landed: Sequence[Commit]) -> list[str]:
    """The limits of which these had slots."""
    return [limit for commit in landed if (limit := commit.claim.concurrency_limit) is not None]


def _left_inboxes(committed: list[Committed]) -> list[int]:
    return [row.id for row in committed if row.has_inbox and row.status is Status.DONE]


async def _flush(
    db: Database, commits: Sequence[Commit], lock_timeout: timedelta | None, reserved: Reservation | None = None
) -> Flushed:
    if all(commit.is_plain for commit in commits):
        committed = await instances.commit(db, commits)
        return Flushed(committed, _left_inboxes(committed))
    async with db.transaction() as session:
        if lock_timeout is not None:
            await session.bound_waits(lock_timeout)
        return await write(session, commits, reserved=reserved)


async def write(
    session: Session, commits: Sequence[Commit], *, barely: bool = False, reserved: Reservation | None = None
) -> Flushed:
    """Write outcomes, and all that hangs on them, in the transaction of the session; but for slots of bare ones, whose
    limits nobody locks who waits for the disk."""
    held = [c.claim.concurrency_key for c in commits if c.claim.concurrency_key is not None]
    ready = await _with_free_parents(session, commits)
    flushed = Flushed(await _committed(session, ready, barely=barely) if ready else [])
    rows = {row.id: row for row in flushed.committed}
    landed = [commit for commit in ready if commit.claim.id in rows]
    await _use_signals(session, landed, rows, flushed)
    await _spawn(session, [c for c in landed if c.children], rows, flushed, reserved)
    await _ask(session, landed, rows, flushed)
    ends = [(row.joins, row.parent_round or 0) for row in flushed.committed if row.joins is not None]
    if ends:
        flushed.freed_queues += await children.join(session, ends)
    flushed.has_items = any(row.continues is not None for row in flushed.committed)
    if flushed.has_items:
        settled = await units.end_items(
            session, [(row.continues, row.status is Status.DONE) for row in flushed.committed]
        )
        flushed.freed_queues += settled.queues
        flushed.transports += settled.transports
    if held:  # locked last: nobody who wants a key may wait for what we wait for above (a spawn's keyed child)
        await keys.lock(session, held)
        flushed.freed_queues += await keys.free(session, held)
    if barely:
        flushed.slots = _slots(landed)
    elif slots := _slots(landed):
        flushed.freed_queues += await limits.free(session, slots)
    return flushed


async def _committed(session: Session, commits: list[Commit], *, barely: bool) -> list[Committed]:
    """Commit what is bare the short way, if that is wanted, and what it leaves out the long one."""
    landed = await shortcuts.commit_bare(session, commits) if barely else None
    if landed is None:
        return await instances.commit(session, commits)
    rows = landed.rows()
    if landed.ids is None:
        return rows
    among = frozenset(landed.ids)
    return rows + await instances.commit(session, [commit for commit in commits if commit.claim.id not in among])


async def _with_free_parents(session: Session, commits: Sequence[Commit]) -> list[Commit]:
    """Leave out ends whose parent somebody else holds; the flusher brings them again."""
    parents = {commit.joins for commit in commits if commit.joins is not None}
    if not parents:
        return list(commits)
    locked = await children.lock_parents(session, sorted(parents))
    return [commit for commit in commits if commit.joins is None or commit.joins in locked]


async def _use_signals(
    session: Session, landed: list[Commit], rows: dict[int, Committed], flushed: Flushed
) -> None:
    consumed = [signal for commit in landed for signal in commit.consumes]
    if consumed:
        await signals.consume(session, consumed)
    ended = [commit.claim.id for commit in landed if commit.status is Status.DONE and rows[commit.claim.id].has_inbox]
    if ended:
        await signals.drop(session, ended)
    parked = [
        (commit.claim.id, commit.handed)
        for commit in landed
        if commit.awaits is not None and rows[commit.claim.id].has_inbox
    ]
    if parked:
        woken = await signals.recheck(session, parked)
        flushed.freed_queues += [queue for _, queue in woken]


async def _ask(session: Session, landed: list[Commit], rows: dict[int, Committed], flushed: Flushed) -> None:
    """Open what was asked, close what is abandoned, and let go who has its answers already."""
    if abandoned := [row.id for row in rows.values() if row.abandons]:
        await units.close(session, abandoned)
    opened: list[tuple[Commit, int]] = []
    filled: list[Resolved] = []
    for commit in landed:
        unit_id = rows[commit.claim.id].unit_id
        if commit.asks is None or unit_id is None:
            continue
        if commit.asks.question is None:
            filled.append(Resolved(unit_id, 0, 0, is_filled=True))
        else:
            opened.append((commit, unit_id))
            if commit.asks.common.sends:
                flushed.transports.append(commit.asks.common.transport)
    if opened:
        await units.open_(session, opened)
    if filled:
        settled = await units.settle(session, filled)
        flushed.freed_queues += settled.queues


async def _spawn(
    session: Session, landed: list[Commit], rows: dict[int, Committed], flushed: Flushed, reserved: Reservation | None
) -> None:
    """Insert children under their parents' locks, and wait only for those that were inserted."""
    if not landed:
        return
    entries = [(commit, index, child) for commit in landed for index, child in enumerate(commit.children or ())]
    parents = [(commit.claim.id, rows[commit.claim.id].round, index) for commit, index, _ in entries]
    children_ = [child for _, _, child in entries]
    born = await spawns.start(session, children_, parents, reserved)
    if born is None:
        started = await instances.start_keyed(session, children_, parents)
    else:
        started, flushed.born = born.started, born.claims
    flushed.freed_queues += [row.queue for row in started[len(flushed.born) :] if not row.later]
    flushed.spawned = entries, started
    flushed.has_later_children = any(row.later for row in started)
    counts = {commit.claim.id: 0 for commit in landed}
    for row in started:
        counts[entries[row.position][0].claim.id] += 1
    short = {c.claim.id: counts[c.claim.id] for c in landed if counts[c.claim.id] < len(c.children or ())}
    if short:
        flushed.freed_queues += await children.settle(session, short)
