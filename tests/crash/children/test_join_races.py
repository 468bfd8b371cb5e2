"""Ends of children, against the reaper, against each other, and against a transaction that locks their parent."""

from __future__ import annotations

import pytest

from stepwell._store import children as children_store
from stepwell._store.operations import commit
from stepwell.testing import armed
from tests.support.commits import full_path
from tests.support.contest import Contest, Contestant, Plain, done, following, spawned, stopped
from tests.support.waiting import eventually

GUARD = ("i.worker_id = o.worker_id and i.fence = o.fence and i.status || '' = 'executing'", "true")


async def pending(contest: Contest, parent: int) -> tuple[str, int]:
    found: tuple[str, int] = await contest.row(parent, "status", "children_pending")
    return found


async def test_a_child_is_not_reaped_during_the_commit_of_its_end_and_counts_once(contest: Contest) -> None:
    ending, reaping = await contest.join()
    parent, [child, _] = await contest.family(ending, 2)
    await contest.end_lease(child)
    await ending.begin()
    assert await contest.flush(ending, done(child)) == [child.id]

    assert await contest.reap(reaping, [child], max_crashes=1) == []
    await ending.commit()

    assert await contest.reap(reaping, [child], max_crashes=1) == []
    assert await contest.row(child.id, "status", "joined") == ("done", True)
    assert await pending(contest, parent.id) == ("awaiting_children", 1)


async def test_a_child_failed_by_the_reaper_counts_once_despite_its_late_end(contest: Contest) -> None:
    ending, reaping = await contest.join()
    parent, [child, _] = await contest.family(ending, 2)
    await contest.end_lease(child)
    await reaping.begin()
    assert await contest.reap(reaping, [child], max_crashes=1) == [child.id]

    assert await contest.flush(ending, done(child)) == []
    assert not await contest.is_anybody_waiting()
    await reaping.commit()

    assert await contest.flush(ending, done(child)) == []
    assert await contest.row(child.id, "status", "joined") == ("failed", True)
    assert await pending(contest, parent.id) == ("awaiting_children", 1)


async def test_without_guard_and_joined_flag_a_late_end_would_count_twice(
    contest: Contest,
) -> None:
    """The parent would wake too early."""
    ending, reaping = await contest.join()
    ending.change("instances/commit", GUARD, ("i.joined and not m.was_joined", "i.joined"))
    parent, [child, sibling] = await contest.family(ending, 2)
    await contest.end_lease(child)
    await contest.reap(reaping, [child], max_crashes=1)

    await contest.flush(ending, done(child))

    assert await pending(contest, parent.id) == ("runnable", 0)
    assert await contest.row(sibling.id, "status") == "executing"


async def test_a_child_that_was_joined_and_retried_does_not_count_again(contest: Contest) -> None:
    ending, other = await contest.join()
    parent, [child, _] = await contest.family(ending, 2)
    await contest.flush(ending, stopped(child))
    await contest.operating(other).retry(child.id, None, by=None, tenant=None)
    [again] = await contest.claim(other)

    await contest.flush(other, done(again))

    assert await contest.row(child.id, "status") == "done"
    assert await pending(contest, parent.id) == ("awaiting_children", 1)


async def test_concurrent_commits_of_two_children_count_each_once_without_waiting(contest: Contest) -> None:
    one, other = await contest.join()
    parent, [first, second] = await contest.family(one, 2)
    await one.begin()
    assert await contest.flush(one, done(first)) == [first.id]

    assert await contest.flush(other, done(second)) == []
    assert await contest.row(second.id, "status") == "executing"
    await one.commit()

    assert await contest.flush(other, done(second)) == [second.id]
    assert await pending(contest, parent.id) == ("runnable", 0)


async def test_group_commits_with_parents_in_opposite_orders_do_not_deadlock(
    contest: Contest,
) -> None:
    one, other = await contest.join()
    left, [left_first, left_second] = await contest.family(one, 2)
    right, [right_first, right_second] = await contest.family(one, 2)
    await one.begin()
    assert len(await contest.flush(one, done(right_first), done(left_first))) == 2

    assert await contest.flush(other, done(left_second), done(right_second)) == []
    await one.commit()
    assert len(await contest.flush(other, done(left_second), done(right_second))) == 2

    assert [await pending(contest, parent.id) for parent in (left, right)] == [("runnable", 0)] * 2


