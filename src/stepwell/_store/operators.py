"""Calls of `sql/operators`: cancel, retry and restart."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from stepwell._core.limits.requirement import LimitRequirement
from stepwell._core.serialization.codec import encode_value
from stepwell._store import await_units, children, limits, signals
from stepwell._store.await_units import Dropped
from stepwell._store.connection.pool import Database, Row, Session
from stepwell.errors import InvalidInput

Item = TypeVar("Item")


PAGE = 5_000  # rows that one statement of a cancel finds, locks or ends
MOST_KEYS = 1_000  # concurrency keys per transaction: the server has room for a few thousand locks


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The result of a cancel: ended rows, and the queues of parents and other rows that became claimable."""

    ids: list[int] = field(default_factory=list)
    watched: list[int] = field(default_factory=list)
    executing: list[tuple[int, int]] = field(default_factory=list)  # with their new fences
    queues: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)  # keys still to be released: too many for one transaction


@dataclass(frozen=True, slots=True)
class _Found:
    """The rows to cancel, their concurrency keys and their parents."""

    ids: list[int] = field(default_factory=list)
    keys: set[str] = field(default_factory=set)
    parents: set[int] = field(default_factory=set)

    def add(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self.ids.append(row["id"])
            if row["concurrency_key"] is not None:
                self.keys.add(row["concurrency_key"])
            if row["parent_id"] is not None:
                self.parents.add(row["parent_id"])


async def cancel(db: Database, root: int, *, cascade: bool, reason: str, by: str | None) -> Cancelled:
    """Cancel an instance and its descendants; repeated until no descendant is left."""
    total = Cancelled()
    while True:
        async with db.transaction(anew=True) as session:
            ended = await _cancel_once(session, root, cascade=cascade, reason=reason, by=by)
        for name in ("ids", "watched", "executing", "queues"):
            getattr(total, name).extend(getattr(ended, name))
        for keys in _pages(ended.held, MOST_KEYS):
            total.queues.extend(await await_units.free_apart(db, Dropped(keys)))
        if not ended.ids or not cascade:
            return total


async def _cancel_once(session: Session, root: int, *, cascade: bool, reason: str, by: str | None) -> Cancelled:
    found = await _find(session, root, cascade=cascade)
    ended = Cancelled()
    if not found.ids:
        return ended
    for page in _pages(sorted({*found.ids, *found.parents})):
        await lock(session, page)
    rows = await _end(session, sorted(found.ids), reason=reason, by=by)
    ended.ids.extend(row["id"] for row in rows)
    ended.watched.extend(row["id"] for row in rows if row["watched"])
    ended.executing.extend((row["id"], row["fence"]) for row in rows if row["was_executing"])
    dropped = [await await_units.close(session, page) for page in _pages(ended.ids)]
    ends = [(row["joins"], row["parent_round"]) for row in rows if row["joins"] is not None]
    for counted in _pages(ends):
        ended.queues.extend(await children.join(session, counted))
    items = sorted(row["continues"] for row in rows if row["continues"] is not None)
    for units_ in _pages(items):
        settled = await await_units.end_items(session, [(unit_id, False) for unit_id in units_])
        ended.queues.extend(settled.queues)
        dropped.append(settled.dropped)
    # Lock keys last: this may have waited for rows in a caller's open transaction, and commits need the keys.
    held = sorted(found.keys.union(*(each.keys for each in dropped)))
    if len(held) > MOST_KEYS:
        ended.held.extend(held)
        held = []
    slots = [name for each in dropped for name in each.limits]
    ended.queues.extend(await await_units.free(session, Dropped(held, limits.named(rows) + slots)))
    return ended


async def _end(session: Session, ids: Sequence[int], *, reason: str, by: str | None) -> list[Row]:
    """End locked rows before their descendants are counted: a retry must find their state before the cancel."""
    error = encode_value({"type": "Cancelled", "message": reason, "traceback": None}, "reason")
    rows: list[Row] = []
    for page in _pages(ids):
        rows += await session.fetch("operators/cancel", page, error, _note("cancel", by, reason))
    return rows


async def _find(session: Session, root: int, *, cascade: bool) -> _Found:
    """Find the rows to cancel: with one statement, or, in a large tree, level by level and in pages."""
    found = _Found()
    is_large = False
    if cascade:
        [(is_large,)] = await session.fetch("operators/count_subtree", root, PAGE)
    found.add(await session.fetch("operators/find_subtree", root, cascade and not is_large))
    level = [root] if is_large else []
    while level:
        below: list[int] = []
        for parents in _pages(level):
            below += await _find_children(session, parents, found)
        for asking in _pages(below):
            await _find_items(session, asking, found)
        level = below
    return found


async def _find_children(session: Session, parents: Sequence[int], found: _Found) -> list[int]:
    """All children of these parents, including ended ones: their descendants may not have ended."""
    children_: list[int] = []
    after = (-1, -1)
    while True:
        rows = await session.fetch("operators/find_children", parents, *after, PAGE)
        children_ += [row["id"] for row in rows]
        found.add(row for row in rows if not row["has_ended"])
        if len(rows) < PAGE:
            return children_
        parents = parents[parents.index(rows[-1]["parent_id"]) :]
        after = (rows[-1]["parent_round"], rows[-1]["child_index"])


async def _find_items(session: Session, asking: Sequence[int], found: _Found) -> None:
    after = 0
    while True:
        rows = await session.fetch("operators/find_items", asking, after, PAGE)
        found.add(rows)
        if len(rows) < PAGE:
            return
        asking = asking[asking.index(rows[-1]["parent_id"]) :]
        after = rows[-1]["id"]


def _pages(items: Sequence[Item], size: int | None = None) -> Iterator[Sequence[Item]]:
    most = size or PAGE
    for first in range(0, len(items), most):
        yield items[first : first + most]


@dataclass(frozen=True, slots=True)
class Retried:
    """The result of a retry: queues with claimable rows, and transports with interactions to send again."""

    queues: Sequence[str]
    transports: Sequence[str]


async def retry(
    db: Database, instance_id: int, parent_id: int | None, *, reason: str | None, by: str | None
) -> Retried | None:
    """Run a failed or cancelled instance again, or a waiting one now; None if there is nothing to retry.

    If the instance ended while it awaited replies, its interactions without a reply are reopened.
    """
    async with db.transaction(is_long=True) as session:
        await _recount_item(session, instance_id, parent_id)
        rows = await session.fetch("operators/retry", instance_id, _note("retry", by, reason))
        if not rows:
            return None
        asked = await await_units.reopen(session, instance_id)
    return Retried([rows[0]["queue"]], ()) if asked is None else Retried(asked.queues, asked.transports)


async def _recount_item(session: Session, instance_id: int, parent_id: int | None) -> None:
    """Count a continuation as running again at its unit; InvalidInput if the asker no longer waits."""
    if parent_id is None:
        return
    await lock(session, [parent_id, instance_id])
    item = await await_units.recount_item(session, instance_id)
    if item is not None and not item[1]:
        raise InvalidInput("target", f"instance {instance_id} is an item of instance {parent_id}, which no longer "
                           f"waits for it; retry {parent_id} instead, which runs its failed items again")


async def lock(session: Session, ids: Sequence[int]) -> None:
    """Lock instances, parents and children together; waits for their locks."""
    await session.fetch("operators/lock", ids)


async def restart(
    db: Database, instance_id: int, parent_id: int | None, step: str, state: str | None, key: str | None,
    needs: LimitRequirement,
    *, reason: str | None, by: str | None,
) -> tuple[list[str], int | None]:  # fmt: skip
    """Set an instance to a step; returns the queues to wake, and its new fence if it was executing."""
    await signals.sweep(db, [instance_id])  # deletes signals only if the instance is done
    async with db.transaction(anew=True) as session:
        await _recount_item(session, instance_id, parent_id)
        rows = await session.fetch(
            "operators/restart", instance_id, step, state, _note("restart", by, reason),
            needs.concurrency_limit, needs.rate_limit, needs.weight,
        )  # fmt: skip
        queues = [row["queue"] for row in rows]
        dropped = await await_units.close(session, [instance_id])
        held_limits = [limit for row in rows if (limit := row["held_limit"]) is not None]
        left = Dropped([] if key is None else [key], held_limits)
        queues += await await_units.free(session, left + dropped)  # locked last, as in a cancel
    return queues, next((row["fence"] for row in rows if row["was_executing"]), None)


def _note(act: str, by: str | None, reason: str | None) -> str:
    return encode_value({"act": act, "by": by, "reason": reason}, "operated")
