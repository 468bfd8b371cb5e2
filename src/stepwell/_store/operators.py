"""Calls of `sql/operators`: cancel, retry and restart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stepwell._core.codec import encode_value
from stepwell._core.needs import Needs
from stepwell._store import children, keys, limits, units
from stepwell._store.database import Database, Session
from stepwell.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Cancelled:
    """What a cancel did: rows that ended, and the queues of parents and key neighbours that go on."""

    ids: list[int]
    watched: list[int]
    executing: list[tuple[int, int]]  # with their new fences
    queues: list[str]


async def cancel(db: Database, root: int, *, cascade: bool, reason: str, by: str | None) -> Cancelled:
    """Cancel an instance and what is below it, until nothing below it lives."""
    total = Cancelled([], [], [], [])
    while True:
        async with db.transaction(anew=True) as session:
            ended = await _cancel_once(session, root, cascade=cascade, reason=reason, by=by)
        for field in ("ids", "watched", "executing", "queues"):
            getattr(total, field).extend(getattr(ended, field))
        if not ended.ids or not cascade:
            return total


async def _cancel_once(session: Session, root: int, *, cascade: bool, reason: str, by: str | None) -> Cancelled:
    found = [(id_, key, parent) for id_, key, parent in await session.fetch("operators/find_subtree", root, cascade)]
    if not found:
        return Cancelled([], [], [], [])
    ids = [id_ for id_, _, _ in found]
    held = [key for _, key, _ in found if key is not None]
    parents = [parent for _, _, parent in found if parent is not None]
    await lock(session, [*ids, *parents])
    error = encode_value({"type": "Cancelled", "message": reason, "traceback": None}, "reason")
    rows = await session.fetch("operators/cancel", ids, error, _note("cancel", by, reason))
    await units.close(session, ids)
    ends = [(row["joins"], row["parent_round"]) for row in rows if row["joins"] is not None]
    queues = await children.join(session, ends) if ends else []
    queues += (await units.end_items(session, [(row["continues"], False) for row in rows])).queues
    if held:  # locked last: a caller's open transaction may have kept us waiting for the rows, but no flush for the key
        await keys.lock(session, held)
        queues += await keys.free(session, held)
    queues += await limits.free(session, limits.named(rows))
    return Cancelled(
        [row["id"] for row in rows],
        [row["id"] for row in rows if row["watched"]],
        [(row["id"], row["fence"]) for row in rows if row["was_executing"]],
        queues,
    )


@dataclass(frozen=True, slots=True)
class Retried:
    """What a retry did: the queues in which something may run, and the transports over which it asks again."""

    queues: Sequence[str]
    transports: Sequence[str]


async def retry(
    db: Database, instance_id: int, parent_id: int | None, *, reason: str | None, by: str | None
) -> Retried | None:
    """Run a failed or cancelled instance again, or a waiting one now; None if there is nothing to retry.

    One that ended at a question that nobody answered asks it again.
    """
    async with db.transaction() as session:
        await _count_in(session, instance_id, parent_id)
        rows = await session.fetch("operators/retry", instance_id, _note("retry", by, reason))
        if not rows:
            return None
        asked = await units.reopen(session, instance_id)
    return Retried([rows[0]["queue"]], ()) if asked is None else Retried(asked.queues, asked.transports)


async def _count_in(session: Session, instance_id: int, parent_id: int | None) -> None:
    """See to it that an answer which goes on by itself, and is led elsewhere, is waited for; refused if it is not."""
    if parent_id is None:
        return
    await lock(session, [parent_id, instance_id])
    item = await units.count_in(session, instance_id)
    if item is not None and not item[1]:
        raise InvalidInput("target", f"instance {instance_id} is one item of instance {parent_id}, which does not wait "
                           f"for it any more; retry {parent_id}: it runs again what has failed of its items")


async def lock(session: Session, ids: Sequence[int]) -> None:
    """Lock instances, parents and children together, waiting for whoever holds them."""
    await session.fetch("operators/lock", ids)


async def restart(
    db: Database, instance_id: int, parent_id: int | None, step: str, state: str | None, key: str | None, needs: Needs,
    *, reason: str | None, by: str | None,
) -> tuple[list[str], int | None]:  # fmt: skip
    """Put an instance at a step; returns the queues to wake, and its new fence if it was executing."""
    async with db.transaction(anew=True) as session:
        await _count_in(session, instance_id, parent_id)
        rows = await session.fetch(
            "operators/restart", instance_id, step, state, _note("restart", by, reason),
            needs.concurrency_limit, needs.rate_limit, needs.weight,
        )  # fmt: skip
        queues = [row["queue"] for row in rows]
        await units.close(session, [instance_id])
        if key is not None:  # locked last, as in a cancel
            await keys.lock(session, [key])
            queues += await keys.free(session, [key])
        queues += await limits.free(session, [row["held_limit"] for row in rows if row["held_limit"] is not None])
    return queues, next((row["fence"] for row in rows if row["was_executing"]), None)


def _note(act: str, by: str | None, reason: str | None) -> str:
    return encode_value({"act": act, "by": by, "reason": reason}, "operated")