async def test_without_skip_locked_a_group_commit_would_wait_for_a_locked_parent(contest: Contest) -> None:
    caller, ending = await contest.join()
    ending.change("children/lock_parents", ("for no key update skip locked", "for no key update"))
    parent, [child] = await contest.family(ending, 1)
    await caller.begin()
    await caller.lock_row(parent.id)

    flushing = await contest.blocked(ending, contest.flush(ending, done(child)))
    await caller.commit()

    assert await flushing == [child.id]


async def test_a_group_commit_of_50_does_not_wait_for_one_locked_parent(contest: Contest) -> None:
    caller, spawning = await contest.join()
    parent = await contest.executing(spawning)
    await contest.flush(spawning, spawned(parent, contest.entries(Plain.child({}, step="b"))))
    await contest.harness.engine.start_many([Plain.child({}, step="b")] * 49)
    [child] = await contest.sql("select id from stepwell.instances where parent_id = $1", parent.id)
    with armed("executor.returned", hold=True) as returned:
        async with contest.harness.engine.worker({"default": 50}) as worker:
            await returned.reached(50)
            await caller.begin()
            await caller.lock_row(parent.id)
            returned.release()

            await eventually(lambda: worker.stats.committed == 49)
            assert await contest.row(child["id"], "status") == "executing"
            assert not await contest.is_anybody_waiting()
            await caller.commit()
            ended = await contest.harness.engine.wait(parent.id, timeout=20)

    assert (ended.status, ended.result) == ("done", 1)
    assert worker.stats.stale == 0


async def test_a_parent_is_not_reaped_during_the_commit_of_its_spawn(contest: Contest) -> None:
    """Scenario 62."""
    spawning, reaping = await contest.join()
    parent = await contest.executing(spawning)
    await contest.end_lease(parent)
    await spawning.begin()
    await contest.flush(spawning, spawned(parent, contest.entries(Plain, Plain)))

    assert await contest.reap(reaping, [parent]) == []
    await spawning.commit()

    assert await contest.reap(reaping, [parent]) == []
    assert await pending(contest, parent.id) == ("awaiting_children", 2)
    assert await contest.children(parent.id) == ["runnable", "runnable"]


@pytest.mark.parametrize(
    ("changes", "children"), [([], 0), ([GUARD], 2)], ids=["guarded", "unguarded: orphans"]
)
async def test_a_spawn_during_the_reap_of_its_parent_leaves_no_children(
    contest: Contest, changes: list[tuple[str, str]], children: int
) -> None:
    spawning, reaping = await contest.join()
    parent = await contest.executing(spawning)
    await contest.end_lease(parent)
    await reaping.begin()
    assert await contest.reap(reaping, [parent]) == [parent.id]
    spawn = spawned(parent, contest.entries(Plain, Plain))
    assert await contest.flush(spawning, spawn) == []
    await reaping.commit()
    [again] = await contest.claim(reaping)

    spawning.change("instances/commit", *changes)
    await contest.flush(spawning, spawn)

    assert len(await contest.children(parent.id)) == children
    assert await contest.flush(reaping, following(again)) == ([again.id] if children == 0 else [])


@pytest.mark.parametrize("end", ["commit", "reap"])
async def test_a_child_ends_although_its_parent_was_pruned(contest: Contest, end: str) -> None:
    one, other = await contest.join()
    parent, [child] = await contest.family(one, 1)
    await contest.operating(other).cancel(parent.id, None, cascade=False, by=None, tenant=None)
    await contest.sql("delete from stepwell.instances where id = $1", parent.id)
    await contest.end_lease(child)

    if end == "commit":
        assert await contest.flush(one, done(child)) == [child.id]
    else:
        assert await contest.reap(one, [child], max_crashes=1) == [child.id]

    assert await contest.row(child.id, "status") in ("done", "failed")


