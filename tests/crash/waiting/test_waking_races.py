"""Who is woken into a worker's hands, against parking, ending, pausing, other deliveries and that worker's death."""

from __future__ import annotations

import pytest

from stepwell._core.faults import Contention
from stepwell._core.records import Claim
from stepwell._core.reservation import Reservation
from stepwell._store import signals
from stepwell._store.signals import Delivery, InHand, NewSignal
from stepwell._store.signals import Plain as PlainSignals
from tests.support.contest import Contest, Contestant, done, parked

REACHED = [("paid", "1")]
PATIENT = ("'lock_timeout', '10'", "'lock_timeout', '0'")  # it waits until the test lets it go on


async def deliver(contest: Contest, delivering: Contestant, *claims: Claim) -> InHand:
    """Signal "paid" to instances that were claimed so before, into the hands of the first one's worker."""
    given = [NewSignal(id=c.id, tenant="", key=None, name="paid", payload="1", dedup_key=None) for c in claims]
    plain = PlainSignals.of(given)
    assert plain is not None
    reserved = Reservation("default", len(claims), claims[0].worker_id)
    return await signals.deliver_in_hand(delivering, given, plain, reserved, contest.registry.labels())


async def park(contest: Contest, parking: Contestant, key: str | None = None) -> Claim:
    claim = await contest.executing(parking, key=key)
    assert await contest.flush(parking, parked(claim, "paid")) == [claim.id]
    return claim


async def test_a_delivery_waits_for_a_park_under_way_and_wakes_it_as_ever(contest: Contest) -> None:
    parking, delivering = await contest.join()
    delivering.change("signals/deliver_in_hand", PATIENT)
    claim = await contest.executing(parking)
    await parking.begin()
    await contest.flush(parking, parked(claim, "paid"))

    delivery = await contest.blocked(delivering, deliver(contest, delivering, claim))
    await parking.commit()
    answer = await delivery

    assert (answer.claims, answer.deliveries) == ([], [Delivery(claim.id, "default", is_orphaned=False)])
    assert await contest.row(claim.id, "status") == "runnable"
    assert await contest.inbox(claim.id) == REACHED


async def test_a_delivery_that_waited_for_its_targets_end_reaches_nobody_and_stores_nothing(contest: Contest) -> None:
    finishing, delivering = await contest.join()
    delivering.change("signals/deliver_in_hand", PATIENT)
    claim = await contest.executing(finishing)
    await finishing.begin()
    await contest.flush(finishing, done(claim))

    delivery = await contest.blocked(delivering, deliver(contest, delivering, claim))
    await finishing.commit()
    answer = await delivery

    assert (answer.claims, answer.deliveries) == ([], [Delivery(None, None, is_orphaned=False)])
    assert await contest.inbox(claim.id) == []


async def test_of_two_deliveries_at_once_the_first_takes_its_target_into_hand_and_the_second_adds_to_its_inbox(
    contest: Contest,
) -> None:
    one, other = await contest.join()
    other.change("signals/deliver_in_hand", PATIENT)
    claim = await park(contest, one)
    await one.begin()
    first = await deliver(contest, one, claim)

    delivery = await contest.blocked(other, deliver(contest, other, claim))
    await one.commit()
    second = await delivery

    assert ([c.id for c in first.claims], second.claims) == ([claim.id], [])
    assert second.deliveries == [Delivery(claim.id, None, is_orphaned=False)]
    assert await contest.row(claim.id, "status", "fence") == ("executing", first.claims[0].fence)
    assert await contest.inbox(claim.id) == REACHED * 2


@pytest.mark.parametrize(
    ("changes", "in_hand"),
    [([], 0), ([("    and not i.has_inbox and i.round = 0", "    and i.round = 0")], 1)],
    ids=["as it is", "without the look at its inbox"],
)
async def test_who_was_signalled_before_is_not_taken_into_hand_with_the_last_signal_only(
    contest: Contest, changes: list[tuple[str, str]], in_hand: int
) -> None:
    """What is in its inbox besides has to be read."""
    one, other = await contest.join()
    other.change("signals/deliver_in_hand", PATIENT, *changes)
    claim = await park(contest, one)
    await one.begin()
    await signals.deliver(one, [NewSignal(id=claim.id, tenant="", key=None, name="x", payload="0", dedup_key=None)])

    delivery = await contest.blocked(other, deliver(contest, other, claim))
    await one.commit()
    answer = await delivery

    assert len(answer.claims) == in_hand
    assert await contest.inbox(claim.id) == [("x", "0"), *REACHED]


