"""An interaction that is being sent, against its completion, its timeout, other senders, and a lock on its row."""

from __future__ import annotations

import pytest

from stepwell._store import await_units, interactions
from stepwell._store.registrations import workers
from stepwell._store.registrations.workers import HostIdentity
from tests.support.asked import SOON, Asked
from tests.support.contest import Contestant
from tests.support.race import LEASE


async def worker(asked: Asked, contestant: Contestant) -> int:
    """A sender without a process."""
    return (await workers.register(contestant, HostIdentity("nowhere", "never", 1, "1"), "0", {}, [], LEASE)).id


async def test_two_senders_take_an_interaction_once(asked: Asked) -> None:
    one, other = await asked.join()
    _, question = await asked.one(one, "there")
    await one.begin()
    assert await asked.take(one, await worker(asked, one)) == [(question, 1)]

    assert await asked.take(other, await worker(asked, other)) == []
    assert not await asked.is_anybody_waiting()
    await one.commit()

    assert await asked.take(other, await worker(asked, other)) == []


async def test_without_skip_locked_the_second_sender_would_wait_for_the_first(asked: Asked) -> None:
    one, other = await asked.join()
    other.change("interactions/claim", ("skip locked", ""))
    _, _question = await asked.one(one, "there")
    sender = await worker(asked, other)
    await one.begin()
    await asked.take(one, await worker(asked, other))

    taking = await asked.blocked(other, asked.take(other, sender))
    await one.commit()

    assert await taking == []


async def test_a_completion_between_a_dispatch_and_its_record_stands(asked: Asked) -> None:
    """Digest, section 4: a completion may come from any status that is open."""
    sending, answering = await asked.join()
    instance, question = await asked.one(sending, "there")
    sender = await worker(asked, sending)
    taken = await asked.take(sending, sender)

    await asked.complete(answering, question)

    assert await asked.note(sending, sender, taken) == []
    assert await asked.statuses(instance) == ["completed"]


async def test_recording_a_dispatch_skips_a_locked_interaction_and_is_retried(asked: Asked) -> None:
    answering, sending = await asked.join()
    instance, question = await asked.one(sending, "there")
    sender = await worker(asked, sending)
    taken = await asked.take(sending, sender)
    await answering.begin()
    await asked.complete(answering, question)

    assert await asked.note(sending, sender, taken) == [question]
    assert not await asked.is_anybody_waiting()
    await answering.commit()

    assert await asked.note(sending, sender, taken) == []
    assert await asked.statuses(instance) == ["completed"]


async def test_a_dispatch_record_skipped_for_a_rolled_back_completion_is_not_lost(asked: Asked) -> None:
    answering, sending = await asked.join()
    instance, question = await asked.one(sending, "there")
    sender = await worker(asked, sending)
    taken = await asked.take(sending, sender)
    await answering.begin()
    await asked.complete(answering, question)
    left = await asked.note(sending, sender, taken)
    await answering.rollback()

    assert await asked.note(sending, sender, [(id_, 1) for id_ in left]) == []

    assert await asked.statuses(instance) == ["dispatched"]


async def test_a_completion_waits_for_an_uncommitted_dispatch_record(asked: Asked) -> None:
    sending, answering = await asked.join()
    instance, question = await asked.one(sending, "there")
    sender = await worker(asked, sending)
    taken = await asked.take(sending, sender)
    await sending.begin()
    await asked.note(sending, sender, taken)

    completing = await asked.blocked(answering, asked.complete(answering, question))
    await sending.commit()
    await completing

    assert await asked.statuses(instance) == ["completed"]
    assert await asked.row(instance, "status") == "runnable"


async def test_dispatch_records_and_completions_in_opposite_orders_do_not_deadlock(asked: Asked) -> None:
    sending, answering = await asked.join()
    sender = await worker(asked, sending)
    instance, _ = await asked.many(sending, 2, transport="there")
    taken = await asked.take(sending, sender)
    await sending.begin()
    await asked.note(sending, sender, taken[:1])
    await answering.begin()
    await asked.complete(answering, taken[1][0])

    second = await asked.blocked(answering, asked.complete(answering, taken[0][0]))
    assert await asked.note(sending, sender, taken[1:]) == [taken[1][0]]
    await sending.commit()
    await second
    await answering.commit()

    assert await asked.unit(instance) == ("completed", 2, 2, 0)


async def test_without_skip_locked_that_would_be_a_deadlock(asked: Asked) -> None:
    sending, answering = await asked.join()
    sending.change("interactions/record", ("for no key update of q skip locked", "for no key update of q"))
    sender = await worker(asked, sending)
    await asked.many(sending, 2, transport="there")
    taken = await asked.take(sending, sender)
    await sending.begin()
    await asked.note(sending, sender, taken[:1])
    await answering.begin()
    await asked.complete(answering, taken[1][0])
    second = await asked.blocked(answering, asked.complete(answering, taken[0][0]))

    noting = await asked.blocked(sending, asked.note(sending, sender, taken[1:]))
    ended = [await outcome(noting), await outcome(second)]

    assert any("deadlock" in end or "aborted" in end for end in ended)  # retried in the same transaction
    for contestant in (sending, answering):
        await contestant.rollback()


async def outcome(task: object) -> str:
    try:
        return str(await task)  # type: ignore[misc]
    except Exception as error:  # noqa: BLE001 - which of the two loses is the server's choice
        return str(error).lower()


