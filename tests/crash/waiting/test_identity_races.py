"""Keys: batches against batches, spawns against callers, retries against successors."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from stepwell import Context, Done, Duplicate, Handle, Machine, Spawn, step
from stepwell._core.faults import Contention
from stepwell._store import flushes, instances
from stepwell.testing import armed
from tests.crash.waiting.conftest import SharedHarness
from tests.support.contest import Contest, Contestant, Plain, done, spawned, stopped
from tests.support.waiting import eventually

BUSY = 20
LATER = timedelta(hours=1)  # who is started to hold a key does not end meanwhile


async def start(contest: Contest, contestant: Contestant, *keys: str) -> list[Handle | Duplicate]:
    return await contest.client(contestant).start_many([Plain.child({}, key=key, delay=LATER) for key in keys])


async def opposed(contest: Contest) -> tuple[Contestant, list[asyncio.Task[list[Handle | Duplicate]]]]:
    """Two batches with the keys a, m, z in opposite order, while a third contestant holds m; all three wait."""
    middle, one, other = await contest.join(3)
    await middle.begin()
    await start(contest, middle, "m")
    return middle, [
        await contest.blocked(one, start(contest, one, "a", "m", "z")),
        await contest.blocked(other, start(contest, other, "z", "m", "a")),
    ]


async def test_two_batches_with_the_same_keys_in_opposite_order_do_not_deadlock(contest: Contest) -> None:
    middle, batches = await opposed(contest)

    await middle.rollback()
    first, second = [await batch for batch in batches]

    assert [type(answer) for answer in first] == [Handle] * 3
    assert [type(answer) for answer in second] == [Duplicate] * 3
    assert [answer.id for answer in second] == [answer.id for answer in reversed(first)]


async def test_without_sorting_their_keys_one_of_two_opposite_batches_would_die_in_a_deadlock(
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
        batches.append(await contest.blocked(contestant, instances.start(contestant, entries)))

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
async def test_a_flush_does_not_wait_for_a_caller_who_starts_the_key_that_one_of_it_spawns(
    contest: Contest, shared_url: str, ending: str, children: int
) -> None:
    [caller] = await contest.join(1)
    async with SharedHarness(shared_url, [Plain, Keyed]) as h:
        spawner = await h.engine.start(Keyed, {"key": "k"})
        await h.engine.start_many([Plain.child({}, step="b")] * BUSY)
        with armed("executor.returned", hold=True) as returned:
            async with h.engine.worker({"default": 50}) as worker:
                await returned.reached(1 + BUSY)
                await caller.begin()
                await start(contest, caller, "k")
                returned.release()

                await eventually(lambda: worker.tally.committed == BUSY)
                assert (await spawner.get()).status == "executing"
                await getattr(caller, ending)()

                assert await spawner.result(timeout=20) == children


async def test_in_one_batch_with_it_the_whole_flush_would_wait_for_that_caller(contest: Contest) -> None:
    caller, flushing = await contest.join()
    await contest.harness.engine.start_many([(Plain, {})] * 3)
    spawner, *plain = await contest.claim(flushing)
    await caller.begin()
    await start(contest, caller, "k")
    batch = [spawned(spawner, contest.entries(Plain.child({}, key="k"))), *map(done, plain)]

    flush = await contest.blocked(flushing, flushes.flush(flushing, batch))  # type: ignore[arg-type]

    assert [await contest.row(claim.id, "status") for claim in plain] == ["executing"] * 2
    await caller.commit()
    assert len((await flush).committed) == 3


async def test_many_spawns_of_a_key_that_a_caller_holds_leave_the_worker_the_connections_it_needs(
    contest: Contest, shared_url: str
) -> None:
    [caller] = await contest.join(1)
    async with SharedHarness(shared_url, [Plain, Keyed]) as h:
        await caller.begin()
        await start(contest, caller, "k")
        spawners = await h.engine.start_many([Keyed.child({"key": "k"})] * 30)
        async with h.engine.worker({"default": 50}):
            await eventually(contest.is_anybody_waiting)

            others = await h.engine.start_many([Plain] * 5)
            assert [await other.result(timeout=20) for other in others if isinstance(other, Handle)] == [0] * 5

            await caller.commit()
            assert [await one.result(timeout=20) for one in spawners if isinstance(one, Handle)] == [0] * 30


async def failed_holder(contest: Contest, contestant: Contestant) -> int:
    """An instance that has failed and with that given its key k up."""
    claim = await contest.executing(contestant, key="k")
    await contest.flush(contestant, stopped(claim))
    return claim.id


async def test_a_retry_that_waited_for_a_new_holder_of_its_key_is_a_duplicate_of_it(contest: Contest) -> None:
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


async def test_a_retry_goes_on_if_the_new_holder_of_its_key_is_rolled_back(contest: Contest) -> None:
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
