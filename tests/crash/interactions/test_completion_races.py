"""A completion, against every concurrent change of its interaction, in both orders, by two connections."""

from __future__ import annotations

import asyncio

import pytest

from stepwell import Ask
from stepwell._store import interactions
from stepwell.errors import CompletionConflict, CompletionTooLate, InteractionClosed, UnknownInteraction
from tests.support.asked import SOON, Asked, each
from tests.support.waiting import eventually

NO_LOCK = ("for no key update", "")


async def test_a_completion_before_the_ask_commits_is_unknown_and_admitted_after(asked: Asked) -> None:
    asking, answering = await asked.join()
    claim = await asked.claimed(asking)
    await asking.begin()
    await asked.flush(asking, asked.asks(claim, Ask("manual", 1, then="collect", reply=int)))
    [question] = [row["id"] for row in await asking.connection.fetch("select id::text from stepwell.interactions")]

    with pytest.raises(UnknownInteraction):
        await asked.complete(answering, question)
    await asking.commit()

    assert not (await asked.complete(answering, question)).is_duplicate
    assert await asked.row(claim.id, "status") == "runnable"


async def test_a_park_waits_for_an_uncommitted_completion_apart_from_its_batch(asked: Asked) -> None:
    """Digest, section 4: before the parent has parked."""
    answering, parking = await asked.join()
    claim = await asked.claimed(parking)
    await asked.fill(parking, claim, each(), 1)
    [question] = await asked.ids(claim.id)
    await answering.begin()
    await asked.complete(answering, question)

    assert await asked.flush(parking, asked.asks(claim, each())) == []
    assert not await asked.is_anybody_waiting()
    await answering.commit()

    assert await asked.flush(parking, asked.asks(claim, each())) == [claim.id]
    assert await asked.row(claim.id, "status") == "runnable"
    assert await asked.unit(claim.id) == ("completed", 1, 1, 0)


async def test_a_completion_waits_for_an_uncommitted_park_and_wakes_the_instance(asked: Asked) -> None:
    parking, answering = await asked.join()
    claim = await asked.claimed(parking)
    await asked.fill(parking, claim, each(), 1)
    [question] = await asked.ids(claim.id)
    await parking.begin()
    await asked.flush(parking, asked.asks(claim, each()))

    completing = await asked.blocked(answering, asked.complete(answering, question))
    await parking.commit()

    assert not (await completing).is_duplicate
    assert await asked.row(claim.id, "status") == "runnable"
    assert await asked.unit(claim.id) == ("completed", 1, 1, 0)


async def test_without_a_check_of_its_unit_a_park_would_wait_for_replies_it_has(asked: Asked) -> None:
    parking, answering = await asked.join()
    parking.change("await_units/settle", ("when (u.is_filled or g.is_filled) and", "when u.is_filled and"))
    claim = await asked.claimed(parking)
    await asked.fill(parking, claim, each(), 1)
    [question] = await asked.ids(claim.id)
    await asked.complete(answering, question)

    await asked.flush(parking, asked.asks(claim, each()))

    assert await asked.row(claim.id, "status") == "awaiting_external"
    await asked.sql("truncate stepwell.instances, stepwell.await_units, stepwell.interactions")


async def test_a_completion_while_the_unit_is_being_filled_counts_once(asked: Asked) -> None:
    filling, answering = await asked.join()
    claim = await asked.claimed(filling)
    await asked.fill(filling, claim, each(window=2), 3)
    first, *_ = await asked.ids(claim.id)

    await asked.complete(answering, first)
    await asked.fill(filling, claim, each(window=2), 2, first=3)
    await asked.flush(filling, asked.asks(claim, each(window=2)))

    assert await asked.unit(claim.id) == ("waiting", 5, 1, 2)
    assert await asked.statuses(claim.id) == ["completed", "dispatched", "dispatched", "queued", "queued"]
    assert await asked.row(claim.id, "status") == "awaiting_external"


async def test_an_uncommitted_completion_in_time_beats_the_timeout(asked: Asked) -> None:
    answering, expiring = await asked.join()
    instance, question = await asked.one(answering, timeout=SOON)
    await answering.begin()
    await asked.complete(answering, question)
    await asked.harness.advance(SOON)

    assert await asked.expire(expiring) == (1, 1)
    assert not await asked.is_anybody_waiting()
    await answering.commit()

    assert await asked.expire(expiring) == (0, 0)
    assert await asked.statuses(instance) == ["completed"]
    assert await asked.unit(instance) == ("completed", 1, 1, 0)


