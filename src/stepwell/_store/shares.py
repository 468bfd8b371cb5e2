"""Calls of `sql/shares`: claiming from fair queues, and bringing rows over when a queue becomes fair, or no more so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stepwell._store.database import Queryable
from stepwell._store.instances import Claimed, read_claims


async def claim(
    db: Queryable,
    worker_id: int,
    queue: str,
    limit: int,
    labels: Sequence[str],
    passed_over: Sequence[str] = (),
    *,
    turns: Mapping[int, int],
    start: int = 0,
) -> tuple[Claimed, dict[int, int]]:
    """Claim share by share, each priority after the share that `turns` has for it, else after `start`.

    Returns the claims in the order in which they shall run, and where each priority goes on the next time.
    """
    rows = await db.fetch(
        "shares/claim", worker_id, queue, limit, labels, passed_over, [*turns], [*turns.values()], start
    )
    turned = {row["priority"]: row["id"] for row in rows if row["verdict"] == "turn"}
    return read_claims([row for row in rows if row["verdict"] != "turn"], worker_id, queue), turned


async def bring_over(db: Queryable, queues: Sequence[str]) -> list[str]:
    """Give rows of these queues the share that fits, some at a time; returns the queue of each."""
    return [row["queue"] for row in await db.fetch("shares/bring_over", queues)]
