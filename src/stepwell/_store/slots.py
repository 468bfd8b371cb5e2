"""The short way of what needs slots of concurrency limits, and nothing else: calls of `claim.sql` and `let_go.sql`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from stepwell._core.needs import Needs
from stepwell._core.records import Claim
from stepwell._store.database import Queryable, Row
from stepwell._store.limits import Held


class Taken(NamedTuple):
    """What a claim has taken from the head of a queue: claims, and rows that are put aside. `missed`: something else is
    there as well, for another claim."""

    claims: list[Claim]
    held: list[Held]
    missed: bool


async def claim(
    db: Queryable, worker_id: int, queue: str, limit: int, labels: Sequence[str], passed_over: Sequence[str]
) -> Taken | None:
    """Claim from the head of a queue what finds a slot, and put the rest of it into the lines; None if something there
    needs anything else. What is claimed may run when its beginning is noted, which makes it durable."""
    rows = await db.fetch("limits/claim", worker_id, queue, limit, labels, passed_over)
    if rows and rows[0]["verdict"] == "mixed":
        return None
    return Taken(
        [_claim(row, worker_id, queue) for row in rows if row["verdict"] == "claimed"],
        [Held.of(row) for row in rows if row["verdict"] == "held"],
        missed=any(row["verdict"] == "missed" for row in rows),
    )


def _claim(row: Row, worker_id: int, queue: str) -> Claim:
    return Claim(
        row["id"], worker_id, row["fence"], row["machine"], row["version"], row["step"], row["attempt"],
        row["crashes"], row["tenant"], row["key"], None, queue, row["claimed_at"], row["has_inbox"],
        tuple(row["awaits"] or ()), row["parent_id"], row["round"], row["priority"],
        Needs(row["concurrency_limit"], row["own_limit"], None, row["weight"]), row["await_unit_id"],
    )  # fmt: skip


async def let_go(db: Queryable, keys: Iterable[str]) -> list[str]:
    """Let the next ones behind each limit go, one for each time it is named; returns the queues of those that go."""
    counts = Counter(keys)
    rows = await db.fetch("limits/let_go", list(counts), list(counts.values()))
    return [row["queue"] for row in rows]
