"""Signals against deadlines, against themselves, and against the emptying of an inbox."""

from __future__ import annotations

from datetime import timedelta

import pytest

from stepwell._core.store_errors import Conflict
from stepwell._store import instances, signals
from stepwell._store.operations.commit import commit_rows
from stepwell._store.operations.deliver import deliver
from tests.crash.signals.test_signal_races import paid
from tests.support.contest import Contest, Contestant, Plain, done, following, parked

SECOND = timedelta(seconds=1)


async def overdue(contest: Contest, contestant: Contestant) -> int:
    """An instance with a deadline that has passed, before a timer has run."""
    claim = await contest.executing(contestant)
    await contest.flush(contestant, parked(claim, "paid", timeout=SECOND))
    await contest.harness.advance(2 * SECOND)
    return claim.id


async def test_a_signal_that_arrives_while_its_deadline_fires_is_in_the_inbox(contest: Contest) -> None:
    ticking, delivering = await contest.join()
    sleeper = await overdue(contest, ticking)
    await ticking.begin()
    assert (await instances.wake_due(ticking, ["default"])).freed == 1

    delivery = await contest.blocked(delivering, contest.signalling(delivering).signal(sleeper, "paid", 1, None, None))
    await ticking.commit()
    await delivery

    assert await contest.row(sleeper, "status", "deadline", "awaits") == ("runnable", None, ["paid"])
    assert await contest.inbox(sleeper) == [("paid", "1")]


async def test_a_deadline_during_the_delivery_of_its_signal_does_not_fire(
    contest: Contest,
) -> None:
    ticking, delivering = await contest.join()
    sleeper = await overdue(contest, ticking)
    await delivering.begin()
    await contest.signalling(delivering).signal(sleeper, "paid", 1, None, None)

    assert (await instances.wake_due(ticking, ["default"])).freed == 0
    await delivering.commit()

    assert (await instances.wake_due(ticking, ["default"])).freed == 0
    assert await contest.row(sleeper, "status", "deadline") == ("runnable", None)


async def test_without_skip_locked_every_timer_would_wait_for_a_delivery(
    contest: Contest,
) -> None:
    ticking, delivering = await contest.join()
    ticking.change("instances/wake_due", ("for no key update skip locked", "for no key update"))
    sleeper = await overdue(contest, ticking)
    await delivering.begin()
    await contest.signalling(delivering).signal(sleeper, "paid", 1, None, None)

    tick = await contest.blocked(ticking, instances.wake_due(ticking, ["default"]))
    await delivering.commit()

    assert (await tick).freed == 0


async def test_two_concurrent_deliveries_of_one_event_succeed_with_one_effect(contest: Contest) -> None:
    one, other = await contest.join()
    claim = await contest.executing(one)
    await one.begin()
    await contest.signalling(one).signal(claim.id, "paid", 1, "event 7", None)

    again = await contest.blocked(other, contest.signalling(other).signal(claim.id, "paid", 2, "event 7", None))
    await one.commit()
    await again

    assert await contest.inbox(claim.id) == [("paid", "1")]


async def test_the_second_delivery_of_an_event_counts_if_the_first_is_rolled_back(contest: Contest) -> None:
    one, other = await contest.join()
    claim = await contest.executing(one)
    await one.begin()
    await contest.signalling(one).signal(claim.id, "paid", 1, "event 7", None)

    again = await contest.blocked(other, contest.signalling(other).signal(claim.id, "paid", 2, "event 7", None))
    await one.rollback()
    await again

    assert await contest.inbox(claim.id) == [("paid", "2")]


async def test_without_on_conflict_the_second_delivery_of_an_event_would_fail(contest: Contest) -> None:
    one, other = await contest.join()
    other.change(
        "signals/deliver", ("on conflict (instance_id, dedup_key) where dedup_key is not null do nothing", "")
    )
    claim = await contest.executing(one)
    await one.begin()
    await deliver(one, [paid(claim.id, "event 7")])

    again = await contest.blocked(other, deliver(other, [paid(claim.id, "event 7")]))
    await one.commit()

    with pytest.raises(Conflict, match="signals_dedup"):
        await again


async def test_an_event_consumed_meanwhile_has_no_second_effect(contest: Contest) -> None:
    one, other = await contest.join()
    claim = await contest.executing(one)
    await deliver(one, [paid(claim.id, "event 7")])
    [signal] = (await signals.load(one, [claim.id]))[claim.id]
    await one.begin()
    await contest.flush(one, following(claim, consumes=(signal.id,)))

    again = await contest.blocked(other, contest.signalling(other).signal(claim.id, "paid", 2, "event 7", None))
    await one.commit()
    await again

    assert await contest.inbox(claim.id) == []


async def test_an_end_does_not_empty_the_inbox_of_an_instance_restarted_meanwhile(contest: Contest) -> None:
    finishing, operator = await contest.join()
    claim = await contest.executing(finishing)
    await deliver(operator, [paid(claim.id)])  # the claim does not know of it: its end is a plain one
    assert [row.has_inbox for row in await commit_rows(finishing, [done(claim)])] == [True]
    await contest.operating(operator).restart(claim.id, "a", None, None, by=None, tenant=None)
    await contest.signalling(operator).signal(claim.id, "paid", 2, None, None)

    await signals.drop(finishing, [claim.id])

    assert ("paid", "2") in await contest.inbox(claim.id)


async def test_an_end_empties_an_inbox_that_its_step_did_not_know_of(contest: Contest) -> None:
    finishing, delivering = await contest.join()
    claim = await contest.executing(finishing)
    await deliver(delivering, [paid(claim.id)])

    assert await contest.flush(finishing, done(claim)) == [claim.id]

    assert await contest.inbox(claim.id) == []


async def test_of_two_concurrent_signal_or_starts_one_starts_and_both_signal(contest: Contest) -> None:
    one, other = await contest.join()
    await one.begin()
    first = await contest.client(one).signal_or_start(Plain, {}, "k", "paid", 1, None, None)

    second = await contest.blocked(
        other, contest.client(other).signal_or_start(Plain, {}, "k", "paid", 2, None, None)
    )  # fmt: skip
    await one.commit()

    assert (await second).id == first.id
    assert await contest.inbox(first.id) == [("paid", "1"), ("paid", "2")]


async def test_a_signal_or_start_starts_if_the_one_before_it_is_rolled_back(contest: Contest) -> None:
    one, other = await contest.join()
    await one.begin()
    first = await contest.client(one).signal_or_start(Plain, {}, "k", "paid", 1, None, None)

    second = await contest.blocked(
        other, contest.client(other).signal_or_start(Plain, {}, "k", "paid", 2, None, None)
    )  # fmt: skip
    await one.rollback()

    reached = (await second).id
    assert reached != first.id
    assert await contest.inbox(reached) == [("paid", "2")]


async def test_a_single_try_of_signal_or_start_would_neither_signal_nor_start(contest: Contest) -> None:
    one, other = await contest.join()
    client, [entry] = contest.client(other), contest.entries(Plain.child({}, key="k"))
    await one.begin()
    await contest.client(one).signal_or_start(Plain, {}, "k", "paid", 1, None, None)

    once = await contest.blocked(other, client.signalling._signal_or_start_once(paid("k"), entry))
    await one.commit()

    assert await once is None
