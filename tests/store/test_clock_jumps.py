"""A database clock that jumps: rows as the jump leaves them, and what a reaper and a beat make of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from stepwell._store.connection.sql_files import statement
from tests.store.test_steady import ENTER, EXECUTING, LEASE

HOUR = timedelta(hours=1)
PLACE = ("h", "b", 1, "p")  # of the workers that ENTER enters
# By as much as the clock goes back, every time in the table is ahead afterwards.
MOVE_BACK = """
update stepwell.workers
set beat_at = beat_at + $1, lease_until = lease_until + $1, steady_since = steady_since + $1, begun_at = begun_at + $1,
    started_at = started_at + $1
"""
MOVE_CLAIMS_BACK = "update stepwell.instances set claimed_at = claimed_at + $1"


async def enter(connection: asyncpg.Connection, lease: timedelta = LEASE) -> int:
    return int(await connection.fetchval(ENTER, lease, lease))


async def jump(connection: asyncpg.Connection, by: timedelta) -> None:
    await connection.execute(MOVE_BACK, -by)
    await connection.execute(MOVE_CLAIMS_BACK, -by)


async def beat(connection: asyncpg.Connection, worker: int, lease: timedelta = LEASE) -> list[asyncpg.Record]:
    return list(await connection.fetch(statement("workers/beat"), worker, lease, 0, lease / 3, *PLACE))


async def wait_steadily(connection: asyncpg.Connection, worker: int, lease: timedelta = LEASE) -> None:
    """Let the last beats of a worker come one after the other, for that long."""
    earlier = "update stepwell.workers set steady_since = steady_since - $2::interval where id = $1"
    await connection.execute(earlier, worker, lease)


async def find_lost(connection: asyncpg.Connection, worker: int) -> list[int]:
    return [row["id"] for row in await connection.fetch(statement("instances/find_lost"), worker, LEASE)]


async def forget(connection: asyncpg.Connection, worker: int) -> list[int]:
    return [row["id"] for row in await connection.fetch(statement("workers/forget"), worker, LEASE)]


async def executing(connection: asyncpg.Connection, worker: int) -> int:
    return int(await connection.fetchval(EXECUTING, worker))


async def reap(connection: asyncpg.Connection, ids: list[int]) -> list[asyncpg.Record]:
    return list(await connection.fetch(statement("instances/reap"), ids, 10, "{}"))


async def test_a_worker_that_dies_while_the_clock_goes_back_is_reaped_in_one_lease(
    connection: asyncpg.Connection,
) -> None:
    asking, dead, living = [await enter(connection) for _ in range(3)]
    row, _ = await executing(connection, dead), await executing(connection, living)
    await jump(connection, -HOUR)

    at_once = await find_lost(connection, asking)
    await beat(connection, asking)
    after_a_beat = await find_lost(connection, asking)
    await beat(connection, living)
    await wait_steadily(connection, asking)
    after_a_lease = await find_lost(connection, asking)

    assert (at_once, after_a_beat, after_a_lease) == ([], [], [row])
    assert [found["id"] for found in await reap(connection, [row])] == [row]


async def test_a_worker_with_a_longer_lease_has_that_long_to_beat_after_the_jump(
    connection: asyncpg.Connection,
) -> None:
    asking, slow = await enter(connection), await enter(connection, LEASE * 5)
    row = await executing(connection, slow)
    await jump(connection, -HOUR)
    await beat(connection, asking)

    looks = []
    for _ in range(5):
        await wait_steadily(connection, asking)
        looks.append(await find_lost(connection, asking))

    assert looks == [[], [], [], [], [row]]


async def test_a_beat_of_the_same_moment_is_no_sign_of_a_jump(connection: asyncpg.Connection) -> None:
    """A beat that begins after the check, and is committed before its snapshot, is ahead of it by a moment."""
    asking, other = await enter(connection), await enter(connection)
    await executing(connection, other)
    await connection.execute(
        "update stepwell.workers set beat_at = now() + $2, lease_until = now() + $2 + $3 where id = $1",
        other, LEASE * 0.9, LEASE,
    )  # fmt: skip

    assert await find_lost(connection, asking) == []


async def test_a_jump_forward_expires_no_worker_that_beats_within_a_lease(connection: asyncpg.Connection) -> None:
    asking, living, dead = [await enter(connection) for _ in range(3)]
    _, row = await executing(connection, living), await executing(connection, dead)
    await jump(connection, HOUR)

    at_once = await find_lost(connection, asking)
    await beat(connection, asking)
    after_a_beat = await find_lost(connection, asking)
    await beat(connection, living)
    await wait_steadily(connection, asking)

    assert (at_once, after_a_beat, await find_lost(connection, asking)) == ([], [], [row])


async def test_a_jump_forward_forgets_no_worker_that_beats_within_a_lease(connection: asyncpg.Connection) -> None:
    """K8: an idle worker that was deleted would lose its lease, and the rows it claimed before its next beat."""
    asking, dead, living = [await enter(connection) for _ in range(3)]
    await jump(connection, HOUR)

    at_once = await forget(connection, asking)
    await beat(connection, asking)
    after_a_beat = await forget(connection, asking)
    await beat(connection, living)
    await wait_steadily(connection, asking)
    after_a_lease = await forget(connection, asking)

    assert (at_once, after_a_beat, after_a_lease) == ([], [], [dead])


@pytest.mark.parametrize("note", ["workers/beat", "workers/mark_started"])
async def test_a_claim_never_started_counts_no_crash_after_the_clock_went_back(
    connection: asyncpg.Connection, note: str
) -> None:
    worker = await enter(connection)
    await connection.execute("update stepwell.workers set begun_at = now()")
    await jump(connection, -HOUR)
    arguments: dict[str, tuple[Any, ...]] = {
        "workers/beat": (worker, LEASE, 0, LEASE / 3, *PLACE),
        "workers/mark_started": (worker, await connection.fetchval("select now()"), "{}", "{}", False),
    }

    await connection.fetch(statement(note), *arguments[note])
    row = await executing(connection, worker)  # claimed now, and the reply to the claim is lost
    await connection.execute("update stepwell.workers set lease_until = '-infinity'")

    assert [(found["id"], found["begun"]) for found in await reap(connection, [row])] == [(row, False)]


async def test_a_claim_started_after_the_clock_went_back_counts_its_crash(connection: asyncpg.Connection) -> None:
    worker = await enter(connection)
    await connection.execute("update stepwell.workers set begun_at = now()")
    await jump(connection, -HOUR)
    row = await executing(connection, worker)
    claimed_at = await connection.fetchval("select claimed_at from stepwell.instances")

    await connection.fetch(statement("workers/mark_started"), worker, claimed_at, "{}", "{}", False)
    await connection.execute("update stepwell.workers set lease_until = '-infinity'")

    assert [(found["id"], found["begun"]) for found in await reap(connection, [row])] == [(row, True)]


async def test_a_beat_returns_claims_from_before_the_clock_went_back(connection: asyncpg.Connection) -> None:
    """They may be claims with a lost reply: the worker knows which of them it has."""
    worker = await enter(connection)
    row = await executing(connection, worker)

    [before] = await beat(connection, worker)
    await jump(connection, -HOUR)
    [after] = await beat(connection, worker)

    assert (before["old"], after["old"]) == ([], [row])
