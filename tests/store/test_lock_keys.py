"""Locks: rows of one table, since rights apply to them; each kind has rows of its own."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import asyncpg
import pytest

import stepwell
from stepwell._store.connection.sql_files import statement

SOURCE = Path(stepwell.__file__).parent
SPACES = {"key": 4096, "limit": 1024, "rate": 1024}  # in the order in which they are locked, with their rows
# locks in the server's own database, which has no schema of the engine
ANOTHER_DATABASE = SOURCE / "_store/testing/databases.py"


def texts() -> Iterator[tuple[str, str]]:
    """Every file that may send SQL; for migrations, which do not change, the functions of a database are read."""
    for path in sorted([*SOURCE.rglob("*.sql"), *SOURCE.rglob("*.py")]):
        if path.parent.name != "migrations" and path != ANOTHER_DATABASE:
            yield str(path.relative_to(SOURCE)), path.read_text("utf-8")


async def test_no_advisory_lock_is_taken(connection: asyncpg.Connection) -> None:
    """Postgres has no rights on them: every role that can connect could take them all."""
    functions = await connection.fetch(
        "select p.proname, p.prosrc from pg_proc p where p.pronamespace = 'stepwell'::regnamespace"
    )

    every = [*texts(), *((row["proname"], row["prosrc"]) for row in functions)]

    assert len(every) > 300
    assert [name for name, text in every if "advisory_" in text] == []


async def test_no_two_kinds_of_locks_share_a_row(connection: asyncpg.Connection) -> None:
    rows = await connection.fetch(
        "select s.space, min(stepwell._lock_key(s.space, n::text)) as least, "
        "max(stepwell._lock_key(s.space, n::text)) as most "
        "from unnest($1::text[]) with ordinality s(space, place), generate_series(1, 20000) n "
        "group by 1, s.place order by s.place", [*SPACES]
    )

    assert [row["space"] for row in rows] == [*SPACES]
    assert all(before["most"] < after["least"] for before, after in pairwise(rows))


async def test_every_lock_has_a_row(connection: asyncpg.Connection) -> None:
    named = await connection.fetch(
        "select s.space, count(distinct l.number) as rows, count(*) = count(l.number) as all "
        "from unnest($1::text[]) as s(space) cross join generate_series(1, 50000) n "
        "left join stepwell.locks l on l.number = stepwell._lock_key(s.space, n::text) group by 1", [*SPACES]
    )
    engines = await connection.fetch(
        "select number from unnest(array['machines', 'reaper', 'pruner']) n "
        "join stepwell.locks l on l.number = stepwell._lock_key('engine', n)"
    )
    rows = await connection.fetchval("select count(*) from stepwell.locks")

    assert {row["space"]: row["rows"] for row in named} == SPACES
    assert all(row["all"] for row in named)
    assert len({row["number"] for row in engines}) == 3
    assert rows == sum(SPACES.values()) + 3


@pytest.mark.parametrize(("space", "name"), [("lmit", "provider"), ("engine", "repaer")])
async def test_a_lock_of_an_unknown_kind_is_refused(connection: asyncpg.Connection, space: str, name: str) -> None:
    with pytest.raises(asyncpg.InvalidTextRepresentationError, match=name if space == "engine" else space):
        await connection.fetchval("select stepwell._lock_key($1, $2)", space, name)


async def test_the_number_of_a_lock_is_computed_in_the_statement(connection: asyncpg.Connection) -> None:
    plan = await connection.fetchval(
        "explain (verbose, format json) select stepwell._lock_key('key', k) from unnest(array['a', 'b']) k"
    )

    assert ("hashtextextended" in plan, "_lock_key" in plan, "CASE" in plan) == (True, False, False)


async def test_the_rows_of_locks_are_found_by_their_index(connection: asyncpg.Connection) -> None:
    """Locking writes none of them either: there is nothing to vacuum."""
    await connection.execute("set enable_seqscan = off; set plan_cache_mode = force_generic_plan")
    await connection.execute("prepare locking as " + statement("concurrency_keys/lock"))

    plan = await connection.fetchval("explain (format json) execute locking(array['a', 'b'])")

    assert "locks_pkey" in plan
    assert "Seq Scan" not in plan
