"""A role that may create schemas, and has no right on the engine's, puts functions where Postgres looks for its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from stepwell import ConcurrencyLimit, Context, Done, Engine, Machine, step
from stepwell._client.admin import schema
from stepwell._store import migrate
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.surfaces.sql_and_drivers.roles import connected, role

# They fit the engine's arguments better than Postgres' own do, which are for any type, or for bigint.
TRAPS = """
create function {own}.hashtextextended(text, integer) returns bigint language plpgsql as $$ begin raise 'trap'; end $$;
create function {own}.format(text, text) returns text language plpgsql as $$ begin raise 'trap'; end $$;
create function {own}.unnest(text[]) returns setof text language plpgsql as $$ begin raise 'trap'; end $$;
create function {own}.array_to_string(text[], text) returns text language plpgsql as $$ begin raise 'trap'; end $$;
"""


class Ping(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done("pong")


@asynccontextmanager
async def trapped(h: Harness) -> AsyncIterator[None]:
    """A foreign schema is named like the engine's role, and so is the first that Postgres searches by default."""
    [me] = await h.sql("select quote_ident(current_user) as name")
    async with role(h, "trapper") as url:
        await h.sql(f"grant create on database {urlsplit(h.url).path[1:]} to {urlsplit(url).username}")
        async with connected(url) as trapper:
            await trapper.execute(f"create schema {me['name']}; grant usage on schema {me['name']} to public;"
                                  + TRAPS.format(own=me["name"]))  # fmt: skip
        yield


async def by_engine(url: str) -> None:
    await Engine(url).migrate()


async def by_script(url: str) -> None:
    async with connected(url) as connection:
        await connection.execute(schema.sql(0))


async def by_somebodys_transaction(url: str) -> None:
    """As Django does it, with a blocking driver."""
    sent: list[str] = []
    migrate.apply_over(lambda sql: sent.append(sql) or [[0]], migrate.latest_version())  # type: ignore[func-returns-value]
    async with connected(url) as connection:
        await connection.execute("begin;" + ";\n".join(sent) + "; commit")


async def test_a_schema_named_like_the_engines_role_stops_no_work(make_harness: MakeHarness) -> None:
    h = await make_harness([Ping], limits=[ConcurrencyLimit("one", 1)])

    async with trapped(h), h.engine.worker():
        handle = await h.engine.start(Ping, key="a", concurrency_key="a", concurrency_limit="one")
        result = await handle.result(timeout=20)

    assert result == "pong"


@pytest.mark.parametrize("way", [by_engine, by_script, by_somebodys_transaction])
async def test_a_migration_runs_no_code_of_a_schema_named_like_the_engines_role(
    make_harness: MakeHarness, way: Callable[[str], Awaitable[None]]
) -> None:
    h = await make_harness()
    await h.sql("drop schema stepwell cascade")

    async with trapped(h):
        await way(h.url)
        found = await h.sql("select stepwell.now() is not null as is_there")

    assert found[0]["is_there"]
