"""The role that may call the SQL functions has a name per database: one database's role has no rights in another."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from stepwell import Engine, InvalidInput
from stepwell._client.admin import schema
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.surfaces.sql_and_drivers.machines import Order
from tests.surfaces.sql_and_drivers.roles import connected, role


def database_of(h: Harness) -> str:
    return urlsplit(h.url).path.strip("/")


async def may(h: Harness, name: str) -> bool:
    [row] = await h.sql(
        "select coalesce(bool_or(has_schema_privilege(r.oid, 'stepwell', 'usage') "
        " and has_function_privilege(r.oid, p.oid, 'execute')), false) as may "
        "from pg_roles r, pg_proc p "
        "where r.rolname = $1 and p.proname = 'try_cancel' and p.pronamespace = 'stepwell'::regnamespace", name
    )
    return bool(row["may"])


async def named(h: Harness) -> str | None:
    [row] = await h.sql("select client_role from stepwell.meta")
    return None if row["client_role"] is None else str(row["client_role"])


@pytest.fixture
async def empty(make_harness: MakeHarness) -> AsyncIterator[Harness]:
    """A database without the schema; the roles that a test names after it go with it."""
    h = await make_harness()
    await h.sql("drop schema stepwell cascade")
    yield h
    for suffix in ("", "_of_mine", "_other"):
        name = f"stepwell_client_{database_of(h)}{suffix}"
        await h.sql(f"do $$ begin if exists (select from pg_roles where rolname = '{name}') then "
                    f"drop owned by {name}; drop role {name}; end if; end $$")  # fmt: skip


async def test_the_role_is_named_after_the_database(empty: Harness) -> None:
    await Engine(empty.url).migrate()

    name = f"stepwell_client_{database_of(empty)}"
    assert await named(empty) == name
    assert await may(empty, name)
    assert not await may(empty, "stepwell_client")


async def test_a_client_of_one_database_can_start_nothing_in_another(
    empty: Harness, make_harness: MakeHarness
) -> None:
    await Engine(empty.url, machines=[Order]).migrate()
    other = await make_harness([Order])
    await other.engine.migrate()

    async with role(other, "billing", of="stepwell_client") as url, connected(url) as connection:
        own = await connection.fetchval("select stepwell.start('Order')")
        async with connected(urlunsplit(urlsplit(url)._replace(path=urlsplit(empty.url).path))) as elsewhere:
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await elsewhere.fetchval("select stepwell.start('Order')")

    assert own == 1


@pytest.mark.parametrize("way", ["migrate", "script"])
async def test_the_role_can_be_named(empty: Harness, way: str) -> None:
    name = f"stepwell_client_{database_of(empty)}_of_mine"

    await migrated(empty, way, name)
    await migrated(empty, way, None)  # and it keeps its name

    assert await named(empty) == name
    assert await may(empty, name)


async def migrated(h: Harness, way: str, name: str | None) -> None:
    version = 0
    if way == "migrate":
        await Engine(h.url).migrate(client_role=name)
        return
    async with connected(h.url) as connection:
        if await connection.fetchval("select to_regclass('stepwell.meta') is not null"):
            version = await connection.fetchval("select version from stepwell.meta")
        await connection.execute(schema.sql(version, name))


async def test_another_name_revokes_the_rights_of_the_former_role(empty: Harness) -> None:
    first, second = (f"stepwell_client_{database_of(empty)}{suffix}" for suffix in ("", "_other"))
    await Engine(empty.url).migrate()

    await Engine(empty.url).migrate(client_role=second)

    assert (await may(empty, first), await may(empty, second)) == (False, True)


@pytest.mark.parametrize("name", ["", "x" * 64, "pg_monitor", "public", "none", "a\0b", 7])
async def test_a_name_that_no_role_can_have_is_refused(name: object) -> None:
    with pytest.raises(InvalidInput, match="client_role"):
        await Engine("postgresql://localhost:1/nothing").migrate(client_role=name)  # type: ignore[arg-type]


def test_a_name_is_quoted_in_messages_and_in_sql() -> None:
    assert schema.quoted('my-"role') == '"my-""role"'
    assert schema.quoted("billing") == "billing"
    assert "'o''brien', true" in schema.sql(0, "o'brien")
