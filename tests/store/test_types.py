"""What a connection asks about types: nothing that this process knows already, except a database's own types."""

from __future__ import annotations

from typing import Any

import asyncpg

from stepwell._store.connection.type_cache import LearnedConnection
from stepwell._store.testing import databases


async def sent_for(url: str, sql: str, *args: Any) -> tuple[Any, list[str]]:
    """The value, and all statements sent for it on a new connection."""
    connection = await asyncpg.connect(url, connection_class=LearnedConnection)
    sent: list[str] = []
    connection.add_query_logger(lambda record: sent.append(record.query))
    value = await connection.fetchval(sql, *args)
    await connection.close()
    return value, sent


async def test_the_types_of_postgres_are_read_once_per_process(shared_url: str) -> None:
    sql = "select $1::bigint[] || $2::bigint[]"
    await sent_for(shared_url, sql, [1], [2])

    value, sent = await sent_for(shared_url, sql, [3], [4])

    assert (value, sent) == ([3, 4], [sql])


async def test_the_types_of_a_database_are_read_on_each_connection(url: str) -> None:
    """Their numbers mean other types in other databases."""
    await databases.query(url, "create type colour as enum ('red', 'blue')")
    sql = "select array['red', 'blue']::colour[]"
    await sent_for(url, sql)

    value, sent = await sent_for(url, sql)

    assert value == ["red", "blue"]
    assert len(sent) > 1
