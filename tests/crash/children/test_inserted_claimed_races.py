"""Children that are inserted already claimed, against the death of their worker."""

from __future__ import annotations

import pytest

from stepwell._core.reservation import Reservation
from stepwell._store.operations import commit
from tests.support.commits import full_path
from tests.support.contest import Contest, Plain, spawned


@pytest.mark.parametrize(
    ("changes", "found"),
    [([], ("runnable", 0, 0)), ([("clock_timestamp()", "pg_catalog.now()")], ("runnable", 1, 1))],
    ids=["claimed when it was inserted", "claimed when its transaction began"],
)
async def test_an_unstarted_child_of_a_dead_worker_counts_no_crash(
    contest: Contest, changes: list[tuple[str, str]], found: tuple[str, int, int]
) -> None:
    """Other children of the same worker had started meanwhile."""
    spawning, reaping = await contest.join()
    spawning.change("children/start_fast", *changes)
    parent = await contest.executing(spawning)
    await spawning.begin()
    await contest.sql("update stepwell.workers set begun_at = clock_timestamp() where id = $1", parent.worker_id)

    spawn = spawned(parent, contest.entries(Plain, Plain))
    flushed = await commit.write(spawning, [spawn], reserved=Reservation("default", 1, parent.worker_id))  # type: ignore[arg-type]
    await spawning.commit()
    await contest.sql("update stepwell.workers set lease_until = '-infinity' where id = $1", parent.worker_id)
    [child] = flushed.inserted_claimed
    assert await contest.reap(reaping, [child]) == [child.id]

    assert await contest.row(child.id, "status", "attempt", "crashes") == found
    assert await contest.children(parent.id) == ["runnable", "runnable"]


async def test_children_are_inserted_claimed_only_with_their_parents_commit(contest: Contest) -> None:
    spawning, reaping = await contest.join()
    parent = await contest.executing(spawning)
    await contest.end_lease(parent)
    assert await contest.reap(reaping, [parent]) == [parent.id]

    spawn = spawned(parent, contest.entries(Plain, Plain))
    reserved = Reservation("default", 2, parent.worker_id)
    flushed = await commit.commit(spawning, [spawn], full_path(), reserved=reserved)  # type: ignore[arg-type]

    assert (flushed.committed, flushed.inserted_claimed) == ([], [])
    assert await contest.children(parent.id) == []
