"""Keys: batches against batches, spawns against callers, retries against successors."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from stepwell import Context, Done, Duplicate, Engine, Handle, Machine, Spawn, step
from stepwell._core.store_errors import Contention
from stepwell._store.operations import commit
from stepwell._store.operations.start import insert_full
from stepwell.testing import armed
from tests.support.commits import full_path
from tests.support.contest import Contest, Contestant, Plain, done, spawned, stopped
from tests.support.waiting import eventually

BUSY = 20
LATER = timedelta(hours=1)  # an instance started to hold a key does not end meanwhile


async def start(contest: Contest, contestant: Contestant, *keys: str) -> list[Handle | Duplicate]:
    return await contest.client(contestant).start_many([Plain.child({}, key=key, delay=LATER) for key in keys])


async def test_two_batches_with_the_same_keys_in_opposite_order_do_not_deadlock(contest: Contest) -> None:
    middle, one, other = await contest.join(3)
    await middle.begin()
    await start(contest, middle, "m")
    batches = [
        await contest.blocked(one, start(contest, one, "a", "m", "z")),
        await contest.blocked(other, start(contest, other, "z", "m", "a")),
    ]
    [[waits_for]] = await contest.sql("select pg_blocking_pids($1)", other.pid)

    await middle.rollback()
    first, second = [await batch for batch in batches]

    assert waits_for == [one.pid]  # at "a", and holds nothing; a deadlock may be retried unnoticed
    assert [type(answer) for answer in first] == [Handle] * 3
    assert [type(answer) for answer in second] == [Duplicate] * 3
    assert [answer.id for answer in second] == [answer.id for answer in reversed(first)]


async def test_without_sorted_keys_one_of_two_opposite_batches_would_deadlock(
    contest: Contest,
) -> None:
    middle, one, other = await contest.join(3)
    await middle.begin()
    await start(contest, middle, "m")
    batches = []
    for contestant, keys in ((one, "amz"), (other, "zma")):
        contestant.change("instances/start", ('e.tenant collate "C", e.key collate "C", e.position', "e.position"))
        await contestant.begin()
        entries = contest.entries(*[Plain.child({}, key=key) for key in keys])
        batches.append(await contest.blocked(contestant, insert_full(contestant, entries)))

    await middle.rollback()
    await asyncio.wait(batches, return_when=asyncio.FIRST_EXCEPTION)

    assert [type(batch.exception()) for batch in batches if batch.done() and batch.exception()] == [Contention]
    for contestant, batch in zip((one, other), batches, strict=True):
        if batch.done() and batch.exception():
            await contestant.rollback()
    await asyncio.wait(batches)


class Keyed(Machine, initial="a"):
    """Spawns one child with the key of its state."""

    @step
    async def a(self, ctx: Context[dict[str, str]]) -> Spawn:
        return Spawn([Plain.child({}, step="b", key=ctx.state["key"])], then=self.b)

    @step
    async def b(self, ctx: Context[dict[str, str]]) -> Done:
        return Done(len(ctx.children))


@pytest.mark.parametrize(("ending", "children"), [("commit", 0), ("rollback", 1)])
async def test_a_group_commit_does_not_wait_for_a_caller_that_holds_a_childs_key(
    contest: Contest, ending: str, children: int
) -> None:
    [caller] = await contest.join(1)
    async with Engine(contest.harness.url, machines=[Plain, Keyed]) as engine:
        spawner = await engine.start(Keyed, {"key": "k"})
        await engine.start_many([Plain.child({}, step="b")] * BUSY)
        with armed("executor.returned", hold=True) as returned:
            async with engine.worker({"default": 50}) as worker:
                await returned.reached(1 + BUSY)
                await caller.begin()
                await start(contest, caller, "k")
                returned.release()

                await eventually(lambda: worker.stats.committed == BUSY)
                assert (await spawner.get()).status == "executing"
                await getattr(caller, ending)()

                assert await spawner.result(timeout=20) == children


async def test_in_one_batch_with_the_spawn_all_outcomes_would_wait_for_the_caller(contest: Contest) -> None:
    caller, flushing = await contest.join()
    await contest.harness.engine.start_many([(Plain, {})] * 3)
    spawner, *plain = await contest.claim(flushing)
    await caller.begin()
    await start(contest, caller, "k")
    batch = [spawned(spawner, contest.entries(Plain.child({}, key="k"))), *map(done, plain)]

    flush = await contest.blocked(flushing, commit.commit(flushing, batch, full_path()))  # type: ignore[arg-type]

    assert [await contest.row(claim.id, "status") for claim in plain] == ["executing"] * 2
    await caller.commit()
    assert len((await flush).committed) == 3


async def test_spawns_that_wait_for_a_callers_key_leave_the_worker_connections(
    contest: Contest
) -> None:
    """Many spawns of one key wait for a caller's transaction; claims and commits still have connections."""
    [caller] = await contest.join(1)
    async with Engine(contest.harness.url, machines=[Plain, Keyed]) as engine:
        await caller.begin()
        await start(contest, caller, "k")
        spawners = await engine.start_many([Keyed.child({"key": "k"})] * 30)
        async with engine.worker({"default": 50}):
            await eventually(contest.is_anybody_waiting)

            others = await engine.start_many([Plain] * 5)
            assert [await other.result(timeout=20) for other in others if isinstance(other, Handle)] == [0] * 5

            await caller.commit()
            assert [await one.result(timeout=20) for one in spawners if isinstance(one, Handle)] == [0] * 30


async def failed_holder(contest: Contest, contestant: Contestant) -> int:
    """An instance that has failed and so has released its key k."""
    claim = await contest.executing(contestant, key="k")
    await contest.flush(contestant, stopped(claim))
    return claim.id


async def test_a_retry_that_waited_for_its_keys_new_holder_is_a_duplicate_of_it(contest: Contest) -> None:
    starting, retrying = await contest.join()
    failed = await failed_holder(contest, starting)
    await starting.begin()
    [holder] = await start(contest, starting, "k")

    retry = await contest.blocked(retrying, contest.operating(retrying).retry(failed, None, by=None, tenant=None))
    await starting.commit()

    with pytest.raises(Duplicate) as caught:
        await retry
    assert caught.value.id == holder.id
    assert await contest.row(failed, "status", "fence") == ("failed", 2)


async def test_a_retry_succeeds_if_the_new_holder_of_its_key_is_rolled_back(contest: Contest) -> None:
    starting, retrying = await contest.join()
    failed = await failed_holder(contest, starting)
    await starting.begin()
    await start(contest, starting, "k")

    retry = await contest.blocked(retrying, contest.operating(retrying).retry(failed, None, by=None, tenant=None))
    await starting.rollback()

    assert await retry is True
    assert await contest.row(failed, "status", "key", "finished_at") == ("runnable", "k", None)


async def test_a_start_that_waited_for_a_retry_is_a_duplicate_of_the_retried(contest: Contest) -> None:
    starting, retrying = await contest.join()
    failed = await failed_holder(contest, starting)
    await retrying.begin()
    assert await contest.operating(retrying).retry(failed, None, by=None, tenant=None)

    starts = await contest.blocked(starting, start(contest, starting, "k"))
    await retrying.commit()

    [answer] = await starts
    assert isinstance(answer, Duplicate)
    assert answer.id == failed