async def test_one_group_commit_ends_all_children_of_a_parent(contest: Contest) -> None:
    """Scenario 59."""
    [one] = await contest.join(1)
    parent, children = await contest.family(one, 3)

    flushed = await commit.commit(one, [done(child) for child in children], full_path())  # type: ignore[arg-type]

    assert len(flushed.committed) == 3
    assert flushed.freed_queues == ["default"]
    assert await pending(contest, parent.id) == ("runnable", 0)


async def test_a_retry_that_waits_for_the_end_of_the_last_child_runs_the_join(contest: Contest) -> None:
    ending, retrying = await contest.join()
    parent, [child] = await contest.family(ending, 1)
    await contest.operating(ending).cancel(parent.id, None, cascade=False, by=None, tenant=None)
    await ending.begin()
    await contest.flush(ending, done(child))

    retried = await contest.blocked(
        retrying, contest.operating(retrying).retry(parent.id, None, by=None, tenant=None)
    )
    await ending.commit()

    assert await retried
    assert await pending(contest, parent.id) == ("runnable", 0)


async def test_a_child_that_ends_after_its_parent_was_retried_releases_the_join(contest: Contest) -> None:
    ending, retrying = await contest.join()
    parent, [child] = await contest.family(ending, 1)
    await contest.operating(ending).cancel(parent.id, None, cascade=False, by=None, tenant=None)

    assert await contest.operating(retrying).retry(parent.id, None, by=None, tenant=None)
    assert await pending(contest, parent.id) == ("awaiting_children", 1)
    await contest.flush(ending, done(child))

    assert await pending(contest, parent.id) == ("runnable", 0)


async def look_for_childless(contest: Contest, by: Contestant) -> list[int]:
    """The queues in which one check of the reconciler admits rows."""
    _, found = await children_store.find_childless(by, 0)
    released = await children_store.recount(by, found)  # type: ignore[arg-type]
    return [id_ for id_, _ in released]


@pytest.mark.parametrize("ended", [0, 1])
async def test_a_parent_continues_after_its_children_were_deleted(contest: Contest, ended: int) -> None:
    [one] = await contest.join(1)
    parent, children = await contest.family(one, 3)
    spared, deleted = children[:ended], children[ended:]
    await contest.flush(one, *map(done, spared))
    await contest.sql("delete from stepwell.instances where id = any ($1)", [child.id for child in deleted])

    assert await look_for_childless(contest, one) == [parent.id]
    assert await pending(contest, parent.id) == ("runnable", 0)


async def test_a_parent_with_one_live_child_is_left_alone(contest: Contest) -> None:
    [one] = await contest.join(1)
    parent, [gone, child] = await contest.family(one, 2)
    await contest.sql("delete from stepwell.instances where id = $1", gone.id)

    assert await look_for_childless(contest, one) == []
    await contest.flush(one, done(child))

    assert await look_for_childless(contest, one) == [parent.id]


async def test_a_check_for_parents_without_children_leaves_a_new_round_alone(contest: Contest) -> None:
    """The reconciler checks a parent again under its lock, by what is committed then."""
    looking, spawning = await contest.join()
    parent, [child] = await contest.family(spawning, 1)
    await contest.sql("delete from stepwell.instances where id = $1", child.id)
    _, found = await children_store.find_childless(looking, 0)
    await children_store.recount(spawning, found)  # type: ignore[arg-type]
    [again] = await contest.claim(spawning)
    await contest.flush(spawning, spawned(again, contest.entries(Plain)))

    assert found == [parent.id]
    assert await children_store.recount(looking, found) == []  # type: ignore[arg-type]
    assert await pending(contest, parent.id) == ("awaiting_children", 1)


async def test_a_check_for_parents_without_children_waits_for_no_childs_end(contest: Contest) -> None:
    ending, looking = await contest.join()
    parent, [child] = await contest.family(ending, 1)
    await ending.begin()
    await contest.flush(ending, done(child))

    assert await children_store.recount(looking, [parent.id]) == []  # type: ignore[arg-type]
    assert not await contest.is_anybody_waiting()
    await ending.commit()

    assert await pending(contest, parent.id) == ("runnable", 0)
