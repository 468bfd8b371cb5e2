"""A schema `stepwell` that a foreign role made before the first migration is not used, whichever role migrates."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest

from stepwell import Engine, ForeignSchema
from stepwell._client.admin import schema
from stepwell._store.connection.pool import Database
from stepwell._store.migrate import apply
from stepwell.testing import Harness
from tests.conftest import MakeHarness
from tests.surfaces.sql_and_drivers.roles import connected, role

META = """
create table stepwell.meta (
  singleton boolean primary key default true check (singleton), version integer not null,
  migrated_at timestamptz not null default now()
);
"""
RAISE = """
create function stepwell.rise() returns {} language plpgsql as $$ begin alter role {} superuser; return {}; end $$;
"""
TRIGGER = META + RAISE.format("trigger", "{me}", "new") + """
create trigger rise before insert or update on stepwell.meta for each statement execute function stepwell.rise();
"""
VIEW = RAISE.format("integer", "{me}", "0") + """
create view stepwell.meta as select true as singleton, stepwell.rise() as version, now() as migrated_at;
"""
PREPARED = {"a schema": "", "a table with a trigger": TRIGGER, "a view": VIEW}


async def by_engine(url: str) -> None:
    await Engine(url).migrate()


async def by_apply(url: str) -> None:
    async with Database(url) as database:
        await apply(database)


async def by_script(url: str) -> None:
    async with connected(url) as connection:
        await connection.execute(schema.sql(0))


WAYS = [by_engine, by_apply, by_script]


@asynccontextmanager
async def foreigner(h: Harness, prepared: str) -> AsyncIterator[str]:
    """A role that may create schemas, and has made `stepwell`; yields its name."""
    await h.sql("drop schema stepwell cascade")
    async with role(h, "foreigner") as url:
        name = str(urlsplit(url).username)
        await h.sql(f"grant create on database {urlsplit(h.url).path[1:]} to {name}")
        async with connected(url) as connection:
            await connection.execute("create schema stepwell; " + prepared.replace("{me}", name))
        yield name


@pytest.mark.parametrize("prepared", [*PREPARED])
@pytest.mark.parametrize("way", WAYS)
async def test_a_schema_of_a_foreign_owner_is_refused(
    make_harness: MakeHarness, way: Callable[[str], Awaitable[None]], prepared: str
) -> None:
    h = await make_harness()

    async with foreigner(h, PREPARED[prepared]) as name:
        with pytest.raises(Exception, match="belongs to") as caught:
            await way(h.url)
        [is_superuser] = await h.sql("select rolsuper from pg_roles where rolname = $1", name)
        made = await h.sql("select proname from pg_proc where pronamespace = 'stepwell'::regnamespace "
                           "and proname <> 'rise'")  # fmt: skip

    assert name in str(caught.value)
    assert not is_superuser["rolsuper"]
    assert made == []


async def test_the_error_names_the_owner_of_the_schema(make_harness: MakeHarness) -> None:
    h = await make_harness()

    async with foreigner(h, "") as name:
        with pytest.raises(ForeignSchema) as caught:
            await Engine(h.url).migrate()

    assert (caught.value.what, caught.value.owner) == ("the schema stepwell", name)


async def test_a_table_of_a_foreign_owner_in_an_own_schema_is_refused(make_harness: MakeHarness) -> None:
    h = await make_harness()

    async with foreigner(h, META):
        await h.sql("alter schema stepwell owner to current_user")
        with pytest.raises(ForeignSchema, match=r"stepwell\.meta belongs to"):
            await Engine(h.url).migrate()


ODD = {
    "a view": VIEW.replace("{me}", "current_user"),
    "row security": META + "alter table stepwell.meta enable row level security",
    "a partitioned table": "create table stepwell.meta (singleton boolean, version int) partition by list (version)",
}  # fmt: skip


@pytest.mark.parametrize("odd", [*ODD])
@pytest.mark.parametrize("way", WAYS)
async def test_an_own_meta_that_is_no_ordinary_table_is_refused(
    make_harness: MakeHarness, way: Callable[[str], Awaitable[None]], odd: str
) -> None:
    """It may have been given to its owner; what it does on reads or writes is in no visible trigger."""
    h = await make_harness()
    await h.sql("drop schema stepwell cascade")
    async with connected(h.url) as connection:
        await connection.execute("create schema stepwell; " + ODD[odd])

    with pytest.raises(Exception, match=r"stepwell\.meta belongs to"):
        await way(h.url)

    made = await h.sql("select relname from pg_class where relnamespace = 'stepwell'::regnamespace "
                       "and relname not like 'meta%'")  # fmt: skip
    assert made == []


async def test_a_member_of_the_owner_migrates(make_harness: MakeHarness) -> None:
    """A group owns the schema, which a foreign role has made for it."""
    h = await make_harness()

    async with foreigner(h, "") as name, role(h, "member", of=name) as url:
        await Engine(url).migrate()
        again = await Engine(url).migrate()

    assert again == []


async def test_a_membership_granted_by_a_foreign_role_proves_nothing(make_harness: MakeHarness) -> None:
    """The administrator of a role grants it to any role, also to a superuser, without its consent."""
    h = await make_harness()
    await h.sql("drop schema stepwell cascade")

    async with role(h, "foreigner", options="createrole") as url, connected(url) as foreign:
        name = f"{urlsplit(url).username}_decoy"
        [me] = await h.sql("select current_user as name")
        await foreign.execute(f"create role {name}; grant {name} to {me['name']}")
        await h.sql(f"create schema stepwell authorization {name}")
        try:
            with pytest.raises(ForeignSchema, match=name):
                await Engine(h.url).migrate()
        finally:
            await h.sql(f"drop owned by {name} cascade")
            await h.sql(f"drop role {name}")
