"""Callers with a connection that is configured for their own needs, and batches of an unusual size."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from stepwell import Duplicate, NoTarget
from stepwell._store.drivers import sql_functions
from stepwell.testing import Harness
from tests.surfaces.sql_and_drivers.machines import Note, Order

ODD = [
    "100% %s %(a)s", ":p1 ::text", "back\\slash \\n", "it's \"quoted\"", "é\N{ROCKET}\u202e", "\N{ROCKET}" * 200,
    "$1 ${}", " tab\tline\n",
]  # fmt: skip


@asynccontextmanager
async def with_psycopg(url: str, **options: Any) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(url, **options) as connection:
        yield connection


@asynccontextmanager
async def in_a_pipeline(url: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(url) as connection, connection.pipeline():
        yield connection


@asynccontextmanager
async def with_streams(url: str) -> AsyncIterator[Any]:
    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"), poolclass=NullPool)
    async with engine.begin() as connection:
        yield await connection.execution_options(stream_results=True, yield_per=2)
    await engine.dispose()


@asynccontextmanager
async def with_codecs(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url)
    for kind in ("json", "jsonb", "timestamptz"):
        await connection.set_type_codec(kind, encoder=repr, decoder=repr, schema="pg_catalog", format="text")
    async with connection.transaction():
        yield connection
    await connection.close()


CALLERS: dict[str, Any] = {
    "raw cursors": lambda url: with_psycopg(url, cursor_factory=psycopg.AsyncRawCursor),
    "client cursors": lambda url: with_psycopg(url, cursor_factory=psycopg.AsyncClientCursor),
    "rows as dicts": lambda url: with_psycopg(url, row_factory=dict_row),
    "a pipeline": in_a_pipeline,
    "server-side cursors": with_streams,
    "codecs of its own": with_codecs,
}


@pytest.mark.parametrize("kind", CALLERS)
async def test_a_callers_own_settings_and_odd_characters_break_no_call(h: Harness, kind: str) -> None:
    engine = h.engine

    async with CALLERS[kind](h.url) as connection:
        for odd in ODD:
            await engine.start(Note, {"odd": odd}, key=odd, concurrency_key=odd, connection=connection)
            with pytest.raises(Duplicate):
                await engine.start(Note, key=odd, connection=connection)
            await engine.signal(odd, odd, {"odd": odd}, dedup_key=odd, connection=connection)
            with pytest.raises(NoTarget):
                await engine.signal(odd, odd, tenant="another", connection=connection)

    items = (await engine.insights.list()).items
    assert {(one.key, one.state["odd"]) for one in items} == {(odd, odd) for odd in ODD}
    assert {row["name"] for row in await h.sql("select name from stepwell.signals")} == set(ODD)


@pytest.mark.parametrize(("bound", "most"), [("LARGEST_ARRAY", 1_000), ("LONGEST_ARRAY", 5)])
async def test_a_batch_too_large_for_one_array_is_split_and_returned_as_one(
    h: Harness, connection: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    """Postgres refuses an array of more than 256 MB, and SQL one of many entries: both would break the caller's
    transaction."""
    monkeypatch.setattr(sql_functions, bound, most)
    keys = [f"k{number % 9}" for number in range(12)]
    entries = [Order.child({"number": number}, key=key) for number, key in enumerate(keys)]

    async with connection.transaction():
        started = await h.engine.start_many(entries, connection=connection)
        reached = await h.engine.signal_many(
            [("nobody", "paid"), *((key, "paid", number) for number, key in enumerate(keys))], connection=connection
        )

    assert [isinstance(one, Duplicate) for one in started] == [False] * 9 + [True] * 3
    assert [one.id for one in started[9:]] == [one.id for one in started[:3]]
    assert [type(answer) for answer in reached] == [NoTarget, *[type(None)] * 12]
    states = {one.key: one.state for one in (await h.engine.insights.list()).items}
    assert states == {key: {"number": number} for number, key in enumerate(keys[:9])}
    inboxes = {one.key: await h.engine.insights.inbox(one.id) for one in started[:9]}
    assert inboxes.keys() == set(keys[:9])
    assert {key: [signal.payload for signal in inbox] for key, inbox in inboxes.items()} == {
        key: [number for number, target in enumerate(keys) if target == key] for key in keys[:9]
    }
