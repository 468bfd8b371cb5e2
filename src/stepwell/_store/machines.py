"""Calls of `sql/machines`: what can be started is known to the database."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Literal

from stepwell._core.registry import Definition
from stepwell._store.database import Database


async def register(
    db: Database, definitions: Sequence[Definition], retention: timedelta | Literal[False]
) -> None:
    """Enter machine versions, with their retention or the engine's; the newest of each name becomes its active one."""
    if not definitions:
        return
    names = [d.name for d in definitions]
    async with db.transaction() as session:
        await session.fetch("machines/lock")
        await session.fetch(
            "machines/register", names, [d.version for d in definitions], [d.initial for d in definitions],
            [d.queue for d in definitions], [",".join(d.steps) for d in definitions],
            [_kept(retention if d.retention is None else d.retention) for d in definitions],
        )  # fmt: skip
        await session.fetch("machines/deactivate", names)
        await session.fetch("machines/activate", names)


def _kept(retention: timedelta | Literal[False]) -> timedelta | None:
    return None if retention is False else retention
