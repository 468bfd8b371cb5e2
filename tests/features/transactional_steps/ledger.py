"""Writing into the ledger through the connection of a transactional step, and reading it from outside."""

from __future__ import annotations

from typing import Any

import asyncpg
from sqlalchemy import text

from stepwell.testing import Harness

SESSIONS = ["asyncpg", "sqlalchemy"]


async def run(connection: Any, sql: str) -> Any:
    """Run a statement; returns the first value of its result, if it has one."""
    if isinstance(connection, asyncpg.Connection):
        return await connection.fetchval(sql)
    answer = await connection.execute(text(sql))
    return answer.scalar() if answer.returns_rows else None


async def note(connection: Any, words: str) -> None:
    await run(connection, f"insert into public.ledger values ('{words}')")


async def notes(h: Harness) -> list[str]:
    """The committed notes."""
    return [row["note"] for row in await h.sql("select note from public.ledger order by note")]