@pytest.mark.parametrize("held", ["row", "queue"])
async def test_a_delivery_that_keeps_slots_gives_up_where_it_would_have_to_wait_and_delivers_nothing(
    contest: Contest, held: str
) -> None:
    holding, delivering = await contest.join()
    first, second = await park(contest, holding), await park(contest, holding)
    await holding.begin()
    if held == "row":
        await holding.connection.execute("select from stepwell.instances where id = $1 for no key update", second.id)
    else:
        await holding.connection.execute(
            "select pg_advisory_xact_lock(hashtextextended('stepwell queue:default', 0))"
        )

    with pytest.raises(Contention):
        await deliver(contest, delivering, first, second)

    assert [await contest.row(id_, "status") for id_ in (first.id, second.id)] == ["awaiting_signal"] * 2
    assert await contest.sql("select from stepwell.signals") == []


async def test_who_is_woken_in_a_queue_that_was_paused_meanwhile_waits_in_it(contest: Contest) -> None:
    pausing, delivering = await contest.join()
    claim = await park(contest, pausing)
    await pausing.connection.execute(
        "insert into stepwell.queues (name, paused_at, changed_at) values ('default', now(), now())"
    )

    answer = await deliver(contest, delivering, claim)

    assert (answer.claims, answer.deliveries) == ([], [Delivery(claim.id, "default", is_orphaned=False)])
    assert await contest.row(claim.id, "status") == "runnable"


@pytest.mark.parametrize(
    ("changes", "found"),
    [([], ("runnable", 0, 0)), ([("clock_timestamp()", "pg_catalog.now()")], ("runnable", 1, 1))],
    ids=["claimed when it was woken", "claimed when the transaction began"],
)
async def test_who_is_in_the_hands_of_one_who_dies_before_the_step_has_begun_counts_no_crash_although_others_began(
    contest: Contest, changes: list[tuple[str, str]], found: tuple[str, int, int]
) -> None:
    delivering, reaping = await contest.join()
    delivering.change("signals/deliver_in_hand", *changes)
    claim = await park(contest, delivering)
    await delivering.begin()
    await contest.sql("update stepwell.workers set begun_at = clock_timestamp()")

    [woken] = (await deliver(contest, delivering, claim)).claims
    await delivering.commit()
    await contest.sql("update stepwell.workers set lease_until = '-infinity'")
    assert await contest.reap(reaping, [woken]) == [claim.id]

    assert await contest.row(claim.id, "status", "attempt", "crashes") == found
    assert await contest.inbox(claim.id) == REACHED


@pytest.mark.parametrize(
    "change",
    [
        "share = 7", "concurrency_key = 'k'", "concurrency_limit = 'few'", "rate_limit = 'slow'", "version = 99",
        "queue = 'another'", "attempt = 1", "crashes = 2", "has_inbox = true", "round = 1", "await_unit_id = 7",
    ],
)  # fmt: skip
async def test_who_needs_more_than_a_slot_or_is_handed_more_than_its_state_and_one_signal_is_woken_as_ever(
    contest: Contest, change: str
) -> None:
    parking, delivering = await contest.join()
    one, other = await park(contest, parking), await park(contest, parking)
    await contest.sql(f"update stepwell.instances set {change} where id = $1", one.id)

    answer = await deliver(contest, delivering, one, other)

    assert [claim.id for claim in answer.claims] == [other.id]
    assert [d.target for d in answer.deliveries] == [one.id, other.id]
    assert await contest.row(one.id, "status") == "runnable"
    assert await contest.inbox(one.id) == REACHED


async def test_who_awaits_another_name_gets_the_signal_and_goes_on_waiting(contest: Contest) -> None:
    parking, delivering = await contest.join()
    claim = await contest.executing(parking)
    await contest.flush(parking, parked(claim, "another"))

    answer = await deliver(contest, delivering, claim)

    assert (answer.claims, answer.deliveries) == ([], [Delivery(claim.id, None, is_orphaned=False)])
    assert await contest.row(claim.id, "status") == "awaiting_signal"
    assert await contest.inbox(claim.id) == REACHED
