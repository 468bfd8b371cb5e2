"""Commit outcomes of steps, and their consequences. `commit` chooses the statement:

| condition | statement |
|---|---|
| a lock timeout; a row was locked within the last second; the fast statement left out an outcome | full path |
| all outcomes are simple (`is_simple`) | `instances/commit_fast` |
| some of them end children | the same; it counts the ends at the parents |
| the same; a parent is in the batch or continuations ended lately | the same in a transaction, then `children/join` |
| more than 16 are simple, others are not | `instances/commit_fast` for the simple ones; the others are `rest` |
| anything else | full path |

The full path takes all outcomes: `instances/commit` alone if they have no consequences (`Commit.is_plain`); else a
transaction, which locks parents, commits, consumes signals, inserts children, opens await units, counts ends, and
releases keys and slots. It follows at once if the fast statement meets a locked row or cannot send a text.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import timedelta
from time import perf_counter

from stepwell._core.commit import NOT_PARKED, UNMOVED, Commit
from stepwell._core.reservation import Reservation
from stepwell._core.status import STATUSES, Hold, Status
from stepwell._core.store_errors import Contention, Misfit, Refusal
from stepwell._store import await_units, children, operators, signals
from stepwell._store.await_units import Dropped, Resolved
from stepwell._store.connection.pool import Database, Queryable, Session
from stepwell._store.operations.commit_result import CommitResult, Committed, FastCommitResult
from stepwell._store.operations.encoding import encode_commits, encode_simple, numbers
from stepwell._store.operations.start import start_children, start_in_pages

FEW = 16  # up to this number of simple outcomes use the full path, together with others
AFTER_LOCK = 1.0  # seconds of the full path after a locked row: other rows may be locked too
AFTER_CONTINUATIONS = 1.0  # seconds of counting ends separately: those of continuations count at await units
MOST_REMEMBERED = 10_000  # outcomes that the fast statement left out


def is_simple(commit: Commit) -> bool:
    """Whether the fast statement can commit it: it only ends as done, or only changes the step. (Other statements count
    an ended child at its parent, and admit a row to its limit slot.)"""
    claim, status, values = commit.claim, commit.status, commit.values
    return (
        (status is Status.RUNNABLE or status is Status.DONE)
        and commit.placement is UNMOVED and commit.park is NOT_PARKED
        and claim.concurrency_key is None and (claim.needs is None or status is Status.DONE)
        and not claim.attempt and not commit.attempt and commit.version == claim.version
        and not commit.keeps_awaits and not commit.consumes and not commit.has_filled
        and values.error is None and not values.was_unchecked
    )  # fmt: skip


def shape_of(commit: Commit) -> tuple[object, ...]:
    """The properties that decide which statements commit it: success with one shape proves nothing for another."""
    c, claim, park, values = commit, commit.claim, commit.park, commit.values
    return (
        c.status, is_simple(c), c.is_plain, c.stores, values.result is None, values.error is None,
        park.children is None, c.spawns_keys, c.consumes == (), park.awaits is None, c.keeps_awaits, park.asks is None,
        park.asks is None or park.asks.interaction is None, c.has_filled, claim.concurrency_key is None,
        claim.needs is None, claim.parent_id is None, claim.unit_id is None, claim.has_inbox,
    )  # fmt: skip


class NotWritten(Exception):
    """Children were inserted, but the outcome was not: its claim no longer holds, or its row is locked."""


class _Undone(Exception):
    """Rolls back a trial."""


class CommitPaths:
    """The results of a committer's earlier commits. Only `commit` reads and writes them."""

    __slots__ = ("counts_apart_until", "full_until", "left_out")

    def __init__(self, *, full_until: float = 0.0) -> None:
        self.full_until = full_until
        self.counts_apart_until = 0.0  # until then, `children/join` counts ends of children
        self.left_out: set[int] = set()  # instances of outcomes that the fast statement did not commit

    def leave_out(self, commits: Iterable[Commit]) -> None:
        """Use the full path for these outcomes next time."""
        if len(self.left_out) > MOST_REMEMBERED:
            self.left_out.clear()
        self.left_out.update([commit.claim.id for commit in commits])

    def forget(self, commits: Iterable[Commit]) -> None:
        """Forget outcomes that the full path has handled."""
        if self.left_out:
            self.left_out.difference_update([commit.claim.id for commit in commits])

    def split(self, commits: Sequence[Commit]) -> tuple[Sequence[Commit], Sequence[Commit]]:
        """The outcomes for the fast statement, and the rest."""
        if perf_counter() < self.full_until:
            return (), commits
        if self.left_out and any(commit.claim.id in self.left_out for commit in commits):
            return (), commits
        simple = [commit for commit in commits if is_simple(commit)]
        if len(simple) == len(commits):
            return commits, ()
        if len(simple) <= FEW:
            return (), commits
        return simple, [commit for commit in commits if not is_simple(commit)]


