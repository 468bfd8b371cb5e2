"""`stepwell migrate`, on databases that have nothing, everything, or too much."""

from __future__ import annotations

from stepwell._client.admin import schema
from stepwell._store.testing import databases
from tests.conftest import MakeHarness
from tests.surfaces.cli.processes import APP, stepwell

NOWHERE = "postgresql://nobody@127.0.0.1:1/nothing"


async def _empty_database(make_harness: MakeHarness) -> str:
    h = await make_harness()
    await h.sql("drop schema stepwell cascade")
    return h.url


async def test_migrate_brings_an_empty_database_up_to_date_and_then_does_nothing(make_harness: MakeHarness) -> None:
    url = await _empty_database(make_harness)

    first = await stepwell("migrate", "--app", APP, "--json", url=url)
    second = await stepwell("migrate", url=url)

    assert (first.code, first.json) == (0, {"applied": schema.missing(0)})
    assert (second.code, second.out) == (0, "the schema was up to date already\n")


async def test_check_exits_with_a_code_that_says_whether_the_schema_is_current(make_harness: MakeHarness) -> None:
    h = await make_harness()

    current = await stepwell("migrate", "--check", "--json", url=h.url)
    await h.sql("update stepwell.meta set version = 99")
    newer = await stepwell("migrate", "--check", url=h.url)
    refused = [await stepwell("migrate", *flags, "--database-url", h.url) for flags in ((), ("--sql",))]
    await h.sql("update stepwell.meta set oldest_code = 99")
    too_new = await stepwell("migrate", "--check", url=h.url)
    await h.sql("drop schema stepwell cascade")
    outdated = await stepwell("migrate", "--check", url=h.url)
    outdated_json = await stepwell("migrate", "--check", "--json", url=h.url)

    assert current.code == 0
    assert current.json["current"] is True
    assert (newer.code, newer.out) == (0, "the schema is newer, at version 99; this Stepwell may run on it\n")
    assert [(command.code, "at version 99" in command.err) for command in refused] == [(3, True)] * 2
    assert too_new.code == 3
    assert "at version 99" in too_new.err
    assert outdated.code == 1
    assert "missing: 0001_initial" in outdated.out
    assert (outdated_json.code, outdated_json.json["missing"]) == (1, schema.missing(0))


async def test_the_client_role_can_be_named(make_harness: MakeHarness) -> None:
    url = await _empty_database(make_harness)

    printed = await stepwell("migrate", "--sql", "--client-role", "stepwell_client")
    applied = await stepwell("migrate", "--client-role", "stepwell_client", url=url)
    refused = await stepwell("migrate", "--client-role", "public", url=url)
    rows = await databases.query(url, "select client_role from stepwell.meta")

    assert printed.out == schema.sql(0, "stepwell_client")
    assert (applied.code, rows[0]["client_role"]) == (0, "stepwell_client")
    assert refused.code != 0
    assert "client_role: 'public' is reserved by Postgres" in refused.err


async def test_sql_is_printed_alone_and_begins_at_the_databases_version(make_harness: MakeHarness) -> None:
    """Scenario 170."""
    h = await make_harness()

    from_nothing = await stepwell("migrate", "--sql")
    from_current = await stepwell("migrate", "--sql", "--database-url", h.url)
    unreachable = await stepwell("migrate", "--sql", "--database-url", NOWHERE)

    assert (from_nothing.code, from_nothing.out) == (0, schema.sql(0))
    assert (from_current.code, from_current.out) == (0, schema.sql(len(schema.missing(0))))
    assert (unreachable.code, unreachable.out) == (0, schema.sql(0))
    assert "no Postgres answers" in unreachable.err


async def test_another_schema_is_named_by_a_flag_or_the_environment(make_harness: MakeHarness) -> None:
    url = await _empty_database(make_harness)

    printed = await stepwell("migrate", "--sql", "--schema", "shop")
    applied = await stepwell("migrate", "--schema", "shop", url=url)
    checked = [
        await stepwell("migrate", "--check", "--schema", "shop", url=url),
        await stepwell("migrate", "--check", url=url, STEPWELL_SCHEMA="shop"),
        await stepwell("migrate", "--check", url=url),
    ]
    listed = await stepwell("ls", "--schema", "shop", "--json", url=url)
    refused = await stepwell("migrate", "--schema", "Shop", url=url)
    beside_an_app = await stepwell("migrate", "--schema", "shop", "--app", APP, url=url)

    assert printed.out == schema.sql(0, None, "shop")
    assert (applied.code, [command.code for command in checked], listed.code) == (0, [0, 0, 1], 0)
    assert "the schema 'stepwell' is missing" in checked[2].out
    assert refused.code != 0
    assert "'schema': 'Shop' is not of 1 to 28 lower-case letters" in refused.err
    assert (beside_an_app.code, "an app has its own" in beside_an_app.err) == (2, True)
