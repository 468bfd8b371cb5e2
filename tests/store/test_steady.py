"""Rule 26: a worker that reaps must have been live all the time itself."""

from __future__ import annotations

from datetime import timedelta

import asyncpg
import pytest

from stepwell._store.connection.sql_files import statement

LEASE = timedelta(seconds=60)
ENTER = """
insert into stepwell.workers (host, boot, pid, process, release, queues, machines, lease_until, beat_at, steady_since)
values ('h', 'b', 1, 'p', 'r', '{}', '{}', now() + $1::interval, now() + $1::interval - $2::interval,
        now() - interval '1 hour')
returning id
"""
EXECUTING = """
insert into stepwell.instances (machine, version, step, queue, due_at, status, worker_id, claimed_at, created_at,
                                updated_at)
values ('m', 1, 's', 'q', now(), 'executing', $1, now(), now(), now()) returning id
"""


@pytest.mark.parametrize(("left", "acts"), [(5, False), (50, True)], ids=["a lease that outlived an outage", "steady"])
async def test_rule_26_a_reaper_acts_only_if_it_has_beaten_all_the_time(
    connection: asyncpg.Connection, left: int, acts: bool
) -> None:
    """Rule 26: an outage expires no live worker: one lease outlives it, another that was renewed earlier does not."""
    asking = await connection.fetchval(ENTER, timedelta(seconds=left), LEASE)
    other = await connection.fetchval(ENTER, timedelta(seconds=-1), LEASE)
    row = await connection.fetchval(EXECUTING, other)

    before_its_beat = await connection.fetch(statement("instances/find_lost"), asking, LEASE)
    await connection.fetch(statement("workers/beat"), asking, LEASE, 0, LEASE, "h", "b", 1, "p")
    after_its_beat = await connection.fetch(statement("instances/find_lost"), asking, LEASE)

    assert [[found["id"] for found in look] for look in (before_its_beat, after_its_beat)] == [[row] * acts] * 2
