"""A statement held between its snapshot and a row: it must notice concurrent changes when it locks the row."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from stepwell._store.connection.pool import WORKER
from stepwell._store.connection.sql_files import statement
from tests.support.waiting import eventually

_GATE = 42

# A policy is a filter that Postgres evaluates for every row it reads: here it waits before the given row is read.
_BUILD = """
create role {role};
grant usage on schema stepwell to {role};
grant all on all tables in schema stepwell to {role};
grant all on all sequences in schema stepwell to {role};
grant execute on all functions in schema stepwell to {role};
create function public.gate(id text) returns boolean language plpgsql as $$
begin
  if id = '{row}' then perform pg_advisory_xact_lock_shared({gate}); end if;
  return true;
end $$;
create policy gate on stepwell.{table} using (public.gate(id::text));
alter table stepwell.{table} enable row level security;
"""


class Gate:
    """A connection with statements that stop before one row until the gate is opened."""

    def __init__(self, keeper: asyncpg.Connection, visitor: asyncpg.Connection) -> None:
        self._keeper = keeper
        self._visitor = visitor

    async def send(self, name: str, *args: object) -> asyncio.Task[list[asyncpg.Record]]:
        """Send a statement, and return when it waits at the gate: its snapshot is taken, the row is not read."""
        patient = statement(name).replace("'lock_timeout', '10'", "'lock_timeout', '0'")  # the gate is a lock too
        sent = asyncio.create_task(self._visitor.fetch(patient, *args))
        await eventually(lambda: self._is_reached(sent))
        return sent

    async def open(self) -> None:
        await self._keeper.execute("select pg_advisory_unlock_all()")

    async def _is_reached(self, sent: asyncio.Task[list[asyncpg.Record]]) -> bool:
        if sent.done():
            raise AssertionError(f"it did not come by the gate: {sent.result()}")
        return bool(
            await self._keeper.fetchval(
                "select exists (select from pg_locks where locktype = 'advisory' and objid = $1 and not granted "
                "and database = (select oid from pg_database where datname = current_database()))",
                _GATE,
            )
        )


@asynccontextmanager
async def gate_before(url: str, row: object, table: str = "instances") -> AsyncIterator[Gate]:
    """A gate before the row of this id."""
    role = f"visitor_{secrets.token_hex(4)}"
    keeper = await asyncpg.connect(url)
    await keeper.execute(_BUILD.format(role=role, row=row, gate=_GATE, table=table))
    await keeper.execute("select pg_advisory_lock($1)", _GATE)
    visitor = await asyncpg.connect(url, server_settings={**WORKER, "role": role})
    try:
        yield Gate(keeper, visitor)
    finally:
        await keeper.execute("select pg_advisory_unlock_all()")
        await visitor.close()
        await keeper.execute(f"drop policy gate on stepwell.{table}; drop owned by {role}; drop role {role}")
        await keeper.close()
