"""Operators against the engine: cancel, retry and restart while rows are claimed, committed and spawned."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stepwell import Context, Done, Machine, step
from stepwell._store import concurrency_keys, operators, retention
from stepwell._store.connection import notifications
from stepwell._store.operations import commit
from stepwell.testing import Harness
from tests.support.commits import full_path
from tests.support.contest import Contest, Contestant, Plain, done, following, spawned
from tests.support.waiting import eventually


async def cancel(contest: Contest, contestant: Contestant, target: int, *, cascade: bool = True) -> bool:
    return await contest.operating(contestant).cancel(target, None, cascade=cascade, by=None, tenant=None)


async def test_a_cancel_that_waited_for_an_end_has_nothing_to_cancel(contest: Contest) -> None:
    committing, cancelling = await contest.join()
    claim = await contest.executing(committing)
    await committing.begin()
    await contest.flush(committing, done(claim))

    cancels = await contest.blocked(cancelling, cancel(contest, cancelling, claim.id))
    await committing.commit()

    assert await cancels is False
    assert await contest.row(claim.id, "status", "fence") == ("done", 2)


async def test_a_cancel_that_waited_for_a_commit_ends_the_committed_instance(contest: Contest) -> None:
    committing, cancelling = await contest.join()
    claim = await contest.executing(committing)
    await committing.begin()
    await contest.flush(committing, following(claim))

    cancels = await contest.blocked(cancelling, cancel(contest, cancelling, claim.id))
    await committing.commit()

    assert await cancels is True
    assert await contest.row(claim.id, "status", "step", "fence") == ("cancelled", "b", 3)


async def test_a_commit_does_not_wait_for_a_running_cancel_and_is_stale_after_it(contest: Contest) -> None:
    committing, cancelling = await contest.join()
    claim = await contest.executing(committing)
    await cancelling.begin()
    assert await cancel(contest, cancelling, claim.id)

    assert await contest.flush(committing, done(claim)) == []
    await cancelling.commit()

    assert await contest.flush(committing, done(claim)) == []
    assert await contest.row(claim.id, "status", "fence") == ("cancelled", 2)


async def test_without_its_guard_a_late_commit_would_revive_a_cancelled_instance(contest: Contest) -> None:
    committing, cancelling = await contest.join()
    committing.change(
        "instances/commit",
        ("i.worker_id = o.worker_id and i.fence = o.fence and i.status || '' = 'executing'", "true"),
    )
    claim = await contest.executing(committing)
    await cancel(contest, cancelling, claim.id)

    await contest.flush(committing, following(claim))

    assert await contest.row(claim.id, "status") == "runnable"


async def test_children_spawned_while_their_parent_is_cancelled_are_cancelled_too(contest: Contest) -> None:
    spawning, cancelling = await contest.join()
    claim = await contest.executing(spawning)
    await spawning.begin()
    await contest.flush(spawning, spawned(claim, contest.entries(Plain, Plain)))

    cancels = await contest.blocked(cancelling, cancel(contest, cancelling, claim.id))
    await spawning.commit()

    assert await cancels is True
    assert await contest.row(claim.id, "status") == "cancelled"
    assert await contest.children(claim.id) == ["cancelled", "cancelled"]


async def test_with_a_single_read_of_the_tree_a_cancel_would_miss_the_children(contest: Contest) -> None:
    spawning, cancelling = await contest.join()
    claim = await contest.executing(spawning)
    await spawning.begin()
    await contest.flush(spawning, spawned(claim, contest.entries(Plain, Plain)))

    async def once() -> operators.Cancelled:
        async with cancelling.transaction() as session:
            return await operators._cancel_once(session, claim.id, cascade=True, reason="", by=None)  # type: ignore[arg-type]

    cancels = await contest.blocked(cancelling, once())
    await spawning.commit()

    assert (await cancels).ids == [claim.id]
    assert await contest.children(claim.id) == ["runnable", "runnable"]


async def test_a_spawn_during_the_cancel_of_its_parent_inserts_nothing(contest: Contest) -> None:
    spawning, cancelling = await contest.join()
    claim = await contest.executing(spawning)
    spawn = spawned(claim, contest.entries(Plain, Plain))
    await cancelling.begin()
    await cancel(contest, cancelling, claim.id)

    assert await contest.flush(spawning, spawn) == []
    await cancelling.commit()

    assert await contest.flush(spawning, spawn) == []
    assert await contest.children(claim.id) == []


async def test_a_cancelled_child_and_a_child_that_ends_meanwhile_count_once_each(contest: Contest) -> None:
    ending, cancelling = await contest.join()
    parent, [first, second] = await contest.family(ending, 2)
    await cancelling.begin()
    await cancel(contest, cancelling, first.id)

    assert await contest.flush(ending, done(first), done(second)) == []
    await cancelling.commit()

    assert await contest.flush(ending, done(first), done(second)) == [second.id]
    assert await contest.row(parent.id, "status", "children_pending") == ("runnable", 0)


async def test_a_claim_skips_an_instance_that_is_being_cancelled(contest: Contest) -> None:
    claiming, cancelling = await contest.join()
    handle = await contest.harness.engine.start(Plain)
    await cancelling.begin()
    await cancel(contest, cancelling, handle.id)

    assert await contest.claim(claiming) == []
    await cancelling.commit()

    assert await contest.claim(claiming) == []
    assert await contest.row(handle.id, "status") == "cancelled"


async def test_a_cancel_that_waited_for_a_claim_takes_the_instance_from_its_worker(contest: Contest) -> None:
    claiming, cancelling = await contest.join()
    handle = await contest.harness.engine.start(Plain)
    await claiming.begin()
    [claim] = await contest.claim(claiming)

    cancels = await contest.blocked(cancelling, cancel(contest, cancelling, handle.id))
    await claiming.commit()

    assert await cancels is True
    assert await contest.flush(claiming, done(claim)) == []
    assert await contest.row(handle.id, "status", "worker_id", "fence") == ("cancelled", None, 2)


@pytest.mark.parametrize("act", ["cancel", "restart"])
async def test_a_group_commit_does_not_wait_for_an_operator_blocked_by_a_caller(contest: Contest, act: str) -> None:
    caller, operator, flushing = await contest.join(3)
    waiting = await contest.harness.engine.start(Plain, {}, concurrency_key="k", step="b", delay=None, priority=9)
    claim = await contest.executing(flushing, concurrency_key="k")
    assert claim.id != waiting.id
    await caller.begin()
    await caller.lock_row(waiting.id)
    call = (
        cancel(contest, operator, waiting.id)
        if act == "cancel"
        else contest.operating(operator).restart(waiting.id, "b", None, None, by=None, tenant=None)
    )
    operating = await contest.blocked(operator, call)

    assert await contest.flush(flushing, done(claim)) == [claim.id]

    await caller.commit()
    await operating


async def test_a_claim_does_not_wait_for_a_spawn_blocked_by_a_caller(contest: Contest) -> None:
    caller, spawning, claiming = await contest.join(3)
    behind = await contest.harness.engine.start(Plain, {}, concurrency_key="k", priority=9)
    claim = await contest.executing(spawning, concurrency_key="k")
    await caller.begin()
    await contest.client(caller).start_many([Plain.child({}, key="child")])
    spawn = spawned(claim, contest.entries(Plain.child({}, key="child")))
    flush = await contest.blocked(spawning, commit.commit(spawning, [spawn], full_path()))  # type: ignore[arg-type]

    assert list(await concurrency_keys.hold(claiming, [behind.id], ["k"])) == [behind.id]  # type: ignore[arg-type]

    await caller.commit()
    await flush
    assert await contest.row(behind.id, "status", "hold") == ("runnable", None)
    assert await retention.prune(caller) == (0, 0)


class Runs:
    """How often the step started, and when it may end."""

    def __init__(self) -> None:
        self.begun = 0
        self.end = asyncio.Event()


class Long(Machine, initial="run"):
    """Runs until the test lets it end."""

    @step
    async def run(self, ctx: Context[Any]) -> Done:
        ctx.resources.begun += 1
        await ctx.resources.end.wait()
        return Done(ctx.resources.begun)


async def test_a_late_notification_of_a_restart_does_not_stop_the_run_after_it() -> None:
    runs, heard = Runs(), list[str]()
    async with Harness([Long], resources=runs) as h, h.engine.worker():
        assert h.engine._notifier is not None
        h.engine._notifier.subscribe(notifications.REVOKED, heard.append)
        handle = await h.engine.start(Long)
        await eventually(lambda: runs.begun == 1)
        await h.engine.restart(handle.id, step=Long.run)
        await eventually(lambda: runs.begun == 2 and heard)

        before = len(heard)
        await h.sql("select pg_notify($1, $2)", f"stepwell_{notifications.REVOKED}", heard[0])
        await eventually(lambda: len(heard) > before)
        runs.end.set()

        assert await handle.result(timeout=20) == 2