async def test_an_interaction_that_times_out_while_it_is_sent_stays_timed_out(asked: Asked) -> None:
    sending, expiring = await asked.join()
    instance, _question = await asked.one(sending, "there", timeout=SOON)
    sender = await worker(asked, sending)
    taken = await asked.take(sending, sender)
    await asked.harness.advance(SOON)
    await asked.expire(expiring)

    assert await asked.note(sending, sender, taken) == []

    assert await asked.statuses(instance) == ["timed_out"]
    assert await asked.take(sending, sender) == []


async def test_no_interaction_is_sent_after_its_timeout(asked: Asked) -> None:
    sending, _ = await asked.join()
    await asked.one(sending, "there", timeout=SOON)
    await asked.harness.advance(SOON)

    assert await asked.take(sending, await worker(asked, sending)) == []


async def test_an_unsendable_interaction_completed_at_that_moment_ends_once(asked: Asked) -> None:
    sending, answering = await asked.join()
    instance, question = await asked.one(sending, "there")
    sender = await worker(asked, sending)
    [taken] = await interactions.claim(sending, sender, "there", 1)
    await answering.begin()
    await asked.complete(answering, question)

    left, _ = await interactions.fail(sending, sender, [(taken.dispatch, "gone")])  # type: ignore[arg-type]
    assert [dispatch.interaction_id for dispatch, _ in left] == [question]
    assert not await asked.is_anybody_waiting()
    await answering.commit()

    still_left, settled = await interactions.fail(sending, sender, left)  # type: ignore[arg-type]
    assert (still_left, list(settled.queues), list(settled.transports)) == ([], [], [])
    assert await asked.unit(instance) == ("completed", 1, 1, 0)


async def test_a_dead_senders_interaction_is_sent_again_its_late_record_ignored(asked: Asked) -> None:
    """Digest, gap 3."""
    dead, alive = await asked.join()
    instance, question = await asked.one(dead, "there")
    gone, sender = await worker(asked, dead), await worker(asked, alive)
    before = await asked.take(dead, gone)
    await asked.sql("update stepwell.workers set lease_until = '-infinity' where id = $1", gone)

    assert await interactions.release_lost(alive) == ["there"]
    assert await asked.take(alive, sender) == [(question, 2)]

    assert await asked.note(dead, gone, before) == []
    assert await asked.statuses(instance) == ["dispatching"]


async def test_two_reconcilers_return_an_interaction_of_a_lost_sender_once(asked: Asked) -> None:
    one, other = await asked.join()
    await asked.one(one, "there")
    gone, sender = await worker(asked, one), await worker(asked, other)
    await asked.take(one, gone)
    await asked.sql("delete from stepwell.workers where id = $1", gone)
    await one.begin()
    assert len(await interactions.release_lost(one)) == 1

    assert await interactions.release_lost(other) == []
    await one.commit()

    assert await asked.take(other, sender) != []
    assert await interactions.release_lost(one) == []


async def test_a_worker_releases_interactions_taken_by_a_lost_reply_and_no_others(asked: Asked) -> None:
    sending, answering = await asked.join()
    sender = await worker(asked, sending)
    instance, _ = await asked.many(sending, 3, transport="there")
    [first, _second, third] = [id_ for id_, _ in await asked.take(sending, sender)]
    await answering.begin()
    await asked.complete(answering, third)

    assert await interactions.release(sending, sender, "there", [first]) == 1
    assert not await asked.is_anybody_waiting()
    await answering.commit()

    assert await asked.statuses(instance) == ["dispatching", "waiting", "completed"]


async def test_a_token_hash_is_stored_without_waiting_for_a_completion(asked: Asked) -> None:
    sending, answering = await asked.join()
    sender = await worker(asked, sending)
    await asked.many(sending, 2, transport="there")
    [(first, _), (second, _)] = await asked.take(sending, sender)
    await answering.begin()
    await asked.complete(answering, first)

    sealed = await interactions.add_token_hashes(sending, sender, {first: "aa", second: "bb"})

    assert sealed == {second}
    await answering.commit()


@pytest.mark.parametrize("number", [3, 600], ids=["a few", "more than one look"])
async def test_late_interactions_of_a_locked_instance_block_no_other_timeout(asked: Asked, number: int) -> None:
    caller, expiring = await asked.join()
    held, _ = await asked.many(expiring, number, timeout=SOON, window=1000)
    free, _ = await asked.one(expiring, timeout=SOON)
    await asked.harness.advance(SOON)
    await caller.begin()
    await caller.lock_row(held)

    late, left = await asked.expire(expiring)
    await caller.commit()

    assert (late, left) == (number + 1, number)
    assert await asked.row(free, "status") == "runnable"
    assert await asked.row(held, "status") == "awaiting_external"


async def test_no_interaction_of_an_ended_large_unit_is_sent(asked: Asked) -> None:
    sending, ending = await asked.join()
    instance, _ = await asked.many(ending, 2_500, transport="there", window=2_500)
    sender = await worker(asked, sending)
    taken = await asked.take(sending, sender)

    await asked.operating(ending).cancel(instance, None, cascade=True, by=None, tenant=None)

    assert await asked.take(sending, sender) == []
    while await await_units.clean_up(ending) is not None:  # type: ignore[arg-type]
        assert await asked.take(sending, sender) == []
    assert await asked.note(sending, sender, taken) == []
    assert set(await asked.statuses(instance)) == {"cancelled"}