async def commit(
    db: Database, commits: Sequence[Commit], paths: CommitPaths, *, lock_timeout: timedelta | None = None,
    reserved: Reservation | None = None, is_long: bool = False,
) -> CommitResult:  # fmt: skip
    """Commit outcomes of different instances together; `rest` remains for another call.

    If a lock takes longer than `lock_timeout`, raises Contention and commits nothing. `reserved`: slots of the worker
    for children that are inserted already claimed. With `is_long`, and a lock timeout, it may take a minute.
    """
    began, era = perf_counter(), db.era
    simple, rest = paths.split(commits) if lock_timeout is None else ((), commits)
    result = await _commit_fast(db, simple, paths) if simple else None
    if result is None:
        db.check_era(era)  # after a failover the claims no longer hold: send no second statement
        try:
            result = await _commit_full(db, commits, lock_timeout, reserved, is_long=is_long)
        except (Refusal, Misfit):
            if len(commits) == 1:
                paths.forget(commits)
            raise
        paths.forget(commits)
    elif rest:
        result.rest = [*result.rest, *rest]
    if result.has_items:
        paths.counts_apart_until = perf_counter() + AFTER_CONTINUATIONS
    result.took = perf_counter() - began
    return result


async def _commit_fast(db: Database, commits: Sequence[Commit], paths: CommitPaths) -> CommitResult | None:
    """Commit simple outcomes; None if nothing was committed, and the full path must do it."""
    parents = {id_ for commit in commits if commit.claim.parent_id is not None and (id_ := commit.joins) is not None}
    try:
        if parents and not (
            perf_counter() >= paths.counts_apart_until and parents.isdisjoint([commit.claim.id for commit in commits])
        ):
            async with db.transaction() as session:
                return await write(session, commits, fast=True)
        applied = await _send_fast(db, commits, parents)
    except Contention:
        paths.full_until = perf_counter() + AFTER_LOCK
        return None
    except (Refusal, Misfit):
        paths.leave_out(commits)
        raise
    if applied is None:
        return None
    inboxes, freed = applied.left_inboxes() if applied.with_inbox else [], applied.freed_queues or []
    if applied.number == len(commits) and not (applied.sent_back or applied.watched or applied.joining):
        return CommitResult([], inboxes, _slots(commits), freed, is_as_sent=True)
    committed = applied.rows()
    among = {row.id for row in committed}
    result = CommitResult(committed, inboxes, _slots([c for c in commits if c.claim.id in among]), freed)
    if parents and len(among) < len(commits):  # a parent is locked: the full path handles these
        result.rest = [commit for commit in commits if commit.claim.id not in among]
        paths.leave_out(result.rest)
    return result


async def _send_fast(
    db: Queryable, commits: Sequence[Commit], parents: Collection[int] = ()
) -> FastCommitResult | None:
    """Commit simple outcomes, and count ends of children at the given parents; without parents, the caller counts. None
    if the outcomes are of several workers, or a text contains the separator."""
    worker_id = commits[0].claim.worker_id
    if not all(commit.claim.worker_id == worker_id for commit in commits):
        return None
    texts = encode_simple(commits)
    if texts is None:
        return None
    [row] = await db.fetch("instances/commit_fast", worker_id, len(commits), *texts, numbers([*parents]))
    return FastCommitResult(commits, *row)


