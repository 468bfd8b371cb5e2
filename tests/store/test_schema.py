"""schema.sql is what the migrations make, on every server."""

from __future__ import annotations

from importlib.resources import files

import asyncpg
import pytest

from stepwell._store.migrate import latest_version
from tests.support.dump_schema import dump

SCHEMA = (files("stepwell._store") / "schema.sql").read_text("utf-8")


@pytest.fixture
def url(new_url: str) -> str:
    """One that was used has another definition of the clock."""
    return new_url


async def test_the_migrations_produce_exactly_schema_sql(connection: asyncpg.Connection) -> None:
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


@pytest.mark.parametrize("clock", ["stepwell.now", "stepwell.instant"])
async def test_the_planner_inlines_the_clock(connection: asyncpg.Connection, clock: str) -> None:
    plan = await connection.fetch(f"explain select from stepwell.instances where due_at <= {clock}()")

    assert not any(clock in row[0] for row in plan)


async def test_the_id_of_an_interaction_is_computed_in_the_statement(
    connection: asyncpg.Connection,
) -> None:
    """A call costs three times as much, for every interaction."""
    plan = await connection.fetchval(
        "explain (verbose, format json) "
        "select stepwell._correlation((select secret from stepwell.meta), v.name, v.number, 1, 1, v.name) "
        "from (values ('a', 2::bigint)) as v(name, number)"
    )

    assert ("sha256" in plan, "_correlation" in plan) == (True, False)
