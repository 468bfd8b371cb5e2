"""A process that freezes between parsing and running a statement holds its locks; the reaper ends its connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from stepwell import Context, Done, Machine, step
from stepwell._store.registrations import workers
from stepwell.testing import Harness
from tests.conftest import MakeHarness

SHORT = {"lease": timedelta(seconds=1), "heartbeat": timedelta(seconds=0.2), "reap": timedelta(seconds=0.2)}
BOUNDS = {"idle_in_transaction_session_timeout": "1s", "statement_timeout": "1s", "tcp_user_timeout": "1s"}
AT_ONCE, NEVER = timedelta(0), timedelta(hours=1)
NOBODY, LEASE = 0, timedelta(minutes=1)
LOCKS = "begin; select from stepwell.instances for update"


class Order(Machine):
    @step
    async def start(self, ctx: Context[Any]) -> Done:
        return Done("through")


@asynccontextmanager
async def stalled(h: Harness, name: str, *, locks: str = LOCKS) -> AsyncIterator[asyncpg.Connection]:
    """A connection that has locked all instances, and stands between parsing a statement and running it."""
    connection = await asyncpg.connect(h.url, server_settings={"application_name": name, **BOUNDS})
    try:
        await connection.execute(locks)
        await connection.prepare("select 1")
        yield connection
    finally:
        connection.terminate()


async def ended(h: Harness, connection: asyncpg.Connection, longer_than: timedelta) -> bool:
    """Whether the statement that ends stalled connections ends this one."""
    assert h.engine._database is not None
    found = await workers.end_stalled(h.engine._database, NOBODY, LEASE, longer_than, longer_than)
    return connection.get_server_pid() in found.stalled


@pytest.mark.parametrize("name", ["stepwell", "stepwell worker", "stepwell step", "stepwell step 7"])
async def test_a_process_frozen_within_a_statement_loses_its_locks(make_harness: MakeHarness, name: str) -> None:
    h = await make_harness([Order], **SHORT)
    handle = await h.engine.start(Order)

    async with stalled(h, name), h.engine.worker(), asyncio.timeout(30):
        result = await handle.wait()

    assert result.result == "through"


async def test_stalled_connections_of_other_applications_are_not_ended(make_harness: MakeHarness) -> None:
    h = await make_harness([Order])

    async with stalled(h, "monthly report") as other:
        assert not await ended(h, other, AT_ONCE)


async def test_a_connection_that_stalls_for_a_moment_is_not_ended(make_harness: MakeHarness) -> None:
    h = await make_harness([Order])

    async with stalled(h, "stepwell worker") as other:
        assert not await ended(h, other, NEVER)


async def test_a_step_that_prepared_a_statement_and_continues_is_not_ended(make_harness: MakeHarness) -> None:
    h = await make_harness([Order])

    async with stalled(h, "stepwell step 7", locks="begin") as author:
        assert not await ended(h, author, AT_ONCE)


async def test_a_process_frozen_in_the_engines_part_of_a_step_loses_its_locks(make_harness: MakeHarness) -> None:
    """Whatever it has locked: before it is handed over, and once the step has returned, no author works on it."""
    h = await make_harness([Order])

    async with stalled(h, "stepwell step", locks="begin") as engines:
        assert await ended(h, engines, AT_ONCE)


async def test_a_copy_of_a_step_is_not_ended_while_its_source_is_slow(make_harness: MakeHarness) -> None:
    h = await make_harness([Order])
    await h.sql("create table public.copied (number integer)")
    copying, may_end = asyncio.Event(), asyncio.Event()

    async def source() -> AsyncIterator[bytes]:
        yield b"1\n"
        copying.set()
        await may_end.wait()

    connection = await asyncpg.connect(h.url, server_settings={"application_name": "stepwell step 7"})
    copy = asyncio.create_task(connection.copy_to_table("copied", source=source()))
    await copying.wait()

    was_ended = await ended(h, connection, AT_ONCE)
    may_end.set()
    await copy

    assert not was_ended
    await connection.close()