async def commit_rows(db: Queryable, commits: Sequence[Commit]) -> list[Committed]:
    """Commit outcomes of any kind with one statement, if their claims hold, without their consequences."""
    rows = await db.fetch("instances/commit", encode_commits(commits))
    return [
        Committed(id_, STATUSES[status], queue, None if hold is None else Hold(hold), *rest)
        for id_, status, queue, hold, *rest in rows
    ]


def _slots(applied: Sequence[Commit]) -> list[str]:
    """The limits of the slots that these commits release."""
    needs = [commit.claim.needs for commit in applied if commit.claim.needs is not None]
    return [need.concurrency_limit for need in needs if need.concurrency_limit is not None]


def _left_inboxes(committed: list[Committed]) -> list[int]:
    return [row.id for row in committed if row.has_inbox and row.status is Status.DONE]


async def takes(db: Database, commit: Commit, *, lock_timeout: timedelta) -> bool:
    """Whether the server accepts this outcome now: write it, and roll back. Also False if the claim no longer holds, or
    its row is locked."""
    try:
        await _commit_full(db, [commit], lock_timeout, is_trial=True)
    except _Undone:
        return True
    return False


async def _commit_full(
    db: Database, commits: Sequence[Commit], lock_timeout: timedelta | None, reserved: Reservation | None = None,
    *, is_trial: bool = False, is_long: bool = False,
) -> CommitResult:  # fmt: skip
    if not (is_trial or is_long) and all(commit.is_plain for commit in commits):
        committed = await commit_rows(db, commits)
        return CommitResult(committed, _left_inboxes(committed))
    try:
        async with db.transaction(is_long=is_long) as session:
            if lock_timeout is not None:
                await session.bound_waits(lock_timeout)
            result = await write(session, commits, reserved=reserved)
            if is_trial and result.committed:
                raise _Undone
            return result
    except NotWritten:
        return CommitResult([])


async def write(
    session: Session, commits: Sequence[Commit], *, fast: bool = False, reserved: Reservation | None = None
) -> CommitResult:
    """Write outcomes and their consequences in the transaction of the session.

    With `fast`, the caller releases slots of limits: no limit is locked while the commit waits for the disk.
    Raises NotWritten if the children of a single outcome were inserted but its claim no longer holds.
    """
    held = [c.claim.concurrency_key for c in commits if c.claim.concurrency_key is not None]
    ready = await _with_free_parents(session, commits)
    result = CommitResult([])
    if len(ready) == 1 and ready[0].spawns_many:
        await _spawn_many(session, ready[0], result)
    result.committed = await _committed(session, ready, fast=fast) if ready else []
    if result.spawned is not None and not result.committed:
        raise NotWritten
    rows = {row.id: row for row in result.committed}
    applied = [commit for commit in ready if commit.claim.id in rows]
    await _use_signals(session, applied, rows, result)
    await _spawn(session, [c for c in applied if c.park.children], rows, result, reserved)
    dropped = await _ask(session, applied, rows, result)
    ends = [(row.joins, row.parent_round or 0) for row in result.committed if row.joins is not None]
    if ends:
        result.freed_queues += await children.join(session, ends)
    result.has_items = any(row.continues is not None for row in result.committed)
    if result.has_items:
        settled = await await_units.end_items(
            session, [(row.continues, row.status is Status.DONE) for row in result.committed]
        )
        result.freed_queues += settled.queues
        result.transports += settled.transports
        dropped += settled.dropped
    left = Dropped(held, _slots(applied)) + dropped
    if fast:
        result.slots, left = list(left.limits), Dropped(left.keys)
    # Lock keys and limits last: the waits above, for a child's key, would delay all transactions that need them.
    result.freed_queues += await await_units.free(session, left)
    return result


async def _committed(session: Session, commits: list[Commit], *, fast: bool) -> list[Committed]:
    """With `fast`, commit with the fast statement first; the full one commits the outcomes that it leaves out."""
    applied = await _send_fast(session, commits) if fast else None
    if applied is None:
        return await commit_rows(session, commits)
    rows = applied.rows()
    if applied.ids is None:
        return rows
    among = frozenset(applied.ids)
    return rows + await commit_rows(session, [commit for commit in commits if commit.claim.id not in among])


