"""Drops the template database of the tree it runs in, which a mutated function has made a tree of its own."""

from __future__ import annotations

import asyncio
import os

import asyncpg

from stepwell._store.testing.databases import template_name
from stepwell.embedded import EmbeddedServer, data_home
from stepwell.testing.databases.stock import SERVER_SETTINGS


async def drop(url: str, name: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        if await connection.fetchval("select true from pg_database where datname = $1", name):
            await connection.execute(f"alter database {name} is_template false")
            await connection.execute(f"drop database {name} with (force)")
    finally:
        await connection.close()


def main() -> None:
    if url := os.environ.get("STEPWELL_TEST_DATABASE_URL"):
        asyncio.run(drop(url, template_name()))
        return
    server = EmbeddedServer(data_home() / "testing-18", settings=SERVER_SETTINGS)
    try:
        asyncio.run(drop(server.join(), template_name()))
    finally:
        server.leave()


if __name__ == "__main__":
    main()
