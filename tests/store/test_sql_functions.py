"""The SQL functions run the engine's own statements."""

from __future__ import annotations

import asyncpg
import pytest

from tests.support.dump_statements import STATEMENTS, body, function_name


@pytest.mark.parametrize("name", STATEMENTS)
async def test_sql_functions_run_the_engines_statements_unchanged(connection: asyncpg.Connection, name: str) -> None:
    source, answers = await connection.fetchrow(
        "select prosrc, proretset from pg_proc where pronamespace = 'stepwell'::regnamespace and proname = $1",
        function_name(name),
    )

    assert source == body(name, answers=answers), (
        "the statement has changed: write a migration with tests.support.dump_statements"
    )


async def test_no_other_sql_function_has_a_copy_of_a_statement(connection: asyncpg.Connection) -> None:
    copies = await connection.fetch(
        "select proname from pg_proc where pronamespace = 'stepwell'::regnamespace"
        " and prosrc like '%' || chr(10) || 'return query' || chr(10) || '--%'"
    )

    assert {row["proname"] for row in copies} <= {function_name(name) for name in STATEMENTS}
