"""Children that are born in a worker's hands, against the death of that worker."""

from __future__ import annotations

import pytest

from stepwell._core.reservation import Reservation
from stepwell._store import flushes
from tests.support.contest import Contest, Plain, spawned


@pytest.mark.parametrize(
    ("changes", "found"),
    [([], ("runnable", 0, 0)), ([("clock_timestamp()", "pg_catalog.now()")], ("runnable", 1, 1))],
    ids=["claimed when it was inserted", "claimed when its transaction began"],
)
async def test_a_child_whose_worker_dies_before_its_step_has_begun_counts_no_crash_although_others_began_meanwhile(
    contest: Contest, changes: list[tuple[str, str]], found: tuple[str, int, int]
) -> None:
    spawning, reaping = await contest.join()
    spawning.change("spawns/start", *changes)
    parent = await contest.executing(spawning)
    await spawning.begin()
    await contest.sql("update stepwell.workers set begun_at = clock_timestamp() where id = $1", parent.worker_id)

    spawn = spawned(parent, contest.entries(Plain, Plain))
    flushed = await flushes.write(spawning, [spawn], reserved=Reservation("default", 1, parent.worker_id))  # type: ignore[arg-type]
    await spawning.commit()
    await contest.sql("update stepwell.workers set lease_until = '-infinity' where id = $1", parent.worker_id)
    [child] = flushed.born
    assert await contest.reap(reaping, [child]) == [child.id]

    assert await contest.row(child.id, "status", "attempt", "crashes") == found
    assert await contest.children(parent.id) == ["runnable", "runnable"]


async def test_children_are_born_claimed_only_with_the_commit_of_their_parent(contest: Contest) -> None:
    spawning, reaping = await contest.join()
    parent = await contest.executing(spawning)
    await contest.end_lease(parent)
    assert await contest.reap(reaping, [parent]) == [parent.id]

    spawn = spawned(parent, contest.entries(Plain, Plain))
    reserved = Reservation("default", 2, parent.worker_id)
    flushed = await flushes.flush(spawning, [spawn], reserved=reserved)  # type: ignore[arg-type]

    assert (flushed.committed, flushed.born) == ([], [])
    assert await contest.children(parent.id) == []
