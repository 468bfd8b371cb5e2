"""Sessions of steps of a worker without a lease: a steady worker ends them, and no others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta

import asyncpg
import pytest

from stepwell._store.connection.sql_files import statement
from stepwell._store.step_transaction import transaction as step_transaction
from stepwell._store.step_transaction.asyncpg import Connections
from tests.store.test_clock_jumps import beat, enter, jump, wait_steadily
from tests.store.test_steady import ENTER, LEASE

OVER = timedelta(seconds=-1)
NEVER = timedelta(hours=1)  # for stalled ones
UNKNOWN = 2**63 - 1
ENDED = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
Begin = Callable[..., Awaitable[asyncpg.Connection]]


@pytest.fixture
async def begin(url: str) -> AsyncIterator[Begin]:
    """Begin a transaction as a step of that worker does."""
    async with AsyncExitStack() as stack:

        async def begun(worker: object) -> asyncpg.Connection:
            opened = await asyncpg.connect(url)
            stack.callback(opened.terminate)
            await opened.execute(f"begin; set local application_name = 'stepwell step {worker}'; select txid_current()")
            return opened

        yield begun


async def look(connection: asyncpg.Connection, finder: int) -> list[tuple[int, bool]]:
    """Check as a reaper does; returns which sessions were ended, and whether they had stalled."""
    rows = await connection.fetch(statement("workers/end_stalled"), NEVER, NEVER, NEVER, finder, LEASE)
    return [(row["pid"], row["is_stalled"]) for row in rows]


async def is_ended(session: asyncpg.Connection) -> bool:
    try:
        async with asyncio.timeout(5):
            await session.fetchval("select 1")
    except ENDED:
        return True
    return False


async def test_a_step_of_a_worker_with_an_expired_lease_is_ended(connection: asyncpg.Connection, begin: Begin) -> None:
    finder, dead = await enter(connection), await enter(connection, OVER)
    session = await begin(dead)

    ended = await look(connection, finder)

    assert ended == [(session.get_server_pid(), False)]
    assert await is_ended(session)


async def test_a_step_of_a_worker_that_was_deleted_is_ended(connection: asyncpg.Connection, begin: Begin) -> None:
    finder = await enter(connection)
    session = await begin(UNKNOWN)

    ended = await look(connection, finder)

    assert ended == [(session.get_server_pid(), False)]
    assert await is_ended(session)


async def test_a_step_of_a_living_worker_is_not_ended(connection: asyncpg.Connection, begin: Begin) -> None:
    finder, living = await enter(connection), await enter(connection)
    sessions = [await begin(worker) for worker in (living, finder)]

    assert await look(connection, finder) == []
    assert [await is_ended(session) for session in sessions] == [False, False]


async def test_a_step_of_a_worker_that_beats_concurrently_is_not_ended(
    url: str, connection: asyncpg.Connection, begin: Begin
) -> None:
    """The first beat wins: a beat that is not committed yet is no reason to wait."""
    finder, late = await enter(connection), await enter(connection, OVER)
    session = await begin(late)
    beating = await asyncpg.connect(url)

    async with beating.transaction():
        await beat(beating, late)
        while_it_beats = await look(connection, finder)
    afterwards = await look(connection, finder)

    assert (while_it_beats, afterwards, await is_ended(session)) == ([], [], False)
    await beating.close()


async def test_a_jump_forward_ends_no_step_of_a_worker_that_beats_within_a_lease(
    connection: asyncpg.Connection, begin: Begin
) -> None:
    finder, living, dead = [await enter(connection) for _ in range(3)]
    sessions = [await begin(living), await begin(dead)]
    await jump(connection, timedelta(hours=1))

    at_once = await look(connection, finder)
    await beat(connection, finder)
    after_a_beat = await look(connection, finder)
    await beat(connection, living)
    await wait_steadily(connection, finder)
    after_a_lease = await look(connection, finder)

    assert (at_once, after_a_beat, after_a_lease) == ([], [], [(sessions[1].get_server_pid(), False)])
    assert not await is_ended(sessions[0])


async def test_a_step_of_a_worker_that_ended_its_lease_is_ended_by_any_finder(
    connection: asyncpg.Connection, begin: Begin
) -> None:
    gone = await enter(connection, OVER)
    await connection.fetch(statement("workers/leave"), [gone], True)
    session = await begin(gone)

    ended = await look(connection, UNKNOWN)

    assert ended == [(session.get_server_pid(), False)]


async def test_a_step_of_an_unknown_worker_is_ended_only_by_a_steady_finder(
    connection: asyncpg.Connection, begin: Begin
) -> None:
    finder = await connection.fetchval(ENTER, timedelta(seconds=5), LEASE)  # its last beat is nearly a lease ago
    session = await begin(UNKNOWN)

    assert (await look(connection, finder), await is_ended(session)) == ([], False)


async def test_a_step_of_a_worker_registered_after_the_check_began_is_not_ended(
    url: str, connection: asyncpg.Connection, begin: Begin
) -> None:
    """Its row is not in the snapshot of the check, but its session is in the list, which has no snapshot."""
    finder = await enter(connection)
    looking = await asyncpg.connect(url)

    async with looking.transaction(isolation="repeatable_read"):
        await looking.fetchval("select count(*) from stepwell.workers")
        session = await begin(await enter(connection))
        ended = await look(looking, finder)

    assert (ended, await is_ended(session)) == ([], False)
    await looking.close()


@pytest.mark.parametrize("name", ["", "seven", "-7", "7 of 9", "7.5"])
async def test_sessions_that_name_no_worker_are_left_alone(
    connection: asyncpg.Connection, begin: Begin, name: str
) -> None:
    finder = await enter(connection)
    session = await begin(name)

    assert (await look(connection, finder), await is_ended(session)) == ([], False)


async def test_a_session_with_an_invalid_worker_number_does_not_break_the_check(
    connection: asyncpg.Connection, begin: Begin
) -> None:
    finder = await enter(connection)
    await begin("9" * 40)
    session = await begin(await enter(connection, OVER))

    assert (session.get_server_pid(), False) in await look(connection, finder)


@pytest.mark.parametrize("kind", ["asyncpg", "sqlalchemy"])
async def test_a_session_is_named_after_its_worker_while_an_author_uses_it(
    url: str, connection: asyncpg.Connection, kind: str
) -> None:
    pool = step_transaction.transactions(url, kind, 1, Connections("postgresql://", 1).bounds)
    await pool.open()

    transaction = await step_transaction.begin(pool, "1:1", UNKNOWN, timedelta(seconds=5))
    [authors] = await names(connection)
    await transaction.take_over()
    [ours] = await names(connection)
    await transaction.end()
    await pool.close()

    assert (authors, ours) == (f"stepwell step {UNKNOWN}", "stepwell step")


async def names(connection: asyncpg.Connection) -> list[str]:
    found = await connection.fetch(
        "select application_name from pg_stat_activity "
        "where datname = current_database() and application_name like 'stepwell step%'"
    )
    return [row["application_name"] for row in found]
