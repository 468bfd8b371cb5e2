"""Calls of `sql/instances` that read many rows: filtered lists, page by page, and families."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from stepwell._core.instance import Instance
from stepwell._core.status import Status
from stepwell._store import instances
from stepwell._store.connection.pool import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which instances to list; None filters nothing."""

    statuses: tuple[Status, ...] | None = None
    machine: str | None = None
    version: int | None = None
    step: str | None = None
    queue: str | None = None
    tenant: str | None = None
    key: str | None = None
    created_from: datetime | None = None
    created_before: datetime | None = None


async def list_page(db: Database, wanted: Filter, *, below: int | None, limit: int) -> list[Instance]:
    async with db.transaction(anew=True) as session:
        rows = await session.fetch(
            "instances/list", below, wanted.statuses, wanted.machine, wanted.version, wanted.step, wanted.queue,
            wanted.tenant, wanted.key, wanted.created_from, wanted.created_before, limit,
        )  # fmt: skip
    return [instances.read_row(row) for row in rows]


async def tree(db: Database, id_: int) -> list[tuple[Instance, int]]:
    """The family of an instance from its topmost parent, depth first, with the depth of each."""
    async with db.transaction(anew=True) as session:
        rows = await session.fetch("instances/tree", id_)
    found = {instance.id: instance for instance in await instances.read(db, [row["id"] for row in rows])}
    return [(found[row["id"]], row["depth"]) for row in rows if row["id"] in found]
