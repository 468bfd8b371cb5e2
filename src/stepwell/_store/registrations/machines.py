"""Calls of `sql/machines`: registers machine versions, so that SQL can start them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Literal

from stepwell._core.registry import Definition
from stepwell._core.serialization.codec import encode_value
from stepwell._store.connection.pool import Database, Session
from stepwell.errors import VersionInUse


async def register(
    db: Database, definitions: Sequence[Definition], retention: timedelta | Literal[False]
) -> None:
    """Register machine versions, with their retention or the engine's, and activate the newest of each name.

    VersionInUse if unfinished instances of a version have another shape.
    """
    if not definitions:
        return
    names = [d.name for d in definitions]
    async with _one_at_a_time(db) as session:
        in_use = await session.fetch(
            "machines/find_in_use", names, [d.version for d in definitions], [_shape(d) for d in definitions],
            [",".join(d.steps) for d in definitions],
        )  # fmt: skip
        if in_use:
            raise VersionInUse(in_use[0]["name"], in_use[0]["version"], in_use[0]["id"])
        await session.fetch("machines/register", *_columns(definitions, retention))
        await session.fetch("machines/deactivate", names)
        await session.fetch("machines/activate", names)


async def register_missing(
    db: Database, definitions: Sequence[Definition], retention: timedelta | Literal[False]
) -> None:
    """Register machine versions that the database does not have yet, without activating them."""
    async with _one_at_a_time(db) as session:
        await session.fetch("machines/register_missing", *_columns(definitions, retention))


@asynccontextmanager
async def _one_at_a_time(db: Database) -> AsyncIterator[Session]:
    async with db.transaction(anew=True, is_long=True) as session:
        await session.fetch("machines/lock")
        yield session


def _columns(definitions: Sequence[Definition], retention: timedelta | Literal[False]) -> tuple[list[Any], ...]:
    return (
        [d.name for d in definitions],
        [d.version for d in definitions],
        [d.initial for d in definitions],
        [d.queue for d in definitions],
        [",".join(d.steps) for d in definitions],
        [_kept(retention if d.retention is None else d.retention) for d in definitions],
        [_limits(d) for d in definitions],
        [_shape(d) for d in definitions],
    )


def _shape(definition: Definition) -> str | None:
    return None if definition.pipeline is None else definition.pipeline.shape


def _limits(definition: Definition) -> str:
    """The limit requirements of its steps, for the SQL functions: {step: [concurrency limit, rate limit, weight]}."""
    needs = definition.needs.items()
    return encode_value({step: [n.concurrency_limit, n.rate_limit, n.weight] for step, n in needs}, "limits")


def _kept(retention: timedelta | Literal[False]) -> timedelta | None:
    return None if retention is False else retention
