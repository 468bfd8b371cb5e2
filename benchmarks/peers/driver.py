"""The harness's own queries, through the driver of the environment."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any


class Asker:
    """Its own connection, opened with the first query."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: Any = None

    async def ask(self, sql: str) -> Any:
        """The first value of the first row, or None."""
        if find_spec("asyncpg"):
            if self._connection is None:
                self._connection = await import_module("asyncpg").connect(self._url)
            return await self._connection.fetchval(sql)
        if self._connection is None:
            connect = import_module("psycopg").AsyncConnection.connect
            self._connection = await connect(self._url, autocommit=True)
        cursor = await self._connection.execute(sql)
        row = await cursor.fetchone() if cursor.description else None
        return row[0] if row else None

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