async def test_an_uncommitted_timeout_beats_the_completion_that_waits_for_it(asked: Asked) -> None:
    """Digest, gap 1: the timeout wakes the instance, whatever completion is late."""
    expiring, answering = await asked.join()
    instance, question = await asked.one(answering, timeout=SOON)
    await asked.harness.advance(SOON)
    await expiring.begin()
    assert await asked.expire(expiring) == (1, 0)

    completing = await asked.blocked(answering, asked.complete(answering, question))
    await expiring.commit()

    with pytest.raises(InteractionClosed) as refused:
        await completing
    assert refused.value.status == "timed_out"
    assert await asked.row(instance, "status") == "runnable"
    assert await asked.unit(instance) == ("timed_out", 1, 1, 0)


async def test_a_late_completion_changes_nothing_even_before_the_timer_has_run(asked: Asked) -> None:
    """Digest, gap 1."""
    answering, expiring = await asked.join()
    instance, question = await asked.one(answering, timeout=SOON)
    await asked.harness.advance(SOON)

    with pytest.raises(CompletionTooLate):
        await asked.complete(answering, question)

    assert await asked.statuses(instance) == ["dispatched"]
    assert await asked.expire(expiring) == (1, 0)
    assert await asked.row(instance, "status") == "runnable"


async def test_a_completion_between_a_timers_read_and_its_lock_stands(asked: Asked) -> None:
    answering, expiring = await asked.join()
    instance, question = await asked.one(answering, timeout=SOON)
    await asked.complete(answering, question)
    await asked.harness.advance(SOON)

    await interactions._expire(expiring, [(question, instance)])  # type: ignore[arg-type]

    assert await asked.statuses(instance) == ["completed"]
    assert await asked.unit(instance) == ("completed", 1, 1, 0)


async def test_without_the_instances_lock_timeout_and_completion_would_both_count(asked: Asked) -> None:
    answering, expiring = await asked.join()
    expiring.change("children/lock_parents", ("for no key update skip locked", "")).change(
        "interactions/expire", ("and q.status || '' in ('waiting', 'dispatching', 'dispatched')", ""),
        ("set status = 'timed_out'", "set reply = null, status = 'timed_out'"),
    )  # fmt: skip
    instance, question = await asked.one(answering, timeout=SOON)
    await answering.begin()
    await asked.complete(answering, question)
    await asked.harness.advance(SOON)

    late = await asked.blocked(expiring, asked.expire(expiring))
    await answering.commit()
    await late

    assert await asked.statuses(instance) == ["timed_out"]  # and the instance had a reply
    assert (await asked.unit(instance))[0] == "completed"


async def test_an_uncommitted_completion_survives_the_cancel_that_waits_for_it(asked: Asked) -> None:
    answering, cancelling = await asked.join()
    instance, question = await asked.one(answering)
    await answering.begin()
    await asked.complete(answering, question)

    cancel = await asked.blocked(cancelling, cancel_of(asked, cancelling, instance))
    await answering.commit()

    assert await cancel
    assert await asked.row(instance, "status") == "cancelled"
    assert (await asked.unit(instance), await asked.statuses(instance)) == (("completed", 1, 1, 0), ["completed"])


async def test_a_completion_during_a_cancel_is_refused_as_closed(asked: Asked) -> None:
    cancelling, answering = await asked.join()
    instance, question = await asked.one(answering)
    await cancelling.begin()
    await cancel_of(asked, cancelling, instance)

    completing = await asked.blocked(answering, asked.complete(answering, question))
    await cancelling.commit()

    with pytest.raises(InteractionClosed):
        await completing
    assert await asked.row(instance, "status") == "cancelled"
    assert (await asked.unit(instance))[0] == "cancelled"
    assert await asked.statuses(instance) == ["cancelled"]


async def test_a_cancel_closes_the_interactions_of_a_half_completed_unit(asked: Asked) -> None:
    one, other = await asked.join()
    instance, [first, *_] = await asked.many(one, 4, window=2)
    await asked.complete(one, first)

    await cancel_of(asked, other, instance)

    assert await asked.statuses(instance) == ["completed", "cancelled", "cancelled", "cancelled"]
    assert await asked.row(instance, "status") == "cancelled"


