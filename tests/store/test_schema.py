"""schema.sql is what the migrations make, on every server."""

from __future__ import annotations

from importlib.resources import files

import asyncpg

from stepwell._store.migrations import latest_version
from tests.support.dump_schema import dump

SCHEMA = (files("stepwell._store") / "schema.sql").read_text("utf-8")


async def test_the_migrations_give_exactly_schema_sql(connection: asyncpg.Connection) -> None:
    assert await dump(connection) == SCHEMA, "generate schema.sql again: `make schema` says how"


async def test_schema_sql_gives_the_same_schema_as_the_migrations(empty_url: str) -> None:
    connection = await asyncpg.connect(empty_url)

    await connection.execute(SCHEMA)

    assert await dump(connection) == SCHEMA
    await connection.close()


async def test_schema_sql_carries_the_latest_version(empty_url: str) -> None:
    connection = await asyncpg.connect(empty_url)

    await connection.execute(SCHEMA)

    assert await connection.fetchval("select version from stepwell.meta") == latest_version()
    await connection.close()


async def test_the_planner_inlines_the_clock(connection: asyncpg.Connection) -> None:
    plan = await connection.fetch("explain select from stepwell.instances where due_at <= stepwell.now()")

    assert not any("stepwell.now" in row[0] for row in plan)


async def test_what_a_question_is_known_by_is_computed_in_the_statement_and_not_by_a_call(
    connection: asyncpg.Connection,
) -> None:
    """A call costs three times as much, for every question that is asked."""
    plan = await connection.fetchval(
        "explain (verbose, format json) "
        "select stepwell._correlation(v.name, v.number, 1, 1, v.name) from (values ('a', 2::bigint)) as v(name, number)"
    )

    assert ("sha256" in plan, "_correlation" in plan) == (True, False)
