"""Pruning, against retries, signals and starts for the instance that is pruned."""

from __future__ import annotations

from datetime import timedelta

import pytest

from stepwell import Duplicate, Handle, NoTarget, NotFound
from stepwell._store import retention
from tests.support.contest import Contest, Contestant, Plain, done, stopped

LATER = timedelta(days=2)


async def old(contest: Contest, contestant: Contestant, scope: str = "live") -> int:
    """An instance with the key k that failed longer ago than its retention."""
    await contest.harness.engine.migrate()  # only a registered machine has a retention
    claim = await contest.executing(contestant, key="k", key_scope=scope)
    await contest.flush(contestant, stopped(claim))
    await contest.harness.advance(LATER)
    return claim.id


async def exists(contest: Contest, instance_id: int) -> bool:
    tables = ("instances", "instance_data")
    found = {
        table: bool(await contest.sql(f"select from stepwell.{table} where id = $1", instance_id))
        for table in tables
    }
    assert len(set(found.values())) == 1, f"half of it is left: {found}"
    return found["instances"]


async def test_an_instance_that_is_being_retried_is_not_pruned(contest: Contest) -> None:
    pruning, retrying = await contest.join()
    failed = await old(contest, pruning)
    await retrying.begin()
    assert await contest.operating(retrying).retry(failed, None, by=None, tenant=None)

    assert await retention.prune(pruning) == (0, 0)
    await retrying.commit()

    assert await retention.prune(pruning) == (0, 0)
    assert await exists(contest, failed)


async def test_without_skip_locked_a_pruner_would_wait_for_an_uncommitted_retry(contest: Contest) -> None:
    pruning, retrying = await contest.join()
    pruning.change("instances/prune", ("for no key update of i skip locked", "for no key update of i"))
    failed = await old(contest, pruning)
    await retrying.begin()
    await contest.operating(retrying).retry(failed, None, by=None, tenant=None)

    prune = await contest.blocked(pruning, retention.prune(pruning))
    await retrying.commit()

    assert await prune == (0, 0)  # the recheck under the lock finds that it is no longer old
    assert await exists(contest, failed)


async def test_without_a_lock_a_pruner_would_delete_a_retried_instances_state(
    contest: Contest,
) -> None:
    pruning, retrying = await contest.join()
    pruning.change("instances/prune", ("    for no key update of i skip locked\n", ""))
    failed = await old(contest, pruning)
    await retrying.begin()
    await contest.operating(retrying).retry(failed, None, by=None, tenant=None)

    prune = await contest.blocked(pruning, retention.prune(pruning))
    await retrying.commit()
    await prune

    assert not await contest.sql("select from stepwell.instance_data where id = $1", failed)


async def test_a_retry_that_waited_for_a_prune_finds_nothing_to_retry(contest: Contest) -> None:
    pruning, retrying = await contest.join()
    failed = await old(contest, pruning)
    await pruning.begin()
    assert await retention.prune(pruning) == (1, 1)

    retry = await contest.blocked(retrying, contest.operating(retrying).retry(failed, None, by=None, tenant=None))
    await pruning.commit()

    assert await retry is False
    assert not await exists(contest, failed)
    with pytest.raises(NotFound):
        await contest.operating(retrying).retry(failed, None, by=None, tenant=None)


@pytest.mark.parametrize("committed", [False, True], ids=["under way", "over"])
async def test_a_signal_to_a_pruned_instance_finds_no_target_and_stores_nothing(
    contest: Contest, committed: bool
) -> None:
    pruning, signalling = await contest.join()
    failed = await old(contest, pruning)
    await pruning.begin()
    await retention.prune(pruning)
    if committed:
        await pruning.commit()

    for target in (failed, "k"):
        with pytest.raises(NoTarget):
            await contest.signalling(signalling).signal(target, "paid", 1, None, None)

    if not committed:
        await pruning.commit()
    assert await contest.sql("select from stepwell.signals") == []


async def test_a_pruner_deletes_the_inbox_and_no_signal_arrives_after_it(contest: Contest) -> None:
    pruning, signalling = await contest.join()
    claim = await contest.executing(pruning)
    await contest.harness.engine.migrate()
    await contest.signalling(signalling).signal(claim.id, "paid", 1, None, None)
    await contest.flush(pruning, stopped(claim))
    await contest.harness.advance(LATER)
    assert await contest.inbox(claim.id) == [("paid", "1")]  # a failed instance keeps it, closed

    assert await retention.prune(pruning) == (1, 1)

    assert await contest.inbox(claim.id) == []


async def test_a_start_that_waited_for_its_forever_keys_prune_finds_the_tombstone(contest: Contest) -> None:
    pruning, starting = await contest.join()
    first = await old(contest, pruning, "forever")
    await pruning.begin()
    assert await retention.prune(pruning) == (1, 1)

    starts = await contest.blocked(starting, contest.client(starting).start_many([Plain.child({}, key="k")]))
    await pruning.commit()

    [answer] = await starts
    assert isinstance(answer, Duplicate)
    assert answer.id == first
    assert await contest.sql("select from stepwell.instances") == []
    assert await contest.sql("select from stepwell.instance_data") == []


async def test_without_the_recheck_of_tombstones_a_forever_key_would_be_reused(contest: Contest) -> None:
    pruning, starting = await contest.join()
    starting.change("instances/find_tombstoned", ("where i.id = any ($1::bigint[])", "where i.id < any ($1::bigint[])"))
    await old(contest, pruning, "forever")
    await pruning.begin()
    await retention.prune(pruning)

    starts = await contest.blocked(starting, contest.client(starting).start_many([Plain.child({}, key="k")]))
    await pruning.commit()

    assert [type(answer) for answer in await starts] == [Handle]


async def test_a_start_before_the_prune_of_its_forever_key_is_a_duplicate(contest: Contest) -> None:
    pruning, starting = await contest.join()
    first = await old(contest, pruning, "forever")
    await starting.begin()
    [answer] = await contest.client(starting).start_many([Plain.child({}, key="k")])
    assert isinstance(answer, Duplicate)

    assert await retention.prune(pruning) == (1, 1)
    await starting.commit()

    [again] = await contest.client(starting).start_many([Plain.child({}, key="k")])
    assert isinstance(again, Duplicate)
    assert (answer.id, again.id) == (first, first)


async def test_a_child_is_not_pruned_before_its_parent_ends(contest: Contest) -> None:
    pruning, other = await contest.join()
    await contest.harness.engine.migrate()
    parent, [child] = await contest.family(pruning, 1)
    await contest.flush(pruning, done(child))
    await contest.harness.advance(LATER)
    assert await retention.prune(pruning) == (0, 0)

    await contest.operating(other).cancel(parent.id, None, cascade=True, by=None, tenant=None)

    assert await retention.prune(pruning) == (1, 1)
    assert await exists(contest, parent.id)