async def cancel_of(asked: Asked, by: object, instance: int) -> bool:
    operating = asked.operating(by)  # type: ignore[arg-type]
    return await operating.cancel(instance, None, cascade=True, by=None, tenant=None)


async def test_an_uncommitted_completion_survives_the_restart_that_waits_for_it(asked: Asked) -> None:
    answering, restarting = await asked.join()
    instance, question = await asked.one(answering)
    await answering.begin()
    await asked.complete(answering, question)

    restart = await asked.blocked(restarting, restart_of(asked, restarting, instance))
    await answering.commit()
    await restart

    assert await asked.row(instance, "status", "step") == ("runnable", "start")
    assert (await asked.unit(instance), await asked.statuses(instance)) == (("completed", 1, 1, 0), ["completed"])


async def test_a_completion_during_a_restart_is_refused_and_wakes_no_instance(asked: Asked) -> None:
    restarting, answering = await asked.join()
    instance, question = await asked.one(answering)
    await restarting.begin()
    await restart_of(asked, restarting, instance)

    completing = await asked.blocked(answering, asked.complete(answering, question))
    await restarting.commit()

    with pytest.raises(InteractionClosed):
        await completing
    assert await asked.row(instance, "status", "step") == ("runnable", "start")
    assert await asked.statuses(instance) == ["cancelled"]


async def restart_of(asked: Asked, by: object, instance: int) -> None:
    operating = asked.operating(by)  # type: ignore[arg-type]
    await operating.restart(instance, "start", None, None, by=None, tenant=None)


@pytest.mark.parametrize("reply", [1, 2], ids=["the same", "another"])
async def test_of_two_concurrent_completions_one_is_admitted(asked: Asked, reply: int) -> None:
    """Digest, section 4: two concurrent completions, duplicate or conflict."""
    one, other = await asked.join()
    instance, question = await asked.one(one)
    await one.begin()
    assert not (await asked.complete(one, question, 1)).is_duplicate

    second = await asked.blocked(other, asked.complete(other, question, reply))
    await one.commit()

    if reply == 1:
        assert (await second).is_duplicate
    else:
        with pytest.raises(CompletionConflict):
            await second
    assert await asked.unit(instance) == ("completed", 1, 1, 0)
    [kept] = await asked.sql("select reply #>> '{}' as reply from stepwell.interactions")
    assert kept["reply"] == "1"


async def test_a_completion_rolled_back_leaves_the_interaction_to_the_next_one(asked: Asked) -> None:
    one, other = await asked.join()
    instance, question = await asked.one(one)
    await one.begin()
    await asked.complete(one, question, 1)

    second = await asked.blocked(other, asked.complete(other, question, 2))
    await one.rollback()

    assert not (await second).is_duplicate
    assert await asked.unit(instance) == ("completed", 1, 1, 0)


async def test_many_completions_of_one_interaction_are_one_and_its_duplicates(asked: Asked) -> None:
    [one] = await asked.join(1)
    instance, question = await asked.one(one)
    complete = asked.harness.engine.complete

    answers = await asyncio.gather(*(complete(interaction=question, reply=7) for _ in range(20)))

    assert sorted(answer.is_duplicate for answer in answers) == [False] + [True] * 19
    assert await asked.unit(instance) == ("completed", 1, 1, 0)


async def test_completions_of_a_locked_instance_delay_no_other_and_arrive_later(
    asked: Asked,
) -> None:
    """Many completions of one instance wait a moment for its lock, in the database; other completions do not wait as
    long."""
    [holding] = await asked.join(1)
    held, questions = await asked.many(holding, 20)
    _, free = await asked.one(holding)
    complete = asked.harness.engine.complete
    await holding.begin()
    await holding.connection.execute("select from stepwell.instances where id = $1 for no key update", held)

    answering = asyncio.gather(*(complete(interaction=question, reply=7) for question in questions))
    await asked.is_anybody_waiting()
    await complete(interaction=free, reply=7)
    still_open = await asked.unit(held)
    await holding.commit()
    await answering

    assert still_open == ("waiting", 20, 0, 20)
    assert await asked.unit(held) == ("completed", 20, 20, 0)


