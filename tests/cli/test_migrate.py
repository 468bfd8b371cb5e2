"""`stepwell migrate`, on databases that have nothing, everything, or too much."""

from __future__ import annotations

from stepwell import schema
from tests.cli.processes import APP, stepwell
from tests.conftest import MakeHarness

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


async def test_check_tells_by_its_exit_code_whether_the_schema_is_current(make_harness: MakeHarness) -> None:
    h = await make_harness()

    current = await stepwell("migrate", "--check", "--json", url=h.url)
    await h.sql("update stepwell.meta set version = 99")
    too_new = await stepwell("migrate", "--check", url=h.url)
    await h.sql("drop schema stepwell cascade")
    outdated = await stepwell("migrate", "--check", url=h.url)
    outdated_json = await stepwell("migrate", "--check", "--json", url=h.url)

    assert current.code == 0
    assert current.json["current"] is True
    assert too_new.code == 3
    assert "at version 99" in too_new.err
    assert outdated.code == 1
    assert "missing: 0001_foundation" in outdated.out
    assert (outdated_json.code, outdated_json.json["missing"]) == (1, schema.missing(0))


async def test_sql_goes_to_stdout_alone_and_begins_where_the_database_stands(make_harness: MakeHarness) -> None:
    """Scenario 170."""
    h = await make_harness()

    from_nothing = await stepwell("migrate", "--sql")
    from_current = await stepwell("migrate", "--sql", "--database-url", h.url)
    unreachable = await stepwell("migrate", "--sql", "--database-url", NOWHERE)

    assert (from_nothing.code, from_nothing.out) == (0, schema.sql(0))
    assert (from_current.code, from_current.out) == (0, schema.sql(len(schema.missing(0))))
    assert (unreachable.code, unreachable.out) == (0, schema.sql(0))
    assert "no Postgres answers" in unreachable.err
