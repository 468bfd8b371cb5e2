"""Children that end, against the reaper, against each other, and against whoever holds their parent."""

from __future__ import annotations

import pytest

from stepwell._store import flushes
from stepwell.testing import armed
from tests.support.contest import Contest, Plain, done, following, spawned, stopped
from tests.support.waiting import eventually

GUARD = ("i.worker_id = o.worker_id and i.fence = o.fence and i.status || '' = 'executing'", "true")


async def pending(contest: Contest, parent: int) -> tuple[str, int]:
    found: tuple[str, int] = await contest.row(parent, "status", "children_pending")
    return found


async def test_a_child_whose_end_is_under_way_is_not_reaped_and_counts_once(contest: Contest) -> None:
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


async def test_a_child_that_is_being_reaped_for_good_counts_once_and_its_late_end_not_at_all(contest: Contest) -> None:
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


async def test_without_guard_and_joined_flag_a_late_end_would_count_twice_and_wake_the_parent_too_early(
    contest: Contest,
) -> None:
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


async def test_two_children_ended_by_two_flushes_at_once_wait_for_nobody_and_count_once_each(contest: Contest) -> None:
    one, other = await contest.join()
    parent, [first, second] = await contest.family(one, 2)
    await one.begin()
    assert await contest.flush(one, done(first)) == [first.id]

    assert await contest.flush(other, done(second)) == []
    assert await contest.row(second.id, "status") == "executing"
    await one.commit()

    assert await contest.flush(other, done(second)) == [second.id]
    assert await pending(contest, parent.id) == ("runnable", 0)


async def test_two_flushes_with_children_of_the_same_parents_the_other_way_round_do_not_deadlock(
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


async def test_without_skip_locked_a_flush_would_wait_for_who_holds_a_parent(contest: Contest) -> None:
    caller, ending = await contest.join()
    ending.change("children/lock_parents", ("for no key update skip locked", "for no key update"))
    parent, [child] = await contest.family(ending, 1)
    await caller.begin()
    await caller.lock_row(parent.id)

    flushing = await contest.blocked(ending, contest.flush(ending, done(child)))
    await caller.commit()

    assert await flushing == [child.id]


async def test_a_flush_of_fifty_does_not_wait_for_a_caller_who_holds_the_parent_of_one(contest: Contest) -> None:
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

            await eventually(lambda: worker.tally.committed == 49)
            assert await contest.row(child["id"], "status") == "executing"
            assert not await contest.is_anybody_waiting()
            await caller.commit()
            ended = await contest.harness.engine.wait(parent.id, timeout=20)

    assert (ended.status, ended.result) == ("done", 1)
    assert worker.tally.stale == 0


async def test_a_parent_whose_spawn_is_under_way_is_not_reaped(contest: Contest) -> None:
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
async def test_a_spawn_that_comes_while_its_parent_is_reaped_leaves_no_children_thanks_to_its_guard(
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


async def test_a_flush_brings_a_whole_family_to_its_end_at_once(contest: Contest) -> None:
    """Scenario 59."""
    [one] = await contest.join(1)
    parent, children = await contest.family(one, 3)

    flushed = await flushes.flush(one, [done(child) for child in children])  # type: ignore[arg-type]

    assert len(flushed.committed) == 3
    assert flushed.freed_queues == ["default"]
    assert await pending(contest, parent.id) == ("runnable", 0)