async def test_completions_that_wait_long_for_one_instance_share_a_connection(asked: Asked) -> None:
    """Separately they would use up the pool, and then lock the instance one after the other, so that no group finds
    it free."""
    number = 40
    [holding] = await asked.join(1)
    held, questions = await asked.many(holding, number)
    engine = asked.harness.engine
    assert engine._client is not None
    lines = engine._client.completing._batchers
    await holding.begin()
    await holding.connection.execute("select from stepwell.instances where id = $1 for no key update", held)

    answering = [asyncio.create_task(engine.complete(interaction=question, reply=7)) for question in questions]
    again = asyncio.create_task(engine.complete(interaction=questions[0], reply=7))
    await eventually(lambda: held in lines and len(lines[held]._waiting) == number)
    [row] = await asked.harness.sql(
        "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    )
    await holding.commit()
    completions = await asyncio.gather(again, *answering)

    assert row["count"] == 1
    assert sum(completion.is_duplicate for completion in completions) == 1
    assert await asked.unit(held) == ("completed", number, number, 0)
    assert not lines


async def test_concurrent_completions_of_two_items_open_two_more_items(asked: Asked) -> None:
    one, other = await asked.join()
    instance, [first, second, *_] = await asked.many(one, 6, window=2)
    await one.begin()
    await asked.complete(one, first)

    completing = await asked.blocked(other, asked.complete(other, second))
    await one.commit()
    await completing

    assert await asked.unit(instance) == ("waiting", 6, 2, 2)
    assert await asked.statuses(instance) == ["completed"] * 2 + ["dispatched"] * 2 + ["queued"] * 2


async def test_without_the_instances_lock_two_completions_would_open_one_item(asked: Asked) -> None:
    one, other = await asked.join()
    other.change("operators/lock", NO_LOCK).change("children/lock_parents", ("for no key update skip locked", ""))
    instance, [first, second, *_] = await asked.many(one, 6, window=2)
    await one.begin()
    await asked.complete(one, first)

    completing = await asked.blocked(other, asked.complete(other, second))
    await one.commit()
    await completing

    assert (await asked.statuses(instance)).count("dispatched") == 1
    assert len(await asked.problems()) == 1
    await asked.sql("truncate stepwell.instances, stepwell.await_units, stepwell.interactions")


async def test_the_last_two_completions_of_a_unit_at_once_release_it_once(asked: Asked) -> None:
    one, other = await asked.join()
    instance, [first, second] = await asked.many(one, 2)
    await one.begin()
    await asked.complete(one, first)

    completing = await asked.blocked(other, asked.complete(other, second))
    await one.commit()
    await completing

    assert await asked.unit(instance) == ("completed", 2, 2, 0)
    assert await asked.row(instance, "status") == "runnable"


async def test_a_transaction_that_locks_one_instance_delays_no_other_completion(asked: Asked) -> None:
    """This holds for completions of the same group, and for later ones."""
    caller, asking = await asked.join()
    held, theirs = await asked.one(asking)
    others = [(await asked.one(asking))[1] for _ in range(4)]
    complete = asked.harness.engine.complete
    await caller.begin()
    await caller.lock_row(held)

    first = asyncio.create_task(complete(interaction=others[0], reply=1))
    waiting = asyncio.create_task(complete(interaction=theirs, reply=1))
    async with asyncio.timeout(20):
        await first
        await asyncio.gather(*(complete(interaction=other, reply=1) for other in others[1:]))

    assert not waiting.done()
    await caller.commit()
    assert not (await waiting).is_duplicate


async def test_many_completions_and_a_cancel_of_their_instances_do_not_deadlock(asked: Asked) -> None:
    one, other, third = await asked.join(3)
    families = [await asked.many(one, 3) for _ in range(4)]
    complete = asked.harness.engine.complete

    answers = [complete(interaction=id_, reply=1) for _, ids in reversed(families) for id_ in reversed(ids)]
    cancels = [cancel_of(asked, by, instance) for by, (instance, _) in zip((one, other, third), families, strict=False)]
    ended = await asyncio.gather(*answers, *cancels, return_exceptions=True)

    assert all(isinstance(end, InteractionClosed) for end in ended if isinstance(end, BaseException))
    assert await asked.row(families[3][0], "status") == "runnable"