async def _with_free_parents(session: Session, commits: Sequence[Commit]) -> list[Commit]:
    """The outcomes without ends of children with a locked parent; the committer retries those."""
    parents = {commit.joins for commit in commits if commit.joins is not None}
    if not parents:
        return list(commits)
    locked = await children.lock_parents(session, sorted(parents))
    return [commit for commit in commits if commit.joins is None or commit.joins in locked]


async def _use_signals(
    session: Session, applied: list[Commit], rows: dict[int, Committed], result: CommitResult
) -> None:
    consumed = [signal for commit in applied for signal in commit.consumes]
    if consumed:
        await signals.consume(session, consumed)
    ended = [commit.claim.id for commit in applied if commit.status is Status.DONE and rows[commit.claim.id].has_inbox]
    if ended and await signals.drop(session, ended):
        result.leftovers += ended
    parked = [
        (commit.claim.id, commit.park.handed)
        for commit in applied
        if commit.park.awaits is not None and rows[commit.claim.id].has_inbox
    ]
    if parked:
        woken = await signals.recheck(session, parked)
        result.freed_queues += [queue for _, queue in woken]


async def _ask(session: Session, applied: list[Commit], rows: dict[int, Committed], result: CommitResult) -> Dropped:
    """Open await units, close abandoned ones, and resume instances with complete units; returns the keys and slots of
    cancelled items."""
    dropped = await await_units.close(session, [row.id for row in rows.values() if row.abandons])
    opened: list[tuple[Commit, int]] = []
    filled: list[Resolved] = []
    for commit in applied:
        unit_id = rows[commit.claim.id].unit_id
        if commit.park.asks is None or unit_id is None:
            continue
        if commit.park.asks.interaction is None:
            filled.append(Resolved(unit_id, 0, 0, is_filled=True))
        else:
            opened.append((commit, unit_id))
            if commit.park.asks.common.sends:
                result.transports.append(commit.park.asks.common.transport)
    if opened:
        await await_units.open_(session, opened)
    if filled:
        settled = await await_units.settle(session, filled)
        result.freed_queues += settled.queues
        dropped += settled.dropped
    return dropped


async def _spawn_many(session: Session, commit: Commit, result: CommitResult) -> None:
    """Insert a large number of children before the outcome of their parent: a cancel or a signal then waits for the
    parent's row during one statement only, not during all inserts."""
    children_ = commit.park.children or ()
    started = await start_in_pages(session, children_, commit.claim.id, commit.claim.round + 1)
    result.spawned = [(commit, index, child) for index, child in enumerate(children_)], started
    await operators.lock(session, [commit.claim.id])  # waits for a lock that is held only briefly


async def _spawn(
    session: Session, applied: list[Commit], rows: dict[int, Committed], result: CommitResult,
    reserved: Reservation | None
) -> None:
    """Insert children under their parents' locks, and let the parents wait only for the inserted ones."""
    if not applied:
        return
    if result.spawned is None:
        entries = [
            (commit, index, child) for commit in applied for index, child in enumerate(commit.park.children or ())
        ]
        parents = [(commit.claim.id, rows[commit.claim.id].round, index) for commit, index, _ in entries]
        inserted = await start_children(session, [child for _, _, child in entries], parents, reserved)
        result.inserted_claimed = inserted.claims
        result.spawned = entries, inserted.started
    entries, started = result.spawned
    result.freed_queues += [row.queue for row in started[len(result.inserted_claimed) :] if not row.later]
    result.has_later_children = any(row.later for row in started)
    counts = {commit.claim.id: 0 for commit in applied}
    for row in started:
        counts[entries[row.position][0].claim.id] += 1
    short = {c.claim.id: counts[c.claim.id] for c in applied if counts[c.claim.id] < len(c.park.children or ())}
    if short:
        result.freed_queues += await children.settle(session, short)
